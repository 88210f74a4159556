"""What the decision about a takeover looks at, and what it says (`policies.takeover`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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

TAKEOVER = "takeover"
RESTART = "restart"
"""How a member moves (`Moving.by`): beside its predecessor, or after it."""

FALL_BACK_TO_RESTART = "Restart"
FALL_BACK_TO_STOP = "Stop"
"""spec.rollout.takeover.fallback."""


@dataclass(frozen=True)
class SetView:
    """One of the two sets of pods.

    Attributes:
        name: its name; its pods are called NAME-ordinal.
        ordinals: its pods' ordinals; empty also where there is no such set.
    """

    name: str
    ordinals: Ordinals = NO_ORDINALS

    def having(self, ordinal: int) -> SetView:
        """The set with one ordinal more (itself if it has it already).

        Raises:
            ValueError: the ordinal is not next to those that the set has.
        """
        own = self.ordinals
        if own.replicas and not own.start - 1 <= ordinal <= own.end:
            raise ValueError(f"{self.name} has ordinals {own.start} to {own.top}: {ordinal} is not adjacent")
        return replace(self, ordinals=own.with_(ordinal))

    def lacking(self, ordinal: int) -> SetView:
        """The set with one ordinal less (itself if it lacks it already).

        Raises:
            ValueError: the ordinal is in the middle of the set.
        """
        own = self.ordinals
        if ordinal in own and ordinal not in (own.start, own.top):
            raise ValueError(f"{self.name} has {own.start} to {own.top}: {ordinal} is at neither end")
        return replace(self, ordinals=own.without(ordinal))


@dataclass(frozen=True)
class TakeoverMember:
    """A member and its pods.

    Attributes:
        ordinal: its number.
        name: its group.instance.id, `flights-3`.
        old: its pod in the set that is left, also while that ends; None: there is no pod.
        new: its pod in the set that is filled; None: there is no pod.
    """

    ordinal: int
    name: str
    old: WorkerView | None = None
    new: WorkerView | None = None


@dataclass(frozen=True)
class Moving:
    """The one takeover under way; noted in the status before anything is done for it.

    Attributes:
        ordinal: the member's number.
        since_ms: since when its successor has been awaited (or the member away, by="restart").
        generation: the group's generation when its successor was told (or it was noted, before that).
        lag: how far its partitions were behind then, None when that was not known.
        by: `takeover`, or `restart`: the predecessor ends first.
        told_ms: when the successor was told to go last, 0 before that.
        tells: how many times it has been told.
        to: the set that it moves to; a note of the other direction counts for nothing. "": not known.
    """

    ordinal: int
    since_ms: int
    generation: int
    lag: int | None
    by: str = TAKEOVER
    told_ms: int = 0
    tells: int = 0
    to: str = ""


@dataclass(frozen=True)
class TakeoverPolicy:
    """What the user allows.

    Attributes:
        rollout: the rest of spec.rollout; `paused` and the session's budget count.
        warm_timeout_ms: spec.rollout.takeover.warmTimeout.
        fallback: spec.rollout.takeover.fallback, `Restart` or `Stop`.
        deadline_ms: how long a predecessor may take to hand over (drainTimeoutMs + 5 s).
        hands_over: whether the template of the set that is filled has the key for takeovers. Without it there
            are no standbys, and all members move by restart.
    """

    rollout: RolloutPolicy
    warm_timeout_ms: int = 300_000
    fallback: str = FALL_BACK_TO_RESTART
    deadline_ms: int = 20_000
    hands_over: bool = True


@dataclass(frozen=True)
class TakeoverInput:
    """What was observed.

    Attributes:
        old: the set that is left.
        new: the set that is filled.
        members: all members that should be, also one that is in neither set while it moves by restart.
        group: the group, None when the broker did not say.
        moving: the note of the takeover under way, None without.
        gaps_ms: how long workers were away in the restarts measured so far.
        now_ms: the time.
        forced: why the broker may have made the group rebalance since the takeover under way began
            (`ForcedWatch.since`); "" if it was not seen to.
        sessions_since_ms: when the broker began all sessions anew, 0 when it was not seen to.
        back: whether this goes back to the last good revision, after a `stop`: what is left has failed.
        expected: why the revision makes the group rebalance by itself (`subscription.expected_rebalance`);
            "" if it does not. Such a rebalance is planned, and no failure.
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


@dataclass(frozen=True)
class TakeoverDecision:
    """What to do next.

    Attributes:
        action: `done` (the set that is left is empty), `wait`, `extend` (the new set gets `ordinal`), `tell`
            (its successor is told to take over), `retire` (the old set loses `ordinal`), `withdraw` (the new
            set loses it), `refuse` (a restart would not fit the session) or `stop` (give up on this revision:
            exchange the sets, with `back`. A successor that is not the member may be withdrawn at once, as
            long as the old set has its ordinal, too; left alone, the way back retires it. One that moved by
            restart is in no other set, and stays).
        ordinal: the member's number; -1 where it is about none.
        by: how it moves, `takeover` or `restart`.
        predecessor: for `tell`: whether there is somebody to ask.
        moved: whether the takeover that was noted is over, and went well.
        reason: one sentence for people.
        summary: `reason` without figures that change all the time, for conditions and Events.
        note: what the note has to be before this is done; None: there is to be none. The same as the one that
            there is where nothing changes.
        failed: the member that a `stop` is about, "" otherwise.
        unplanned: why the group rebalanced during the takeover that is over (`moved`) without that being to
            blame, "" if it did not: to be counted as unplanned.
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
