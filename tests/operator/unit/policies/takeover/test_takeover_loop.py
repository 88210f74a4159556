"""Rollouts by takeover from begin to end, in a small world (takeover_snapshot.py) where much goes wrong.

What always holds is checked in takeover_operator.py at each step, and the end in takeover_chaos.py: all
members are served by the set that was filled, or, after a stop, by the one that was there before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from slackwater_operator.policies.takeover import (
    context as takeover_context,
    decision as takeover,
    restart as takeover_restart,
    steps as takeover_steps,
)
from tests.operator.unit.policies.takeover.takeover_chaos import Ending, quiet, rollout
from tests.operator.unit.policies.takeover.takeover_operator import Broken, Operator, policy
from tests.operator.unit.policies.takeover.takeover_snapshot import DRAIN_MS, TICK_MS, Revision, World

SEEDS = 400
CHUNKS = 8
ALWAYS = (0, 1)
"""The chunks that `make test` runs."""


@cache
def counts_of(seed: int) -> Mapping[str, int]:
    """How often each event came in a rollout."""
    return rollout(seed).operator.counts


@pytest.mark.parametrize(
    "chunk",
    [
        *ALWAYS,
        *(pytest.param(chunk, marks=pytest.mark.long) for chunk in range(CHUNKS) if chunk not in ALWAYS),
    ],
)
def test_a_rollout_ends_whatever_goes_wrong(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        try:
            counts_of(seed)
        except Broken as exc:
            pytest.fail(f"seed {seed}: {exc}")


def test_the_seeds_cover_every_action_and_every_fault() -> None:
    """The seeds of `make test` cover every action and every event between actions."""
    counts: Counter[str] = Counter()
    for chunk in ALWAYS:
        for seed in range(chunk, SEEDS, CHUNKS):
            counts.update(counts_of(seed))
    met = ("extend", "tell", "retire", "stop", "refuse", "done", "killed", "swapped", "scaled")
    assert all(counts[event] for event in met), counts
    assert counts["retire by restart"]
    assert counts["retire by takeover"]


def unserved_ms(ending: Ending) -> int:
    return max(ending.world.worst_ms.values(), default=0)


@pytest.mark.parametrize("members", [0, 1, 2, 5])
@pytest.mark.parametrize("killed", [0.0, 0.2])
def test_a_good_revision_costs_no_rebalance(members: int, killed: float) -> None:
    for seed in range(5):
        ending = quiet(seed, members, Revision(), killed=killed)
        assert not ending.operator.stops
        assert ending.operator.new == "f-b"
        assert ending.world.group.rebalances == 0
        assert unserved_ms(ending) <= TICK_MS  # from its predecessor's fence to the next assignment
        assert ending.operator.counts["tell by restart"] == 0


@pytest.mark.parametrize(
    ("kind", "fallback"),
    [("crashes", "Restart"), ("stuck", "Restart"), ("crashes", "Stop"), ("slow", "Stop")],
)
@pytest.mark.parametrize("killed", [0.0, 0.2])
def test_a_bad_revision_stops_at_its_first_successor(kind: str, fallback: str, killed: float) -> None:
    for seed in range(5):
        ending = quiet(seed, 3, Revision(kind), fallback=fallback, killed=killed)
        assert len(ending.operator.stops) == 1
        assert ending.operator.back
        assert ending.world.group.rebalances == 0
        assert unserved_ms(ending) == 0


def test_a_revision_that_fails_when_it_runs_moves_no_member_permanently() -> None:
    for seed in range(5):
        ending = quiet(seed, 3, Revision("fails"))
        assert len(ending.operator.stops) == 1
        assert ending.operator.counts["extend"] == 1
        assert ending.world.worst_ms["f-0"] == ending.world.worst_ms["f-1"] == 0
        assert unserved_ms(ending) <= 15_000  # until its predecessor has taken back


def test_without_room_it_goes_on_by_restart_or_stops_as_the_spec_says() -> None:
    for seed in range(5):
        goes_on = quiet(seed, 3, Revision(), room=0)
        assert (goes_on.operator.new, goes_on.operator.stops) == ("f-b", [])
        assert goes_on.operator.counts["retire by restart"] >= 3
        assert goes_on.world.group.rebalances == 0
        stops = quiet(seed, 3, Revision(), room=0, fallback="Stop")
        assert stops.operator.back
        assert unserved_ms(stops) == 0


def test_from_a_revision_without_a_key_it_is_away_for_no_longer_than_it_drains() -> None:
    for seed in range(5):
        ending = quiet(seed, 3, Revision(), old=Revision(keyed=False))
        assert not ending.operator.stops
        assert ending.world.group.rebalances == 0
        assert unserved_ms(ending) <= DRAIN_MS + 3 * TICK_MS


def test_to_a_revision_without_a_key_it_goes_by_restart() -> None:
    for members in (1, 3):
        ending = quiet(1, members, Revision(keyed=False), room=0)
        assert not ending.operator.stops
        assert ending.operator.counts["retire by restart"] == members
        assert ending.world.group.rebalances == 0


def test_a_correction_follows_a_revision_that_fails() -> None:
    for seed in range(5):
        ending = quiet(seed, 3, Revision(), old=Revision("fails"))
        assert ending.operator.new == "f-b"
        assert not ending.operator.stops


def test_a_moved_member_gets_its_room_back_from_the_next_successor() -> None:
    """There is room for one pod less than wanted, and the next one to stand by was quicker."""
    world = World(random.Random(1), 3, Revision(), Revision(), room=3)
    operator = Operator(world, random.Random(1), policy(), watching_since_ms=world.now_ms)
    evicted = False
    while not operator.done:
        world.tick()
        operator.turn()
        waits = "f-b-1" in world.pods and not world.pods["f-b-1"].alive
        if waits and not evicted:
            evicted, world.pods["f-b-2"].ending_ms = True, world.now_ms
        assert world.now_ms < 2_000_000, operator.last
    assert evicted
    assert operator.counts["withdraw"] == 1
    assert not operator.stops


# -- the power of all this: rules taken away


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **more: value


MUTANTS: dict[str, tuple[object, str, Any]] = {
    "one that does not answer counts as dead": (takeover_steps, "unknown", _always(False)),
    "its predecessor goes before it has shown that it works": (takeover_context.Case, "lacks", _always("")),
    "nobody asks who the member is": (takeover_context.Case, "unready", _always("")),
    "it is told once only": (
        takeover_context.Case,
        "told_lately",
        lambda case: bool(case.note and case.note.told_ms),
    ),
    "a bad revision is waited for": (
        takeover_context.Case,
        "stop",
        lambda case, member, why, *_: case.wait(why),
    ),
    "nobody makes room": (takeover_steps, "_starved", _always("")),
    "a predecessor is always lost": (takeover_steps, "_lost", _always(True)),
    "a predecessor is never lost": (takeover_steps, "_lost", _always(False)),
    "restart helps everybody": (takeover_steps, "_restart_helps", _always(True)),
    "restart helps nobody": (takeover_steps, "_restart_helps", _always(False)),
    "a member in neither set is no concern": (
        takeover,
        "after_retiring",
        lambda case, member: None,
    ),
    "a draining predecessor is gone": (takeover_restart, "gone", _always(True)),
    "two move at once": (takeover, "move", lambda case, member: takeover._next(case)),
}


def _all_runs() -> None:
    for killed in (0.0, 0.2):
        test_a_good_revision_costs_no_rebalance(3, killed)
        test_a_bad_revision_stops_at_its_first_successor("crashes", "Restart", killed)
        test_a_bad_revision_stops_at_its_first_successor("stuck", "Restart", killed)
        test_a_bad_revision_stops_at_its_first_successor("slow", "Stop", killed)
    test_a_revision_that_fails_when_it_runs_moves_no_member_permanently()
    test_without_room_it_goes_on_by_restart_or_stops_as_the_spec_says()
    test_from_a_revision_without_a_key_it_is_away_for_no_longer_than_it_drains()
    test_to_a_revision_without_a_key_it_goes_by_restart()
    test_a_correction_follows_a_revision_that_fails()
    test_a_moved_member_gets_its_room_back_from_the_next_successor()
    for seed in range(SEEDS):
        rollout(seed)


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_removed_rule_is_detected(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead = MUTANTS[mutant]
    monkeypatch.setattr(where, name, instead)
    with pytest.raises((AssertionError, ValueError)) as caught:
        _all_runs()
    print(caught.value)  # shown with -rP
