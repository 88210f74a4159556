"""Rebalances during a rollout that are not the new revision's failure: expected ones, and the broker's.

Expected (`expected_rebalance`): a revision with other topics or another preferred assignor causes a
rebalance. A static member that returns with other topics gets its previous assignment, since the broker
compares only the assignor's name (KAFKA-12759); the member has to ask for a rebalance. A worker leaves that
to the last member that returns with the new topics (`subscription_change_max_delay_ms`), so that the
rollout causes one rebalance; a rebalance for another reason in between adds one. A revision that prefers
another assignor causes a rebalance once all members offer that assignor. The new revision must still offer
the assignor in use, or the broker refuses its members. A revision that goes back to the classic protocol may
cause one when the last member of the consumer protocol leaves, which makes the group a classic one again.

Forced by the broker or by Kubernetes (`ForcedWatch`): a worker that returns in another generation shows that
the group has rebalanced. If a coordinator moved or a broker restarted, the revision is not the cause: a
coordinator that moves while a member returns forgets the return, fences the rightful pod and starts a
rebalance (observed with Kafka 4.3). Nor is it while Kubernetes keeps the worker's pod from running (no node,
a quota, a finalizer): its session may end meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from slackwater.kafka.group_states import CLASSIC, CONSUMER
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.model.wording import enumerated

_KEPT = 20
_LINGERS_MS = 60_000
"""How much later a broker's action can show in the group: a rebalance waits for its members' timeouts."""


class ForcedWatch:
    """Remembers when the broker or Kubernetes was observed to disturb one group. In memory only.

    Attributes:
        sessions_since_ms: when the coordinator was last observed to move, or not to respond: it then begins
            all sessions anew; or when a restarted worker was last held up. 0 before.
    """

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._seen: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._coordinator: int | None = None
        self._brokers: frozenset[int] = frozenset()
        self._moving = False
        self.sessions_since_ms = 0

    def observe(self, snapshot: KafkaSnapshot | None, *, now_ms: int, away: Collection[str] = ()) -> None:
        """Takes in an observation.

        Args:
            snapshot: the newest one; None when the cluster did not respond.
            now_ms: the time.
            away: workers that are being restarted and whose new process has not begun to join. They do not
                cause a rebalance that begins while they are away.
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        if snapshot is None or snapshot.group is None:
            self._note(now_ms, "the group's coordinator did not respond", sessions=True)
            return
        self._observe_brokers(snapshot, now_ms)
        moving = snapshot.group.rebalancing
        if moving and not self._moving and away:
            names = ", ".join(sorted(away))
            self._note(now_ms, f"the group began to rebalance while {names} was restarting", sessions=False)
        self._moving = moving

    def held_up(self, why: str, *, now_ms: int) -> None:
        """Takes in that Kubernetes keeps a restarted worker's pod from running: the time that the worker may
        be away begins when it does not any more."""
        self._note(now_ms, f"Kubernetes holds up {why}", sessions=True)

    def since(self, at_ms: int) -> str:
        """Why the broker may have caused a rebalance since `at_ms`, in words; "" if it was not observed to.

        Actions of shortly before count as well, since their rebalance may come later. If the operator
        started after `at_ms`, the answer says so: the cause cannot be known, and a worker that is in the
        group and running counts as back.
        """
        if self._began_ms is None or self._began_ms > at_ms:
            return "nobody was watching when it began"
        return next((why for when, why in reversed(self._seen) if when >= at_ms - _LINGERS_MS), "")

    def _observe_brokers(self, snapshot: KafkaSnapshot, now_ms: int) -> None:
        before, after = self._coordinator, snapshot.coordinator
        if before is not None and after is not None and before != after:
            why = f"the group's coordinator moved from broker {before} to broker {after}"
            self._note(now_ms, why, sessions=True)
        if after is not None:
            self._coordinator = after
        gone, come = self._brokers - snapshot.brokers, snapshot.brokers - self._brokers
        if self._brokers and snapshot.brokers:
            for brokers, what in ((gone, "went away"), (come, "came back")):
                if brokers:
                    names = ", ".join(str(broker) for broker in sorted(brokers))
                    self._note(now_ms, f"broker {names} {what}", sessions=False)
        self._brokers = snapshot.brokers or self._brokers

    def _note(self, at_ms: int, why: str, *, sessions: bool) -> None:
        if sessions:
            self.sessions_since_ms = at_ms
        if self._seen and self._seen[-1][1] == why:
            self._seen.pop()  # it goes on: the latest time counts
        self._seen.append((at_ms, why))


_NAMED = 5
_BACK_TO_CLASSIC = (
    "the group goes back to the classic protocol when its last member of the consumer protocol leaves"
)


def expected_rebalance(
    group: GroupView | None,
    topics: Collection[str] | None,
    assignors: Sequence[str],
    *,
    back_to_classic: bool = False,
) -> str:
    """Why the group rebalances when its members get a revision, in words; "" if it need not.

    Args:
        group: the group with its present members; None when the broker did not respond.
        topics: the topics that the revision consumes; None if unknown.
        assignors: the assignors that it offers, in order of preference; none by the consumer protocol.
        back_to_classic: of `goes_back_to_classic`.
    """
    if group is None:
        return ""
    reasons = [
        _BACK_TO_CLASSIC if back_to_classic else "",
        _topics_change(group, topics) if topics is not None else "",
        _assignor_changes(group, assignors),
    ]
    return "; ".join(filter(None, reasons))


def goes_back_to_classic(
    group: GroupView | None, strangers: Collection[MemberView], to_consumer: bool | None
) -> bool:
    """Whether the last member of the consumer protocol leaves the group in a rollout.

    Args:
        group: the group; None when the broker did not respond.
        strangers: its members that are not workers. One of the consumer protocol keeps the group as it is.
        to_consumer: whether the revision is of the consumer protocol; None if unknown: it is of the classic
            one where a worker is.
    """
    if group is None or any(member.protocol == CONSUMER for member in strangers):
        return False
    protocols = {member.protocol for member in group.members if member not in strangers}
    if to_consumer is None:
        to_consumer = CLASSIC not in protocols
    return not to_consumer and CONSUMER in protocols


def _topics_change(group: GroupView, topics: Collection[str]) -> str:
    wanted = frozenset(topics)
    others = [
        member.topics for member in group.members if member.topics is not None and member.topics != wanted
    ]
    if not others:
        return ""
    before = frozenset().union(*others)
    changes = [
        f"{what} {_listed(names)}"
        for what, names in (("added:", wanted - before), ("removed:", before - wanted))
        if names
    ]
    return f"the topics change ({'; '.join(changes) or 'members subscribe to different topics'})"


def _assignor_changes(group: GroupView, assignors: Sequence[str]) -> str:
    if not group.assignor or not assignors or assignors[0] == group.assignor:
        return ""
    return f"the assignor changes from {group.assignor} to {assignors[0]}"


def _listed(names: Iterable[str]) -> str:
    return enumerated(sorted(names), _NAMED)
