"""What the steps of a takeover share: the situation, conclusions from it, and the wording of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slackwater.times import duration
from slackwater_operator.api.v1alpha1.status.rollout import TAKEOVER, Moving
from slackwater_operator.model.group import WorkerView, terms_of
from slackwater_operator.policies.rollout.restarts import (
    HOPELESS,
    RestartView,
    RolloutInput,
    missing,
    unready,
)
from slackwater_operator.policies.takeover.types import (
    STOP,
    TELL,
    WAIT,
    TakeoverDecision,
    TakeoverInput,
    TakeoverMember,
    TakeoverPolicy,
)

REQUEST_RETRY_MS = 10_000
"""A successor that is in standby so long after it was told is told again: it was refused, or the request was
lost."""
SLACK_MS = 20_000
"""How much longer than its predecessor's deadline a successor may take."""
FIRST_PROOF_MS = 5_000
"""How long the first member of a revision must run before its predecessor is stopped."""
PROOF_MS = 1_000
"""The same for the later ones."""

STANDBY = "standby"
WARM = "warm"
HANDING_OVER = "handing-over"
GETTING_READY = frozenset({"starting", "warming"})
JOINS = frozenset({"taking-over", "joining"})


def _unwritten(worker: WorkerView) -> str:
    """Which of its partitions have no rows of it yet, in words; "" if all have. The next takeover waits for
    them, so that partitions of several workers do not stand still at once."""
    if not worker.unwritten:
        return ""
    partitions = "1 partition" if worker.unwritten == 1 else f"{worker.unwritten} partitions"
    return f"has not written records of {partitions} yet"


def unknown(worker: WorkerView | None) -> bool:
    """Whether its process runs but has not reported its status."""
    return worker is not None and worker.alive and not worker.phase


def gone(worker: WorkerView | None) -> bool:
    """Whether its process is known not to run."""
    return worker is None or not worker.alive


def no_room(worker: WorkerView | None) -> bool:
    """Whether its pod cannot be scheduled on any node."""
    return worker is not None and not worker.alive and worker.trouble.startswith("Unschedulable")


def crashes(worker: WorkerView | None) -> bool:
    """Whether it fails repeatedly."""
    return worker is not None and not worker.running and worker.failures >= HOPELESS


@dataclass(frozen=True)
class Case:
    """The situation that a step is decided from.

    Attributes:
        policy: what the user permits.
        observed: the observation.
        note: the note, if it counts here (for this direction and this member).
    """

    policy: TakeoverPolicy
    observed: TakeoverInput
    note: Moving | None = None

    # -- members and their pods

    @property
    def forward(self) -> bool:
        """Whether this rolls out a new revision, which may turn out to be bad."""
        return not self.observed.back

    def member(self, ordinal: int) -> TakeoverMember | None:
        """The member of this number; None if it is not wanted."""
        return next((member for member in self.observed.members if member.ordinal == ordinal), None)

    def old_pod(self, member: TakeoverMember) -> str:
        """The name of its pod in the source set."""
        return (member.old.pod if member.old else "") or f"{self.observed.old.name}-{member.ordinal}"

    def new_pod(self, member: TakeoverMember) -> str:
        """The name of its pod in the target set."""
        return (member.new.pod if member.new else "") or f"{self.observed.new.name}-{member.ordinal}"

    def holder(self, member: TakeoverMember) -> str:
        """The pod that is the member by the broker's report; "" if it reports none, or neither pod.

        The member id identifies the pod; it changes with each join. The client.id that the broker reports is
        that of the first joiner, whichever pod took over since. A pod that has not reported its member id,
        or reports an outdated one, is not identified.
        """
        listed = self.observed.group.member(member.name) if self.observed.group is not None else None
        if listed is None or not listed.member_id:
            return ""
        if member.old is not None and member.old.member_id == listed.member_id:
            return self.old_pod(member)
        return self.new_pod(member) if member.new and member.new.member_id == listed.member_id else ""

    def disowned(self, worker: WorkerView) -> bool:
        """Whether the broker has another member id for this worker's member than the worker reports.

        The worker has been fenced, or one of the two was asked a moment earlier.
        """
        listed = self.observed.group.member(worker.name) if self.observed.group is not None else None
        known = listed.member_id if listed is not None else ""
        return bool(known and worker.member_id) and known != worker.member_id

    def view(self, member: TakeoverMember) -> WorkerView:
        """The worker of the member's pod that counts: of two the one that runs, and the old one
        if both do."""
        in_old, in_new = (
            member.ordinal in self.observed.old.ordinals,
            member.ordinal in self.observed.new.ordinals,
        )
        new_counts = in_new and (not in_old or (member.new is not None and member.new.running))
        old_runs = in_old and member.old is not None and member.old.running
        worker = member.new if new_counts and not old_runs else member.old if in_old else None
        return worker if worker is not None else WorkerView(member.name)

    @property
    def views(self) -> tuple[WorkerView, ...]:
        """The workers of all members except for the hopeless ones."""
        return tuple(self.view(member) for member in self.observed.members if not self.hopeless(member))

    @property
    def newest(self) -> int:
        """The newest generation of any member; -1 without any."""
        return max((worker.generation for worker in self.views), default=-1)

    # -- conclusions

    def hopeless(self, member: TakeoverMember) -> bool:
        """Whether a member that has still to move cannot start with its revision; no step waits for it.

        The new revision may fix it. In a rollback this includes every member that does not run: the source
        set has the failed revision.
        """
        if member.ordinal not in self.observed.old.ordinals or member.ordinal in self.observed.new.ordinals:
            return False
        worker = member.old
        if worker is None or self.observed.back:
            return self.observed.back and (worker is None or not (worker.running or unknown(worker)))
        never = not worker.alive and worker.ended_ms is None
        stuck = not worker.running and not worker.terminating and not unknown(worker)
        return stuck and bool(worker.trouble) and (never or worker.failures >= HOPELESS)

    @property
    def unplanned(self) -> str:
        """Why the group may have rebalanced without a takeover being the cause; "" if there is no such
        cause, or if the rebalance was expected."""
        if self.observed.expected:
            return ""
        if self.observed.forced:
            return self.observed.forced
        stuck = [member.name for member in self.observed.members if self.hopeless(member)]
        return f"{', '.join(stuck)} does not start" if stuck else ""

    def rebalanced(self, worker: WorkerView) -> bool:
        """Whether the group has rebalanced since the note was written, or the successor told."""
        return self.note is not None and 0 <= self.note.generation < worker.generation

    @property
    def counts_against_revision(self) -> bool:
        """Whether a rebalance since then counts against the new revision.

        A successor that was never told joined because its predecessor's session had timed out.
        """
        excused = self.observed.expected or self.unplanned
        return self.forward and not excused and self.note is not None and self.note.told_ms > 0

    def unready(self, away: Sequence[str] = ()) -> str:
        """Why no member may be moved now, in words; "" if one may."""
        return unready(self.observed.group, self.views, away)

    def lacks(self, member: TakeoverMember, worker: WorkerView) -> str:
        """What a successor still lacks to have taken over, in words; "" if nothing. The rules are those of a
        restart."""
        if member.name not in (self.observed.group.instance_ids if self.observed.group else ()):
            return "runs, but is not in the group"
        if worker.generation < self.newest:
            term = terms_of(self.observed.group).generation
            return f"is in {term} {worker.generation}, not yet in {self.newest}"
        noted = self.note or Moving(member.ordinal, self.observed.now_ms, -1, None)
        restart = RestartView(member.name, noted.generation, noted.lag)
        lacks = missing(self.policy.rollout, self.rollout_input(worker), restart, worker)
        return lacks or _unwritten(worker) or self._unproven(member, worker)

    def _unproven(self, member: TakeoverMember, worker: WorkerView) -> str:
        """Why the successor has not run for long enough, in words; "" if it has.

        Otherwise one that joins and fails at its first records would count as taken over.
        """
        others = [other for other in self.observed.members if other.ordinal != member.ordinal]
        first = not any(other.new is not None and other.new.running for other in others)
        wanted_ms = FIRST_PROOF_MS if first else PROOF_MS
        since_ms = worker.running_since_ms
        if since_ms is not None and self.observed.now_ms - since_ms >= wanted_ms:
            return ""
        return (
            f"must run without errors for {duration(wanted_ms)}"
            f"{' as the first of its revision' if first else ''}"
        )

    def rollout_input(self, worker: WorkerView) -> RolloutInput:
        """The observation as input for the rules of a restart."""
        observed = self.observed
        excuse = self.unplanned or ("the way back" if observed.back else "")
        sessions_ms = observed.sessions_since_ms
        return RolloutInput(
            worker.revision,
            observed.group,
            self.views,
            (),
            observed.gaps_ms,
            observed.now_ms,
            None,
            None,
            excuse,
            sessions_ms,
            observed.expected,
        )

    def told_lately(self) -> bool:
        """Whether the successor was told so recently that it may not have received the request yet."""
        return bool(
            self.note and self.note.told_ms and self.observed.now_ms - self.note.told_ms < REQUEST_RETRY_MS
        )

    def overdue(self) -> bool:
        """Whether the successor was told so long ago that it should be the member; not judged during a
        rebalance."""
        if (
            not self.note
            or not self.note.told_ms
            or self.observed.group is None
            or not self.observed.group.stable
        ):
            return False
        since_ms = max(self.note.told_ms, self.observed.sessions_since_ms)
        return self.observed.now_ms - since_ms >= self.policy.deadline_ms + SLACK_MS

    def refused_often(self) -> bool:
        """Whether a successor has been in standby repeatedly after it was told."""
        allowed = 1 + (self.policy.deadline_ms + SLACK_MS) // REQUEST_RETRY_MS
        return self.forward and self.note is not None and self.note.tells >= allowed

    # -- decisions and their wording

    def why_rebalanced(self, member: TakeoverMember) -> str:
        """Which problem may have caused the rebalance, as ` (f-1: exit code 4: ...)`; "" without one.

        A member that has failed, or is not in the group, comes before the successor's own report.
        """
        group = self.observed.group
        causes = []
        for other in self.observed.members:
            worker = self.view(other)
            out = group is not None and group.member(other.name) is None
            if other.ordinal != member.ordinal and (out or worker.trouble or not worker.alive):
                state = "is not in the group" if out else "does not run" if not worker.alive else ""
                causes.append(
                    f"{other.name} {state}".rstrip() + (f": {worker.trouble}" if worker.trouble else "")
                )
        if not causes and member.new is not None and member.new.trouble:
            causes.append(f"{self.new_pod(member)}: {member.new.trouble}")
        return f" ({'; '.join(causes[:3])})" if causes else ""

    def wait(self, reason: str, summary: str = "", *, ordinal: int = -1) -> TakeoverDecision:
        """The decision to do nothing now; the note stays."""
        by = self.note.by if self.note else TAKEOVER
        return TakeoverDecision(WAIT, ordinal, by, reason=reason, summary=summary or reason, note=self.note)

    def stop(self, member: TakeoverMember, reason: str, summary: str = "") -> TakeoverDecision:
        """The decision to give up this revision, and the note with it; in a rollback the decision
        to wait."""
        if self.observed.back:
            waits = f"the rollback waits for {member.name}"
            return self.wait(f"{waits}: {reason}", waits, ordinal=member.ordinal)
        by = self.note.by if self.note else TAKEOVER
        summary = summary or reason
        return TakeoverDecision(STOP, member.ordinal, by, reason=reason, summary=summary, failed=member.name)

    def tell(self, member: TakeoverMember, why: str, *, predecessor: bool) -> TakeoverDecision:
        """The decision to tell the successor to take over.

        If no pod serves the member, a later generation does not count against the successor: its
        predecessor's session may have timed out before.
        """
        assert self.note is not None
        assert member.new is not None
        note = replace(
            self.note,
            told_ms=self.observed.now_ms,
            tells=self.note.tells + (member.new.phase == STANDBY),
        )
        if predecessor:
            lag = member.old.lag if member.old is not None else None
            note = replace(note, generation=self.newest, lag=lag)
        elif note.by == TAKEOVER:
            note = replace(note, generation=-1)
        asks = f"asks {self.old_pod(member)}" if predecessor else "has no predecessor to ask"
        reason = f"{self.new_pod(member)} takes over, and {asks}: {why}"
        return TakeoverDecision(
            TELL, member.ordinal, note.by, predecessor, reason=reason, summary=reason, note=note
        )
