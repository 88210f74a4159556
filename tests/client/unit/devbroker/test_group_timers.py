"""Timers of the coordinator, each looked at one millisecond before its deadline and at it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slackwater.devbroker.group import GroupConfig
from slackwater.devbroker.group.rebalance import KeyedTimers
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, REBALANCE_MS, SESSION_MS, Bench

E = ErrorCode
LONG_MS = 600_000


def evicted_after(bench: Bench, member_id: str, ms: float) -> None:
    """Asserts that the member is there for ``ms`` from now on, and not longer."""
    bench.advance(ms - 1)
    assert member_id in bench.member_ids
    bench.advance(1)
    assert member_id not in bench.member_ids


# -- sessions


def test_a_session_ends_at_its_timeout_and_rebalances() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    bench.advance(1_000)
    bench.heartbeat(ids["a"], 1, "a")
    evicted_after(bench, ids["b"], SESSION_MS - 1_000)
    assert bench.state == "PreparingRebalance"
    assert bench.heartbeat(ids["a"], 1, "a") is E.REBALANCE_IN_PROGRESS


def _heartbeat(bench: Bench, who: str, generation: int) -> object:
    return bench.heartbeat(who, generation, "b")


def _commit(bench: Bench, who: str, generation: int) -> object:
    return bench.commit(who, generation, "b")


def _sync(bench: Bench, who: str, generation: int) -> object:
    return bench.sync(who, generation, "b").error


def _join(bench: Bench, who: str, generation: int) -> object:
    return bench.join(who, "b").error


@pytest.mark.parametrize(
    ("what", "generation", "answer", "refreshes"),
    [
        (_heartbeat, 1, E.NONE, True),
        (_commit, 1, E.NONE, True),
        (_heartbeat, 9, E.ILLEGAL_GENERATION, False),
        (_commit, 9, E.ILLEGAL_GENERATION, False),
        (_sync, 1, E.NONE, False),
        (_join, 1, E.NONE, False),
    ],
)
def test_what_refreshes_a_session_in_stable(
    what: Callable[[Bench, str, int], object], generation: int, answer: ErrorCode, refreshes: bool
) -> None:
    bench = Bench()
    member_id = bench.form_static("a", "b")["b"]
    bench.advance(4_000)
    assert what(bench, member_id, generation) is answer
    evicted_after(bench, member_id, SESSION_MS if refreshes else SESSION_MS - 4_000)


@pytest.mark.parametrize("what", [_heartbeat, _commit])
def test_heartbeat_and_commit_refresh_while_preparing(what: Callable[[Bench, str, int], object]) -> None:
    bench = Bench()
    member_id = bench.form_static("a", "b")["b"]
    bench.join(instance="c")
    bench.advance(4_000)
    what(bench, member_id, 1)
    evicted_after(bench, member_id, SESSION_MS)


def test_a_commit_of_unknown_partitions_only_does_not_refresh() -> None:
    bench = Bench()
    member_id = bench.form_static("a", "b")["b"]
    bench.advance(4_000)
    assert bench.commit(member_id, 1, "b", partition=99) is E.UNKNOWN_TOPIC_OR_PARTITION
    evicted_after(bench, member_id, SESSION_MS - 4_000)


def test_a_static_rejoin_starts_the_clock_anew_but_with_the_old_timeout() -> None:
    bench = Bench()
    bench.form_static("a", "b")
    bench.advance(4_000)
    back = bench.join(instance="b", session_ms=20_000).answer.member_id
    evicted_after(bench, back, SESSION_MS)


@pytest.mark.parametrize("what", [_heartbeat, _commit])
def test_the_first_heartbeat_or_commit_brings_the_new_timeout(
    what: Callable[[Bench, str, int], object],
) -> None:
    bench = Bench()
    bench.form_static("a", "b")
    back = bench.join(instance="b", session_ms=20_000).answer.member_id
    what(bench, back, 1)
    evicted_after(bench, back, 20_000)


def test_the_session_of_an_absent_static_member_starts_anew_when_the_join_completes() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b", session_ms=100_000)
    bench.join(ids["a"], "a", session_ms=100_000)
    bench.advance(REBALANCE_MS)
    bench.sync(ids["a"], 2, "a")
    bench.advance(REBALANCE_MS - 1)
    assert ids["b"] in bench.member_ids


def test_a_return_ends_the_session_of_the_old_member_id() -> None:
    bench = Bench()
    bench.form_static("a")
    bench.advance(4_000)
    bench.join(instance="a")
    assert bench.coordinator.poll(bench.now_ms) == bench.now_ms + SESSION_MS


def test_parked_joins_do_not_expire() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b", session_ms=SESSION_MS, rebalance_ms=LONG_MS)
    call = bench.join(ids["a"], "a", rebalance_ms=LONG_MS)
    for _ in range(20):
        bench.advance(SESSION_MS - 1)
        assert bench.heartbeat(ids["b"], 1, "b") is E.REBALANCE_IN_PROGRESS
    assert call.parked
    assert ids["a"] in bench.member_ids


def test_parked_syncs_do_not_expire_and_start_a_session_when_answered() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name, rebalance_ms=LONG_MS) for name in "ab"}
    bench.advance(2 * DELAY_MS)
    ids = {name: call.answer.member_id for name, call in joins.items()}
    sync = bench.sync(ids["b"], 1, "b")
    for _ in range(5):
        bench.advance(SESSION_MS - 1)
        bench.heartbeat(ids["a"], 1, "a")
    assert sync.parked
    bench.sync(ids["a"], 1, "a", {})
    assert sync.error is E.NONE
    bench.advance(SESSION_MS - 1)
    bench.heartbeat(ids["a"], 1, "a")
    assert ids["b"] in bench.member_ids
    bench.advance(1)
    assert ids["b"] not in bench.member_ids


# -- the initial delay


def test_the_initial_delay_of_an_empty_group() -> None:
    bench = Bench()
    call = bench.join(instance="a")
    bench.advance(DELAY_MS - 1)
    assert call.parked
    bench.advance(1)
    assert call.answer.generation_id == 1


def test_each_newcomer_extends_the_delay_up_to_the_rebalance_timeout() -> None:
    bench = Bench()
    first = bench.join(instance="0", rebalance_ms=10_000)
    for newcomer in range(1, 10):
        bench.advance(1_200)
        bench.join(instance=str(newcomer), rebalance_ms=10_000)
        if not first.parked:
            break
    # Without the bound it would go on: extended at 3, 6 and 9 s, the last time by what is left.
    assert bench.now_ms - 1_000 == 10_800
    assert len(first.answer.members) == 9


def test_without_a_newcomer_the_delay_is_not_extended() -> None:
    bench = Bench()
    first = bench.join(instance="0")
    bench.advance(1_000)
    bench.join(instance="1")
    bench.advance(2_000)
    assert first.parked
    bench.advance(DELAY_MS - 1)
    assert first.parked
    bench.advance(1)
    assert first.answer.generation_id == 1


def test_no_delay_where_the_group_is_not_empty() -> None:
    bench = Bench()
    ids = bench.form_static("a")
    call = bench.join(instance="b")
    assert bench.join(ids["a"], "a").answer.generation_id == 2
    assert call.answer.generation_id == 2


def test_a_delay_of_zero_ends_at_the_next_poll() -> None:
    bench = Bench(GroupConfig(initial_rebalance_delay_ms=0))
    call = bench.join(instance="a")
    assert call.parked
    bench.coordinator.poll(bench.now_ms)
    assert call.answer.generation_id == 1


# -- the rebalance timeout


def test_the_join_waits_for_an_absent_static_member_until_the_largest_rebalance_timeout() -> None:
    bench = Bench()
    ids = _of_two(bench, away_rebalance_ms=90_000)
    call = bench.join(ids["a"], "a", session_ms=LONG_MS, rebalance_ms=20_000)
    bench.advance(90_000 - 1)
    assert call.parked
    bench.advance(1)
    assert call.answer.generation_id == 2
    assert {member.group_instance_id for member in call.answer.members} == {"a", "away"}


def test_the_join_waits_no_longer_than_the_absent_members_session() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    call = bench.join(ids["a"], "a")
    bench.advance(SESSION_MS - 1)
    assert call.parked
    bench.advance(1)
    assert len(call.answer.members) == 1


def test_the_away_member_stays_until_it_misses_the_sync_then_another_rebalance() -> None:
    bench = Bench()
    ids = _of_two(bench)
    call = bench.join(ids["a"], "a", session_ms=LONG_MS)
    bench.advance(REBALANCE_MS)
    assert call.answer.generation_id == 2
    assert bench.sync(ids["a"], 2, "a", {ids["a"]: b"x"}).error is E.NONE
    assert bench.heartbeat(ids["away"], 1, "away") is E.ILLEGAL_GENERATION
    bench.advance(REBALANCE_MS - 1)
    assert bench.state == "Stable"
    bench.advance(1)
    assert bench.state == "PreparingRebalance"
    assert bench.member_ids == [ids["a"]]
    assert bench.join(ids["a"], "a").answer.generation_id == 3


def test_a_leader_that_does_not_sync_is_evicted_with_all_others_who_did_not() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name, session_ms=LONG_MS) for name in "abc"}
    bench.advance(2 * DELAY_MS)
    ids = {name: call.answer.member_id for name, call in joins.items()}
    sync = bench.sync(ids["b"], 1, "b")
    bench.advance(REBALANCE_MS - 1)
    assert sync.parked
    bench.advance(1)
    assert sync.error is E.REBALANCE_IN_PROGRESS
    assert bench.member_ids == [ids["b"]]
    assert bench.described()["leader"] == ids["b"]


def test_when_nobody_syncs_the_group_becomes_empty() -> None:
    bench = Bench()
    bench.join(instance="a", session_ms=LONG_MS)
    bench.advance(DELAY_MS + REBALANCE_MS)
    assert (bench.state, bench.generation) == ("Empty", 2)


def test_when_nobody_joins_the_group_stays_in_preparing() -> None:
    bench = Bench()
    bench.form_static("a", "b", "c", session_ms=LONG_MS)
    bench.leave(("", "c"))
    bench.advance(4 * REBALANCE_MS)
    assert bench.state == "PreparingRebalance"
    assert len(bench.member_ids) == 2


# -- the echo of a return


def test_a_return_in_stable_of_one_that_owed_its_sync_echoes() -> None:
    bench = Bench()
    ids = _of_two(bench)
    bench.join(ids["a"], "a", session_ms=LONG_MS)
    bench.advance(REBALANCE_MS)
    bench.sync(ids["a"], 2, "a", {ids["a"]: b"x", ids["away"]: b"y"})
    bench.advance(1_000)
    back = bench.join(instance="away", session_ms=LONG_MS).answer
    assert back.generation_id == 2
    assert bench.sync(back.member_id, 2, "away").answer.assignment == b"y"
    bench.advance(REBALANCE_MS - 1_000 - 1)
    assert bench.state == "Stable"
    bench.advance(1)
    assert bench.state == "PreparingRebalance"
    assert bench.member_ids == [ids["a"], back.member_id]


def test_one_that_died_between_join_and_sync_echoes_too() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name, session_ms=LONG_MS) for name in "ab"}
    bench.advance(2 * DELAY_MS)
    joined_ms = 0
    ids = {name: call.answer.member_id for name, call in joins.items()}
    bench.sync(ids["a"], 1, "a", {ids["b"]: b"y"})
    back = bench.join(instance="b", session_ms=LONG_MS).answer
    assert bench.sync(back.member_id, 1, "b").answer.assignment == b"y"
    bench.advance(REBALANCE_MS - joined_ms - 1)
    assert bench.state == "Stable"
    bench.advance(1)
    assert bench.state == "PreparingRebalance"
    assert len(bench.member_ids) == 2


@pytest.mark.parametrize("during", ["PreparingRebalance", "CompletingRebalance"])
def test_a_return_during_the_rebalance_does_not_echo(during: str) -> None:
    bench = Bench()
    ids = _of_two(bench)
    call = bench.join(ids["a"], "a", session_ms=LONG_MS)
    if during == "CompletingRebalance":
        bench.advance(REBALANCE_MS)
    assert bench.state == during
    back = bench.join(instance="away", session_ms=LONG_MS)
    if during == "CompletingRebalance":
        call = bench.join(ids["a"], "a", session_ms=LONG_MS)
    generation = call.answer.generation_id
    bench.sync_all({"a": ids["a"], "away": back.answer.member_id})
    bench.advance(3 * REBALANCE_MS)
    assert (bench.state, bench.generation) == ("Stable", generation)


def _of_two(bench: Bench, away_rebalance_ms: int = REBALANCE_MS) -> dict[str, str]:
    """A Stable group of ``a`` (leader) and ``away``, with sessions too long to matter."""
    joins = {
        "a": bench.join(instance="a", session_ms=LONG_MS),
        "away": bench.join(instance="away", session_ms=LONG_MS, rebalance_ms=away_rebalance_ms),
    }
    bench.advance(2 * DELAY_MS)
    ids = {name: call.answer.member_id for name, call in joins.items()}
    bench.sync_all(ids)
    return ids


# -- the queue itself


def test_timers_fire_in_order_and_a_key_scheduled_again_fires_once() -> None:
    timers, fired = KeyedTimers(), []
    timers.advance(100)
    timers.schedule(("b",), 5, lambda: fired.append("b"))
    timers.schedule(("a",), 3, lambda: fired.append("early"))
    timers.schedule(("a",), 5, lambda: fired.append("a"))
    timers.schedule(("c",), 1, lambda: fired.append("c"))
    timers.cancel(("c",))
    assert timers.next_deadline_ms() == 105
    timers.advance(104)
    assert fired == []
    timers.advance(105)
    assert fired == ["b", "a"]
    assert timers.next_deadline_ms() is None


def test_time_does_not_run_backwards() -> None:
    timers = KeyedTimers()
    timers.advance(100)
    timers.advance(50)
    assert timers.now_ms == 100


def test_a_key_scheduled_very_often_keeps_the_queue_short() -> None:
    timers = KeyedTimers()
    for _ in range(10_000):
        timers.schedule(("a",), 5, lambda: None)
    assert len(timers._heap) <= 100


def test_a_timer_may_schedule_one_that_is_due_at_once() -> None:
    timers, fired = KeyedTimers(), []
    timers.schedule(("a",), 1, lambda: timers.schedule(("b",), 0, lambda: fired.append("b")))
    timers.advance(1)
    assert fired == ["b"]
