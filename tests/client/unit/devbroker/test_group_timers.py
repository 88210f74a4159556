"""Timers of the coordinator, each looked at one millisecond before its deadline and at it."""

from __future__ import annotations

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


def test_a_commit_of_unknown_partitions_only_does_not_refresh() -> None:
    bench = Bench()
    member_id = bench.form_static("a", "b")["b"]
    bench.advance(4_000)
    assert bench.commit(member_id, 1, "b", partition=99) is E.UNKNOWN_TOPIC_OR_PARTITION
    evicted_after(bench, member_id, SESSION_MS - 4_000)


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


def test_a_delay_of_zero_ends_at_the_next_poll() -> None:
    bench = Bench(GroupConfig(initial_rebalance_delay_ms=0))
    call = bench.join(instance="a")
    assert call.parked
    bench.coordinator.poll(bench.now_ms)
    assert call.answer.generation_id == 1


# -- the rebalance timeout


def test_when_nobody_syncs_the_group_becomes_empty() -> None:
    bench = Bench()
    bench.join(instance="a", session_ms=LONG_MS)
    bench.advance(DELAY_MS + REBALANCE_MS)
    assert (bench.state, bench.generation) == ("Empty", 2)


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
