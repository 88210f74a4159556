"""Rebalances, ownership and restart gaps from events."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.machine.events import WorkerEvent, parse_event
from slackwater_operator.local.machine.worker import backoff_ms
from slackwater_operator.local.report.timeline import Timeline, longest

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def play(*events: tuple[int, str, str, dict[str, Any]]) -> Timeline:
    timeline = Timeline()
    for at_ms, instance, name, data in events:
        timeline.take(WorkerEvent(at_ms, name, instance, data))
    return timeline


def joined(at_ms: int, instance: str, generation: int, follow_up: bool = False) -> Any:
    return (at_ms, instance, "joined", {"generation": generation, "follow_up": follow_up})


def assigned(at_ms: int, instance: str, *partitions: TopicPartition) -> Any:
    return (at_ms, instance, "assigned", {"partitions": [list(partition) for partition in partitions]})


def revoked(at_ms: int, instance: str, *partitions: TopicPartition) -> Any:
    return (at_ms, instance, "revoked", {"partitions": [list(partition) for partition in partitions]})


def exited(at_ms: int, instance: str, code: int = 0) -> Any:
    return (at_ms, instance, "exited", {"code": code})


def test_a_cooperative_rebalance_and_its_follow_up_count_as_one() -> None:
    timeline = play(
        joined(10, "a", 1),
        joined(20, "a", 2),
        joined(21, "b", 2),
        joined(30, "a", 3, True),
        joined(31, "b", 3),
    )
    assert timeline.rebalances() == 2
    assert timeline.rebalances(15, 40) == 1
    assert [generation.number for generation in timeline.generations(15, 40)] == [2, 3]
    assert timeline.generation == 3


def test_a_follow_up_reported_by_a_single_member_counts_for_all() -> None:
    timeline = play(joined(10, "a", 1), joined(20, "a", 2), joined(30, "b", 3), joined(31, "a", 3, True))
    assert timeline.rebalances() == 2


def test_generations_that_are_no_follow_ups_count_each() -> None:
    assert play(joined(10, "a", 1), joined(20, "a", 2), joined(30, "a", 3)).rebalances(15) == 2
    # A generation was passed over: its follow-up stands for both.
    assert play(joined(10, "a", 1), joined(20, "a", 3, True)).rebalances(15) == 1


def test_a_return_into_the_same_generation_is_no_rebalance() -> None:
    timeline = play(joined(10, "a", 4), exited(100, "a"), joined(350, "a", 4))
    assert timeline.rebalances(50) == 0
    (restart,) = timeline.restarts()
    assert (restart.away_ms, restart.same_generation) == (250, True)
    assert [restart.away_ms for restart in timeline.restarts()] == [250]


def test_a_restart_that_fails_on_the_way_counts_from_the_first_end() -> None:
    timeline = play(joined(10, "a", 4), exited(100, "a", -9), exited(200, "a", 1), joined(600, "a", 5))
    (restart,) = timeline.restarts()
    assert (restart.away_ms, restart.same_generation) == (500, False)


def test_a_removed_member_returns_as_a_new_member() -> None:
    timeline = play(joined(10, "a", 4), exited(100, "a"), (110, "a", "removed", {}), joined(900, "a", 6))
    assert timeline.restarts() == []


def test_the_gap_is_from_the_last_commit_to_the_first_record() -> None:
    first = {"session_timeout_ms": 10_000}
    timeline = play(
        joined(10, "a", 1),
        exited(1_000, "a"),
        joined(1_500, "a", 1),
        (2_000, "a", "first_records", {"partition": "t-0", "gap_ms": 1_100, **first}),
        (2_400, "a", "first_records", {"partition": "t-1", "gap_ms": 9_000, **first}),
    )
    (restart,) = timeline.restarts()
    assert restart.gap_ms == 1_100  # committed at 900, first record at 2000
    assert restart.partition_gap_ms == 9_000  # that partition had been idle before, too
    assert restart.session_share == pytest.approx(0.11)


def test_partitions_of_others_do_not_count_for_the_gap() -> None:
    timeline = play(
        joined(10, "a", 1),
        exited(1_000, "a"),
        joined(1_500, "a", 1),
        (2_000, "a", "first_records", {"partition": "t-0", "gap_ms": 1_100, "restart": True}),
        (2_100, "a", "first_records", {"partition": "t-1", "gap_ms": 5_000, "restart": False}),
    )
    (restart,) = timeline.restarts()
    assert (restart.gap_ms, restart.partition_gap_ms) == (1_100, 1_100)


def test_without_a_record_the_share_is_that_of_being_away() -> None:
    timeline = play(joined(10, "a", 1), exited(1_000, "a"), joined(1_500, "a", 1))
    (restart,) = timeline.restarts()
    assert (restart.gap_ms, restart.session_share) == (None, None)


def test_a_partition_is_unowned_from_its_holders_end_to_the_next_hold() -> None:
    timeline = play(
        assigned(100, "a", P0, P1), exited(1_000, "a"), assigned(1_300, "a", P0), assigned(1_700, "b", P1)
    )
    assert timeline.unowned_ms(0, 5_000) == {P0: 300, P1: 700}
    assert longest(timeline.unowned_ms(0, 5_000)) == 700
    assert timeline.unowned_ms(1_100, 1_500) == {P0: 200, P1: 400}
    assert timeline.unowned_ms(2_000, 3_000) == {P0: 0, P1: 0}
    assert (timeline.owner(P0), timeline.owner(P1)) == ("a", "b")


def test_draining_ends_the_hold_when_it_is_drained() -> None:
    timeline = play(
        assigned(100, "a", P0), (500, "a", "drained", {"ms": 3}), exited(900, "a"), assigned(1_000, "a", P0)
    )
    assert timeline.unowned_ms(0, 2_000) == {P0: 500}


def test_a_partition_without_a_new_owner_is_unowned_to_the_end() -> None:
    timeline = play(assigned(100, "a", P0), exited(600, "a", -9))
    assert timeline.unowned_ms(0, 2_000) == {P0: 1_400}
    assert timeline.owner(P0) is None


def test_events_of_two_workers_may_come_in_the_wrong_order() -> None:
    timeline = play(assigned(100, "a", P0), assigned(900, "b", P0), revoked(500, "a", P0))
    assert timeline.unowned_ms(0, 2_000) == {P0: 400}
    assert timeline.owner(P0) == "b"


def test_two_holders_leave_no_gap() -> None:
    timeline = play(
        assigned(100, "a", P0),
        assigned(400, "b", P0),
        exited(500, "a"),
        exited(800, "b"),
        assigned(900, "a", P0),
    )
    assert timeline.unowned_ms(0, 1_000) == {P0: 100}


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"[1]", b"{}", b'{"event": 3}', b"\xff\xfe", b'{"event":', b"null"]
)
def test_a_line_that_is_no_event(line: bytes) -> None:
    assert parse_event(line, instance="a", now_ms=1) is None


def test_an_event_is_the_instances_whose_stdout_it_is() -> None:
    event = parse_event(
        b'{"ts_ms": 5, "event": "joined", "instance": "b", "generation": 3}', instance="a", now_ms=1
    )
    assert event == WorkerEvent(5, "joined", "a", {"generation": 3})
    unstamped = parse_event(b'{"event": "joined"}', instance="a", now_ms=7)
    assert unstamped is not None
    assert unstamped.ts_ms == 7


def test_the_back_off_is_a_kubelets() -> None:
    assert [backoff_ms(failures) for failures in (0, 1, 2, 3, 4)] == [0, 0, 1_000, 2_000, 4_000]
    assert backoff_ms(50) == 30_000


def of(pod: str, event: tuple[int, str, str, dict[str, Any]]) -> WorkerEvent:
    """The event as one of the process `pod`."""
    at_ms, instance, name, data = event
    return WorkerEvent(at_ms, name, instance, data, pod)


def timeline_of(*events: WorkerEvent) -> Timeline:
    timeline = Timeline()
    for event in events:
        timeline.take(event)
    return timeline


def first_records(at_ms: int, gap_ms: int, partition: str = "t-0") -> Any:
    return (at_ms, "m-0", "first_records", {"partition": partition, "gap_ms": gap_ms, "restart": True})


TAKEN = (
    of("m-a-0", joined(10, "m-0", 4)),
    of("m-a-0", assigned(10, "m-0", P0, P1)),
    of("m-a-0", (1_000, "m-0", "handover", {"by": "m-b-0", "generation": 4})),
    of("m-b-0", joined(1_005, "m-0", 4)),
    of("m-b-0", assigned(1_006, "m-0", P0, P1)),
)


def test_a_takeover_is_no_restart_and_leaves_no_rebalance() -> None:
    fenced = of("m-a-0", (1_030, "m-0", "handed_over", {"by": "m-b-0"}))
    ended = of("m-a-0", exited(9_000, "m-0"))
    timeline = timeline_of(*TAKEN, fenced, ended, of("m-b-0", joined(20_000, "m-0", 5)))
    assert timeline.restarts() == []  # neither its predecessor's end nor a rebalance long after is one
    assert timeline.rebalances(500, 10_000) == 0
    (taken,) = timeline.takeovers()
    assert (taken.instance, taken.before, taken.pod) == ("m-0", "m-a-0", "m-b-0")
    assert (taken.joined_ms, taken.generation, taken.same_generation) == (1_005, 4, True)
    assert timeline.takeovers(1_006) == []


def test_handed_over_partitions_are_unowned_until_the_successor_has_them() -> None:
    timeline = timeline_of(*TAKEN)
    assert timeline.unowned_ms(0, 5_000) == {P0: 6, P1: 6}
    assert timeline.owner(P0) == "m-0"


def test_the_predecessors_end_takes_nothing_from_its_member() -> None:
    timeline = timeline_of(*TAKEN, of("m-a-0", exited(2_000, "m-0")))
    assert timeline.owner(P1) == "m-0"
    assert timeline.unowned_ms(1_500, 5_000) == {P0: 0, P1: 0}


def test_a_predecessor_whose_successor_does_not_come_goes_on() -> None:
    running = of("m-a-0", (1_400, "m-0", "phase", {"phase": "running"}))
    timeline = timeline_of(*TAKEN[:3], running)
    assert timeline.unowned_ms(0, 5_000) == {P0: 400, P1: 400}
    assert timeline.owner(P0) == "m-0"
    assert timeline.takeovers() == []


def test_the_pauses_of_a_takeover_are_those_that_its_successor_reports() -> None:
    """It says when rows were written; a partition that had none to write has no pause."""
    timeline = timeline_of(*TAKEN, of("m-b-0", first_records(1_010, 21)))
    assert timeline.takeovers()[0].longest_ms is None, "its first records are no rows yet"
    reported = {"from": "m-a-0", "forced": True, "pauses_ms": {"t-0": 14_012, "t-1": 40}}
    timeline.take(of("m-b-0", (15_000, "m-0", "takeover", reported)))
    timeline.take(of("m-b-0", first_records(90_000, 80_000, "t-1")))  # of a rebalance
    (taken,) = timeline.takeovers()
    assert taken.pauses_ms == {P0: 14_012, P1: 40}
    assert taken.longest_ms == 14_012
    assert taken.forced


def test_a_takeover_into_another_generation_is_reported() -> None:
    (taken,) = timeline_of(*TAKEN[:3], of("m-b-0", joined(1_005, "m-0", 5))).takeovers()
    assert not taken.same_generation
    # It was fenced, and had said so, before its successor was heard of: then the successor says it.
    fenced = of("m-a-0", (1_001, "m-0", "handed_over", {"by": "m-b-0"}))
    late = timeline_of(*TAKEN[:3], fenced, of("m-b-0", joined(1_005, "m-0", 5)))
    assert late.takeovers()[0].same_generation
    late.take(of("m-b-0", (1_100, "m-0", "takeover", {"generation_before": 4, "generation": 5})))
    assert not late.takeovers()[0].same_generation


def test_a_successor_of_an_ended_process_counts_as_a_restart() -> None:
    timeline = timeline_of(
        of("m-a-0", joined(10, "m-0", 4)),
        of("m-a-0", exited(1_000, "m-0", -9)),
        of("m-b-0", joined(1_300, "m-0", 4)),
        of("m-b-0", first_records(1_400, 450)),
    )
    assert timeline.takeovers() == []
    (restart,) = timeline.restarts()
    assert (restart.away_ms, restart.gap_ms, restart.same_generation) == (300, 450, True)


def test_a_successor_that_ends_in_standby_is_not_its_members_end() -> None:
    timeline = timeline_of(
        of("m-a-0", joined(10, "m-0", 4)),
        of("m-b-0", exited(500, "m-0", -9)),
        of("m-a-0", exited(1_000, "m-0")),
        of("m-a-0", joined(1_200, "m-0", 4)),
    )
    (restart,) = timeline.restarts()
    assert (restart.ended_ms, restart.away_ms) == (1_000, 200)


def test_a_seat_that_is_taken_back_goes_the_other_way() -> None:
    fenced = of("m-a-0", (1_030, "m-0", "handed_over", {"by": "m-b-0"}))
    timeline = timeline_of(*TAKEN, fenced, of("m-a-0", joined(5_000, "m-0", 4)))
    assert [(takeover.before, takeover.pod) for takeover in timeline.takeovers()] == [
        ("m-a-0", "m-b-0"),
        ("m-b-0", "m-a-0"),
    ]
