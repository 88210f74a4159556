"""Who takes the steps of a takeover in a `World`, can be killed between any two of them, and is watched."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from slackwater_operator.policies.rollout.restarts import RolloutPolicy
from slackwater_operator.policies.takeover.decision import (
    Moving,
    TakeoverDecision,
    TakeoverInput,
    TakeoverPolicy,
    decide_takeover,
)
from tests.operator.unit.policies.takeover.takeover_snapshot import DEADLINE_MS, SESSION_MS, World

Decide = Callable[[TakeoverPolicy, TakeoverInput], TakeoverDecision]

WARM_TIMEOUT_MS = 20_000


class Broken(AssertionError):
    """A rule that must always hold did not."""


@dataclass
class Operator:
    """Takes one step a turn. What it knows between turns is what would be in the status.

    Attributes:
        old: the set that is left.
        new: the set that is filled.
        back: whether it goes back.
        note: the note.
        done: whether the last decision was `done`.
        stops: why it stopped.
        counts: how many of each action.
    """

    world: World
    rng: random.Random
    policy: TakeoverPolicy
    decide: Decide = decide_takeover
    gaps_ms: Sequence[int] = ()
    old: str = "f-a"
    new: str = "f-b"
    back: bool = False
    note: Moving | None = None
    done: bool = False
    refused: bool = False
    stops: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    forced: list[int] = field(default_factory=list)
    sessions_since_ms: int = 0
    watching_since_ms: int = 0
    last: TakeoverDecision | None = None

    def turn(self, *, blind: float = 0.0, deaf: float = 0.0, killed: float = 0.0, lost: float = 0.0) -> None:
        """One step.

        Args:
            blind: how likely a pod's answer is missing.
            deaf: how likely the broker's is.
            killed: how likely it is killed before the note is written, after it, and after the action.
            lost: how likely the action does not arrive.
        """
        world, rng = self.world, self.rng
        group = None if rng.random() < deaf else world.group_view()
        members = world.takeover_members(self.old, self.new, blind)
        observed = TakeoverInput(
            world.sets[self.old],
            world.sets[self.new],
            members,
            group,
            self.note,
            self.gaps_ms,
            world.now_ms,
            self._why_forced(),
            self.sessions_since_ms,
            self.back,
        )
        decision = self.last = self.decide(self.policy, observed)
        self._check(observed, decision)
        if rng.random() < killed:
            self._killed()
            return
        self.note = decision.note
        if decision.action == "stop":
            # One write: that it failed, that it goes back, and no note.
            self.old, self.new, self.back, self.note = self.new, self.old, True, None
            self.stops.append(decision.reason)
        self.counts[decision.action] += 1
        self.counts[f"{decision.action} by {decision.by}"] += 1
        self.done, self.refused = decision.action == "done", decision.action == "refuse"
        if rng.random() < killed:
            self._killed()
        elif rng.random() >= lost:
            self._act(decision)
        if rng.random() < killed:
            self._killed()
        self._check_sets()

    def _killed(self) -> None:
        self.watching_since_ms = self.world.now_ms
        self.counts["killed"] += 1

    def _why_forced(self) -> str:
        since_ms = self.note.since_ms if self.note else self.world.now_ms
        if self.watching_since_ms > since_ms:
            return "nobody was watching when it began"
        return "the coordinator moved" if any(at_ms >= since_ms - 60_000 for at_ms in self.forced) else ""

    def _act(self, decision: TakeoverDecision) -> None:
        sets, ordinal = self.world.sets, decision.ordinal
        if decision.action == "extend":
            sets[self.new] = sets[self.new].having(ordinal)  # raises where it were no range any more
        elif decision.action == "retire":
            sets[self.old] = sets[self.old].lacking(ordinal)
        elif decision.action == "withdraw":
            sets[self.new] = sets[self.new].lacking(ordinal)
        elif decision.action == "tell":
            pod = self.world.pods.get(f"{self.new}-{ordinal}")
            if pod is not None:
                self.world.tell(pod, f"{self.old}-{ordinal}" if decision.predecessor else "")

    # -- what must always hold

    def _check(self, given: TakeoverInput, decision: TakeoverDecision) -> None:
        if not decision.reason or not decision.summary:
            raise Broken(f"{decision.action} without a reason")
        if given.group is None and decision.action not in ("wait", "done"):
            raise Broken(f"{decision.action} while the broker does not answer")
        name = f"f-{decision.ordinal}"
        serving = self.world.server(name)
        server = serving.set_name if serving is not None else ""
        if decision.action == "retire" and decision.by == "takeover" and server != self.new:
            raise Broken(f"{name}'s predecessor retired while it is served by {server!r}")
        if decision.action == "withdraw" and server != self.old:
            raise Broken(f"{name}'s successor withdrawn while it is served by {server!r}")
        if decision.action == "tell" and not decision.predecessor and self.world.holder(name) is not None:
            raise Broken(f"{name} taken over without asking {server!r}, which has it in its hands")
        asks = decision.action == "tell" and decision.predecessor
        begins = decision.action == "extend" and decision.by == "takeover" and not self.back
        if (asks or begins) and not self.world.group.stable:
            raise Broken(f"{decision.action} of {name} while the group rebalances")
        if decision.action == "stop" and (self.back or decision.note is not None):
            raise Broken("a stop on the way back, or one that leaves its note")

    def _check_sets(self) -> None:
        old, new = self.world.sets[self.old], self.world.sets[self.new]
        both = [ordinal for ordinal in old.ordinals if ordinal in new.ordinals]
        away = [ordinal for ordinal in range(self.world.members) if ordinal not in old.ordinals]
        away = [ordinal for ordinal in away if ordinal not in new.ordinals]
        restarts = self.note is not None and self.note.by == "restart"
        if away and not (restarts and self.note and away == [self.note.ordinal]):
            raise Broken(f"{away} are in neither set")
        if len(both) > 1:
            raise Broken(f"{both} move at once")
        if both and restarts and self.note and self.note.ordinal not in (*old.ordinals, both[0]):
            raise Broken(f"{both} moves while {self.note.ordinal} is away")


def policy(*, fallback: str = "Restart", hands_over: bool = True) -> TakeoverPolicy:
    """What the worlds' user allows."""
    rollout = RolloutPolicy(session_budget=0.6, session_timeout_ms=SESSION_MS)
    return replace(
        TakeoverPolicy(rollout),
        warm_timeout_ms=WARM_TIMEOUT_MS,
        fallback=fallback,
        deadline_ms=DEADLINE_MS,
        hands_over=hands_over,
    )
