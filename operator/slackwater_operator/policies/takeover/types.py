"""Input and result of a decision about takeovers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slackwater_operator.api.v1alpha1.status.rollout import TAKEOVER, Moving
from slackwater_operator.model.group import GroupView, WorkerView
from slackwater_operator.model.statefulsets import NO_ORDINALS, Ordinals
from slackwater_operator.policies.rollout.restarts import RolloutPolicy

DONE, WAIT, EXTEND, TELL, RETIRE, WITHDRAW, REFUSE, STOP = (
    "done",
    "wait",
    "extend",
    "tell",
    "retire",
    "withdraw",
    "refuse",
    "stop",
)
"""The actions of a `TakeoverDecision`."""

FALL_BACK_TO_RESTART = "Restart"
FALL_BACK_TO_STOP = "Stop"
"""spec.rollout.takeover.fallback."""


@dataclass(frozen=True)
class SetView:
    """One of the two StatefulSets.

    Attributes:
        name: its name; its pods are called NAME-ordinal.
        ordinals: its pods' ordinals; empty if it does not exist.
    """

    name: str
    ordinals: Ordinals = NO_ORDINALS

    def having(self, ordinal: int) -> SetView:
        """The set with one more ordinal (the same set if it has it already).

        Raises:
            ValueError: the ordinal is not next to those of the set.
        """
        own = self.ordinals
        if own.replicas and not own.start - 1 <= ordinal <= own.end:
            raise ValueError(f"{self.name} has ordinals {own.start} to {own.top}: {ordinal} is not adjacent")
        return replace(self, ordinals=own.with_(ordinal))

    def lacking(self, ordinal: int) -> SetView:
        """The set with one ordinal less (the same set if it lacks it already).

        Raises:
            ValueError: the ordinal is in the middle of the set.
        """
        own = self.ordinals
        if ordinal in own and ordinal not in (own.start, own.top):
            raise ValueError(f"{self.name} has {own.start} to {own.top}: {ordinal} is at neither end")
        return replace(self, ordinals=own.without(ordinal))


@dataclass(frozen=True)
class TakeoverMember:
    """A member with its pods.

    Attributes:
        ordinal: its number.
        name: its group.instance.id, `flights-3`.
        old: the worker in its pod of the source set, also while that ends; None without a pod.
        new: the worker in its pod of the target set; None without a pod.
    """

    ordinal: int
    name: str
    old: WorkerView | None = None
    new: WorkerView | None = None


@dataclass(frozen=True)
class TakeoverPolicy:
    """What the user permits.

    Attributes:
        rollout: the rest of spec.rollout; `paused` and the session's budget count.
        warm_timeout_ms: spec.rollout.takeover.warmTimeout.
        fallback: spec.rollout.takeover.fallback, `Restart` or `Stop`.
        deadline_ms: how long a predecessor may take to hand over (drainTimeoutMs + 5 s).
        hands_over: whether the target set's template has the key for takeovers. Without it there are no
            standbys, and all members move by restart.
    """

    rollout: RolloutPolicy
    warm_timeout_ms: int = 300_000
    fallback: str = FALL_BACK_TO_RESTART
    deadline_ms: int = 20_000
    hands_over: bool = True


@dataclass(frozen=True)
class TakeoverInput:
    """The observation.

    Attributes:
        old: the source set.
        new: the target set.
        members: all wanted members, including one that is in neither set while it moves by restart.
        group: the group; None when the broker did not respond.
        moving: the note of the takeover in progress; None without one.
        gaps_ms: how long workers were away in the restarts measured so far.
        now_ms: the time.
        forced: why the broker may have caused a rebalance since the takeover in progress began
            (`ForcedWatch.since`); "" if it was not observed to.
        sessions_since_ms: when the broker began all sessions anew; 0 if it was not observed to.
        back: whether this is a rollback after a `stop`: the source set has the failed revision.
        expected: why the revision itself causes a rebalance (`rebalance_causes.expected_rebalance`), which
            is then planned and no failure; "" if it does not.
        limit: how many members may have the target set's revision now (`rollout.steps.StepsDecision`); None
            for all.
        hold: why no other member may have it where the limit is reached, or why the rollout is not done
            although all members have it; "" if all may.
        held_up: by name, the pods that the cluster keeps from running, whatever their template, and why; but
            for lack of room.
    """

    old: SetView
    new: SetView
    members: Sequence[TakeoverMember]
    group: GroupView | None
    moving: Moving | None
    gaps_ms: Sequence[int]
    now_ms: int
    forced: str = ""
    sessions_since_ms: int = 0
    back: bool = False
    expected: str = ""
    limit: int | None = None
    hold: str = ""
    held_up: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TakeoverDecision:
    """The next step.

    Attributes:
        action: `done` (the source set is empty), `wait`, `extend` (the target set gets `ordinal`), `tell`
            (its successor is told to take over), `retire` (the source set loses `ordinal`), `withdraw` (the
            target set loses it), `refuse` (a restart would not fit the session) or `stop` (give up on this
            revision and exchange the sets, with `back`; a successor that is not the member may be withdrawn
            at once while the source set has its ordinal, or is retired on the way back; one that moved by
            restart is in no other set, and stays).
        ordinal: the member's number; -1 if it is about none.
        by: how it moves, `takeover` or `restart`.
        predecessor: for `tell`, whether there is a predecessor to ask.
        moved: whether the noted takeover is over, and succeeded.
        reason: one sentence for users.
        summary: `reason` without figures that change all the time, for conditions and Events.
        note: the note to write before this is done, unchanged if nothing changes; None for no note.
        failed: the member that a `stop` is about; "" otherwise.
        unplanned: why the group rebalanced during the takeover that is over (`moved`) without that being the
            cause, to be counted as unplanned; "" if it did not.
    """

    action: str
    ordinal: int = -1
    by: str = TAKEOVER
    predecessor: bool = True
    moved: bool = False
    reason: str = ""
    summary: str = ""
    note: Moving | None = None
    failed: str = ""
    unplanned: str = ""
