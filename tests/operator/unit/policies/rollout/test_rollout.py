"""The rolling restart, step by step, and who joins and who is removed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView, MemberView, WorkerView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.membership.joins_and_removals import decide_gate, decide_removal
from slackwater_operator.policies.rollout.disruption_budget import DisruptionInput, decide_disruption
from slackwater_operator.policies.rollout.rebalance_causes import ForcedWatch
from slackwater_operator.policies.rollout.restarts import (
    HOPELESS,
    NOT_BEGUN_MS,
    RestartView,
    RolloutDecision,
    RolloutInput,
    RolloutPolicy,
    decide_rollback,
    decide_rollout,
    refusal,
    width,
)
from slackwater_operator.policies.rollout.stability import unsettled

NOW = 1_000_000
PARTITIONS = [TopicPartition("t", number) for number in range(6)]
POLICY = RolloutPolicy(max_unavailable=1, session_budget=0.5, session_timeout_ms=20_000)


def worker(number: int, **more: Any) -> WorkerView:
    base = WorkerView(
        f"w-{number}", True, "running", "1", 7, number == 0, lag=0, running_since_ms=NOW - 60_000
    )
    return replace(base, **more)


def group(*numbers: int, state: str = "Stable", synced: bool = True) -> GroupView:
    members = [
        MemberView(f"id-{number}", f"w-{number}", frozenset(PARTITIONS[number :: len(numbers)]), synced)
        for number in numbers
    ]
    return GroupView(state, tuple(members))


def decide(*workers: WorkerView, policy: RolloutPolicy = POLICY, **more: Any) -> RolloutDecision:
    base = RolloutInput("2", group(0, 1, 2), workers, (), (1_000,), NOW)
    decision = decide_rollout(policy, replace(base, **more))
    assert decision.reason
    return decision


def test_the_first_restarted_worker_is_not_the_leader() -> None:
    decision = decide(worker(0), worker(1), worker(2))
    assert (decision.action, decision.restart) == ("restart", ("w-1",))


def test_the_leader_is_restarted_last() -> None:
    decision = decide(worker(0), worker(1, revision="2"), worker(2, revision="2"))
    assert decision.restart == ("w-0",)
    new_leader = decide(worker(0, leader=False), worker(1, leader=True), worker(2, revision="2"))
    assert new_leader.restart == ("w-0",)


def test_a_rollout_is_done_when_all_workers_have_the_revision() -> None:
    assert decide(*[worker(number, revision="2") for number in range(3)]).action == "done"


@pytest.mark.parametrize(
    "state", ["PreparingRebalance", "CompletingRebalance", "Empty", "Dead"]
)  # fmt: skip
def test_nobody_is_stopped_while_the_group_moves(state: str) -> None:
    decision = decide(worker(0), worker(1), worker(2), group=group(0, 1, 2, state=state))
    assert (decision.action, decision.restart) == ("wait", ())
    assert state in decision.reason


def test_nobody_is_stopped_while_not_all_are_in_and_synced() -> None:
    assert "w-2 is not in the group" in decide(worker(0), worker(1), worker(2), group=group(0, 1)).reason
    unsynced = decide(worker(0), worker(1), worker(2), group=group(0, 1, 2, synced=False))
    assert (unsynced.action, unsynced.restart) == ("wait", ())
    late = decide(worker(0), worker(1), worker(2, generation=6))
    assert (late.action, late.reason) == ("wait", "w-2 is in generation 6, not yet in 7")
    ill = decide(worker(0), worker(1), worker(2, phase="warming"))
    assert (ill.action, ill.reason) == ("wait", "w-2 is warming")
    assert decide(worker(0), worker(1), worker(2), group=None).action == "wait"


UNDER_WAY = (RestartView("w-1", 7, 500),)


def restarting(**more: Any) -> RolloutDecision:
    back = worker(1, revision="2", ended_ms=NOW - 3_000, running_since_ms=NOW - 1_000)
    return decide(worker(0), replace(back, **more), worker(2), under_way=UNDER_WAY)


def test_the_next_worker_waits_until_the_last_is_back() -> None:
    assert restarting(revision="1", phase="draining").reason == "w-1 is draining"
    assert restarting(alive=False, phase="", generation=-1).reason == "w-1 has not started yet"
    assert restarting(phase="joining", generation=-1).reason == "w-1 is joining"
    decision = restarting()
    assert (decision.back, decision.restart) == (("w-1",), ("w-2",))


def test_the_next_worker_waits_until_the_last_has_caught_up() -> None:
    behind = restarting(lag=5_000)
    assert (behind.action, behind.reason) == (
        "wait",
        "w-1 has restarted and is catching up: 5000 records behind, 500 before the restart",
    )
    assert restarting(lag=None).reason == "w-1 has restarted, but its lag is unknown"
    assert restarting(lag=1_400).restart == ("w-2",)


def test_a_lag_that_never_shrinks_does_not_hold_for_ever() -> None:
    assert restarting(lag=5_000, running_since_ms=NOW - 10_001).restart == ("w-2",)
    assert restarting(lag=5_000, running_since_ms=NOW - 9_999).restart == ()


def test_a_restart_over_budget_stops_the_roll() -> None:
    late = restarting(alive=False, phase="", generation=-1, ended_ms=NOW - 10_001, failures=3)
    assert late.action == "stop"
    assert "out of the group for 10 s (it has failed 3 times), more than 10 s (50% of" in late.reason
    assert restarting(alive=False, phase="", generation=-1, ended_ms=NOW - 9_999).action == "wait"


def test_a_draining_worker_is_not_away() -> None:
    assert restarting(revision="1", phase="draining", ended_ms=NOW - 900_000).action == "wait"


def test_a_return_in_another_generation_stops_the_roll() -> None:
    decision = restarting(generation=8)
    assert decision.action == "stop"
    assert "generation 8, not 7" in decision.reason


def test_a_group_of_the_consumer_protocol_has_epochs() -> None:
    epochs = replace(group(0, 1, 2), consumer_protocol=True)
    assert "epoch 8, not 7" in decide(
        worker(0), worker(1, generation=8), worker(2), under_way=(RestartView("w-1", 7, 0),), group=epochs,
        revision="1",
    ).reason  # fmt: skip
    late = [worker(0), worker(1), worker(2, generation=6)]
    assert decide(*late, group=epochs).reason == "w-2 is in epoch 6, not yet in 7"
    assert unsettled(epochs, late, {}, PARTITIONS) == "workers are in epochs 6, 7"


TWO = replace(POLICY, max_unavailable=2)
ROOMY: dict[str, Any] = {"produced_per_s": 100.0, "capacity_per_s": 100.0}
"""One worker alone carries what is produced."""


def test_several_at_once_but_never_with_the_leader() -> None:
    workers = [worker(number) for number in range(5)]
    workers[4] = worker(4, revision="2")
    all_in = group(0, 1, 2, 3, 4)

    def two(*workers: WorkerView, **more: Any) -> RolloutDecision:
        return decide(*workers, policy=TWO, group=all_in, **ROOMY, **more)

    assert two(*workers).restart == ("w-1", "w-2")
    workers[1] = worker(1, revision="2")
    workers[2] = worker(2, revision="2", phase="joining", generation=-1, ended_ms=NOW - 100)
    away = (RestartView("w-2", 7, 0),)
    assert two(*workers, under_way=away).restart == ("w-3",)
    workers[3] = worker(3, revision="2")
    leader_left = two(*workers, under_way=away)
    assert (leader_left.action, leader_left.restart) == ("wait", ())
    assert leader_left.reason == "the group leader is restarted last; w-2 is not back yet"


def test_the_first_with_a_new_revision_goes_alone_until_it_is_back() -> None:
    workers = [worker(number) for number in range(4)]
    all_in = group(0, 1, 2, 3)
    first = decide(*workers, policy=TWO, group=all_in, **ROOMY)
    assert first.restart == ("w-1",)
    assert "no worker runs this revision yet" in first.reason
    workers[1] = worker(1, revision="2", phase="joining", generation=-1, ended_ms=NOW - 100)
    away = (RestartView("w-1", 7, 0),)
    waits = decide(*workers, policy=TWO, group=all_in, under_way=away, **ROOMY)
    assert (waits.action, waits.restart, waits.reason) == ("wait", (), "w-1 is joining")
    workers[1] = worker(1, revision="2")
    both = decide(*workers, policy=TWO, group=all_in, under_way=away, **ROOMY)
    assert (both.back, both.restart) == (("w-1",), ("w-2", "w-3"))


def test_without_a_gap_measured_they_go_one_by_one() -> None:
    workers = [worker(0), worker(1), worker(2, revision="2")]
    assert decide(*workers, policy=TWO, gaps_ms=(), **ROOMY).restart == ("w-1",)


@pytest.mark.parametrize(
    ("allowed", "workers", "produced", "capacity", "expected"),
    [
        (1, 10, 0.0, 100.0, 1),
        (3, 10, 700.0, 100.0, 3),
        (3, 10, 700.1, 100.0, 2),  # 8 must stay for that
        (3, 10, 900.0, 100.0, 1),
        (3, 10, 5_000.0, 100.0, 1),  # too much anyhow: it goes on, one by one
        (3, 10, None, 100.0, 1),
        (3, 10, 0.0, None, 1),
        (3, 10, 0.0, 0.0, 1),
        (5, 3, 0.0, 100.0, 3),
    ],
)
def test_as_many_at_once_as_the_others_can_carry(
    allowed: int, workers: int, produced: float | None, capacity: float | None, expected: int
) -> None:
    assert width(replace(POLICY, max_unavailable=allowed), workers, produced, capacity) == expected


def test_a_paused_rollout_waits() -> None:
    decision = decide(worker(0), worker(1), policy=replace(POLICY, paused=True))
    assert (decision.action, decision.reason) == ("wait", "spec.rollout.paused is true")


def test_what_does_not_fit_is_refused_with_the_setting_that_would() -> None:
    decision = decide(worker(0), worker(1), worker(2), gaps_ms=(1_000, 12_000))
    assert (decision.action, decision.restart) == ("refuse", ())
    assert "session.timeout.ms] to 24000, or spec.rollout.sessionBudget to 60%" in decision.reason
    by_config = replace(POLICY, session_config="consumer.session.timeout.ms")
    assert "raise the group's config consumer.session.timeout.ms to 24000" in refusal(by_config, (12_000,))
    longer = replace(POLICY, session_timeout_ms=24_000)
    assert refusal(longer, (12_000,)) == ""
    wider = replace(POLICY, session_budget=0.6)
    assert refusal(wider, (12_000,)) == ""
    assert "sessionBudget" not in refusal(POLICY, (19_500,))  # nearly all of it is no budget


def test_orphans_are_removed_only_when_their_processes_are_gone() -> None:
    ours = ["w-0", "w-1", "w-2", "w-3"]
    view = group(0, 1, 2, 3)
    waits = decide_removal(view, ours=ours, wanted=ours[:2], alive=[*ours[:2], "w-3"])
    assert (waits.remove, waits.waiting_for) == ((), ("w-3",))
    now = decide_removal(view, ours=ours, wanted=ours[:2], alive=ours[:2])
    assert now.remove == ("w-2", "w-3")
    after = decide_removal(group(0, 1), ours=ours, wanted=ours[:2], alive=ours[:2])
    assert after.remove == ()
    assert decide_removal(None, ours=ours, wanted=ours[:2], alive=ours[:2]).remove == ()


def test_a_stranger_is_left_alone() -> None:
    view = group(0, 1, 9)
    assert decide_removal(view, ours=["w-0", "w-1"], wanted=["w-0"], alive=["w-0"]).remove == ("w-1",)


def test_a_wanted_worker_that_is_down_is_not_removed() -> None:
    assert decide_removal(group(0, 1), ours=["w-0", "w-1"], wanted=["w-0", "w-1"], alive=["w-0"]).remove == ()


def warm(number: int, since_ms: int = NOW - 1_000) -> WorkerView:
    return worker(number, phase="warm", generation=-1, waiting_since_ms=since_ms)


def gate(view: GroupView | None, *workers: WorkerView) -> tuple[str, ...]:
    return decide_gate(view, workers, now_ms=NOW, patience_ms=30_000).open


def test_a_batch_joins_when_the_last_of_it_is_warm() -> None:
    running = group(0)
    assert gate(running, worker(0), warm(1), warm(2)) == ("w-1", "w-2")
    assert gate(running, worker(0), warm(1), worker(2, phase="warming")) == ()
    assert gate(running, worker(0), warm(1), worker(2, alive=False, phase="")) == ()
    assert gate(GroupView("Empty"), warm(1), warm(2)) == ("w-1", "w-2")


def test_nobody_joins_while_the_group_moves_or_is_unknown() -> None:
    assert gate(group(0, state="PreparingRebalance"), warm(1)) == ()
    assert gate(None, warm(1)) == ()


def test_a_batch_does_not_wait_for_ever() -> None:
    straggler = worker(2, phase="warming")
    assert gate(group(0), warm(1, NOW - 30_000), straggler) == ("w-1",)
    assert gate(group(0), warm(1, NOW - 29_999), straggler) == ()


def test_a_returning_member_is_nobody_to_wait_for() -> None:
    assert gate(group(0, 2), warm(1), worker(2, alive=False, phase="")) == ("w-1",)


def held(view: GroupView) -> dict[str, frozenset[TopicPartition]]:
    return {member.instance_id: member.partitions for member in view.members if member.instance_id}


def test_settled_means_all_in_one_generation_holding_everything() -> None:
    view = group(0, 1)
    workers = [worker(0), worker(1)]

    def missing(view: GroupView | None, *workers: WorkerView, more: tuple[TopicPartition, ...] = ()) -> str:
        return unsettled(view, workers, held(view) if view else {}, [*PARTITIONS, *more])

    assert missing(view, *workers) == ""
    assert "Preparing" in missing(replace(view, state="PreparingRebalance"), *workers)
    assert "w-1 is warming" in missing(view, worker(0), worker(1, phase="warming"))
    assert "w-2 is not in" in missing(view, *workers, worker(2))
    assert "w-1 is in the group, but" in missing(view, worker(0))
    assert "generations 6, 7" in missing(view, worker(0), worker(1, generation=6))
    assert "not assigned to any member" in missing(view, *workers, more=(TopicPartition("u", 0),))
    assert missing(None, *workers)
    stale = {**held(view), "w-1": frozenset(PARTITIONS)}
    assert "w-1 has not taken up all its assigned partitions yet" in unsettled(
        view, workers, stale, PARTITIONS
    )


def test_no_workers_are_settled_when_the_group_is_empty() -> None:
    assert unsettled(GroupView("Empty"), [], {}, PARTITIONS) == ""
    assert "still Stable with 2 members" in unsettled(group(0, 1), [], {}, PARTITIONS)


# -- on Kubernetes: incarnations by uid --


def pod(number: int, **more: Any) -> WorkerView:
    return worker(number, **{"uid": f"uid-{number}", **more})


NOTED = RestartView("w-1", 7, 500, "uid-1", NOW - 100_000)


def with_w1(view: WorkerView, noted: RestartView = NOTED, **more: Any) -> RolloutDecision:
    return decide(pod(0), view, pod(2), under_way=(noted,), **more)


def test_a_noted_restart_that_has_not_begun_is_waited_for_and_then_begun() -> None:
    waits = with_w1(pod(1), replace(NOTED, since_ms=NOW - NOT_BEGUN_MS + 1))
    assert (waits.action, waits.reason) == ("wait", "w-1 has not been told to end yet")
    begun = with_w1(pod(1), replace(NOTED, since_ms=NOW - NOT_BEGUN_MS))
    assert (begun.action, begun.restart, begun.back) == ("restart", ("w-1",), ())
    unsafe = with_w1(pod(1), replace(NOTED, since_ms=NOW - NOT_BEGUN_MS), group=group(0, 1))
    assert (unsafe.action, unsafe.restart, unsafe.back) == ("wait", (), ())
    ending = with_w1(pod(1, terminating=True), replace(NOTED, since_ms=NOW - 90_000))
    assert (ending.action, ending.reason) == ("wait", "w-1 is draining")


def test_another_uid_is_another_incarnation_whatever_its_revision() -> None:
    """The wanted revision changed once more while the worker was away: it is back, and restarted again."""
    came_back = pod(1, uid="uid-9", revision="1.5", ended_ms=NOW - 2_000, running_since_ms=NOW - 500)
    decision = with_w1(came_back)
    assert decision.back == ("w-1",)
    assert decision.restart == ("w-1",)


def test_a_pod_that_is_not_there_is_away() -> None:
    gone = pod(1, uid="", revision="", alive=False, phase="", generation=-1, ended_ms=None)
    just = replace(NOTED, since_ms=NOW - 3_000)
    assert with_w1(gone, just).action == "wait"
    late = replace(NOTED, since_ms=NOW - 10_001)  # its end was not seen: counted from the note
    assert with_w1(gone, late).action == "stop"
    assert with_w1(gone, replace(late, since_ms=NOW - 10_000)).action == "wait"
    stale = replace(gone, ended_ms=NOW - 900_000)  # the end of a process long before this restart
    assert with_w1(stale, just).action == "wait"


@pytest.mark.parametrize("trouble", ["Unschedulable: 0/3 nodes are available", "ImagePullBackOff"])
def test_what_keeps_a_pod_counts_against_the_session_all_the_same(trouble: str) -> None:
    held = pod(1, uid="uid-9", alive=False, phase="", generation=-1, ended_ms=NOW - 9_000, trouble=trouble)
    assert with_w1(held).reason == f"w-1 has not started yet ({trouble})"
    stop = with_w1(replace(held, ended_ms=NOW - 10_001))
    assert (stop.action, stop.failed) == ("stop", "w-1")
    assert stop.reason.endswith(f": {trouble}")
    assert stop.summary == f"w-1 did not come back within the budget: {trouble}"


def test_one_that_fails_again_and_again_stops_it_before_the_budget() -> None:
    failing = pod(
        1, uid="uid-9", alive=False, phase="", generation=-1, ended_ms=NOW - 5_000, trouble="exit 2"
    )
    assert with_w1(replace(failing, failures=HOPELESS - 1)).action == "wait"
    stop = with_w1(replace(failing, failures=HOPELESS))
    assert (stop.action, stop.reason) == ("stop", "w-1 has failed 3 times in a row: exit 2")


def test_nobody_is_blamed_while_the_brokers_do_not_answer() -> None:
    late = pod(1, uid="uid-9", phase="joining", generation=-1, ended_ms=NOW - 60_000, failures=5)
    assert with_w1(late).action == "stop"
    assert with_w1(late, group=None).action == "wait"


def test_a_coordinator_that_moved_began_the_sessions_anew() -> None:
    late = pod(1, uid="uid-9", phase="joining", generation=-1, ended_ms=NOW - 20_000)
    assert with_w1(late, sessions_since_ms=NOW - 10_001).action == "stop"
    assert with_w1(late, sessions_since_ms=NOW - 10_000).action == "wait"


MOVED = "the group's coordinator moved from broker 1 to broker 2"


def test_a_rebalance_that_the_broker_forced_is_not_the_revisions_fault() -> None:
    back = pod(1, uid="uid-9", revision="2", generation=8, running_since_ms=NOW - 500)
    others = (pod(0, generation=8), pod(2, generation=8))
    assert decide(others[0], back, others[1], under_way=(NOTED,)).action == "stop"

    def forced(*workers: WorkerView, **more: Any) -> RolloutDecision:
        return decide(*workers, under_way=(NOTED,), forced=MOVED, **more)

    moving = forced(others[0], back, others[1], group=group(0, 1, 2, state="PreparingRebalance"))
    assert (moving.action, moving.back, moving.unplanned) == ("wait", (), "")
    late = forced(others[0], back, pod(2, generation=7))
    assert (late.action, late.back) == ("wait", ())
    assert (
        late.reason
        == f"w-1 has restarted after a rebalance ({MOVED}), but w-2 has not joined the new generation yet"
    )
    on = forced(others[0], back, others[1])
    assert (on.back, on.restart, on.unplanned) == (("w-1",), ("w-2",), MOVED)
    same = forced(pod(0), replace(back, generation=7), pod(2))
    assert (same.back, same.unplanned) == (("w-1",), "")  # nothing moved after all


# -- the way back --


def test_on_the_way_back_who_does_not_run_goes_first_whatever_the_group_is() -> None:
    broken = pod(1, revision="bad", alive=False, phase="", generation=-1)
    snapshot = RolloutInput("2", group(0, 1, 2, state="PreparingRebalance"), [pod(0), broken], (), (), NOW)
    decision = decide_rollback(POLICY, snapshot)
    assert (decision.action, decision.restart) == ("restart", ("w-1",))
    ending = replace(snapshot, workers=[pod(0, revision="2"), replace(broken, terminating=True)])
    assert decide_rollback(POLICY, ending).restart == ()


def test_on_the_way_back_who_runs_goes_in_turn_and_is_not_refused() -> None:
    workers = [pod(0, revision="2"), pod(1, revision="bad"), pod(2, revision="bad")]
    snapshot = RolloutInput("2", group(0, 1, 2), workers, (), (30_000,), NOW)
    assert decide_rollout(POLICY, snapshot).action == "refuse"
    decision = decide_rollback(replace(POLICY, paused=True), snapshot)
    assert (decision.action, decision.restart) == ("restart", ("w-1",))
    done = replace(snapshot, workers=[pod(number, revision="2") for number in range(3)])
    assert decide_rollback(POLICY, done).action == "done"


def test_on_the_way_back_one_that_stays_away_is_waited_for() -> None:
    away = pod(1, uid="uid-9", revision="2", alive=False, phase="", generation=-1, ended_ms=NOW - 90_000)
    snapshot = RolloutInput("2", group(0, 1, 2), [pod(0), away, pod(2)], (NOTED,), (1_000,), NOW)
    assert decide_rollout(POLICY, snapshot).action == "stop"
    decision = decide_rollback(POLICY, snapshot)
    assert (decision.action, decision.restart) == ("wait", ())
    assert "the rollback waits for w-1: w-1 has been out of the group for 1 min 30 s" in decision.reason


# -- what the broker was seen to do --


def observed(state: str = "Stable", coordinator: int | None = 1, brokers: str = "123") -> KafkaSnapshot:
    return KafkaSnapshot(0, GroupView(state), coordinator=coordinator, brokers=frozenset(map(int, brokers)))


def watched(*snapshots: KafkaSnapshot | None, away: tuple[str, ...] = ()) -> ForcedWatch:
    """A watch that saw one snapshot a second, from second 100 on."""
    watch = ForcedWatch()
    for second, snapshot in enumerate(snapshots):
        watch.observe(snapshot, now_ms=(100 + second) * 1000, away=away)
    return watch


@pytest.mark.parametrize(
    ("snapshots", "why", "sessions"),
    [
        ((observed(), observed()), "", 0),
        ((observed(), observed("PreparingRebalance")), "", 0),
        ((observed(), observed(coordinator=2)), MOVED, 101_000),
        ((observed(), observed(coordinator=None), observed(coordinator=2)), MOVED, 102_000),
        ((observed(coordinator=None), observed(coordinator=2)), "", 0),
        ((observed(), observed(brokers="13")), "broker 2 went away", 0),
        ((observed(brokers="13"), observed()), "broker 2 came back", 0),
        ((observed(brokers=""), observed()), "", 0),
        ((observed(), None), "the group's coordinator did not respond", 101_000),
        ((observed(), KafkaSnapshot(0)), "the group's coordinator did not respond", 101_000),
    ],
)
def test_what_a_broker_does_is_noted(
    snapshots: tuple[KafkaSnapshot | None, ...], why: str, sessions: int
) -> None:
    watch = watched(*snapshots)
    assert watch.since(100_000) == why
    assert watch.sessions_since_ms == sessions


def test_a_rebalance_that_begins_while_a_worker_is_away_is_anothers() -> None:
    went = watched(observed(), observed("PreparingRebalance"), away=("w-1",))
    assert went.since(100_500) == "the group began to rebalance while w-1 was restarting"
    assert watched(observed("PreparingRebalance"), observed("PreparingRebalance")).since(100_000) == ""


def test_what_was_long_before_does_not_count_and_who_came_later_cannot_tell() -> None:
    watch = watched(observed(), observed(coordinator=2))
    assert watch.since(161_000) == MOVED
    assert watch.since(161_001) == ""
    assert watch.since(99_999) == "nobody was watching when it began"
    assert ForcedWatch().since(5) == "nobody was watching when it began"


# -- evictions --


def evictions(policy: RolloutPolicy = POLICY, **more: Any) -> int:
    base = DisruptionInput("", 10, gaps_ms=(1_000,), produced_per_s=100.0, capacity_per_s=100.0)
    decision = decide_disruption(policy, replace(base, **more))
    assert decision.reason
    return decision.max_unavailable


def test_as_many_evictions_as_restarts() -> None:
    three = replace(POLICY, max_unavailable=3)
    assert evictions() == 1
    assert evictions(three) == 3
    assert evictions(three, produced_per_s=800.0) == 2
    assert evictions(three, capacity_per_s=None) == 1
    assert evictions(three, gaps_ms=()) == 1  # the first is the measurement
    assert evictions(three, under_way=1) == 2
    assert evictions(three, under_way=3) == 0
    assert evictions(three, unsettled="the group is PreparingRebalance") == 0
    assert evictions(three, gaps_ms=(10_000,)) == 3
    assert evictions(three, gaps_ms=(10_001,)) == 0  # would not come back within the budget
    assert evictions(three, workers=0, unsettled="the group is Empty") == 1
