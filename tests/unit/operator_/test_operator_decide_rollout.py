"""The rolling restart, step by step, and who joins and who is removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.decide.conditions import unsettled
from slackwater_operator.decide.gate import decide_gate
from slackwater_operator.decide.membership import decide_removal
from slackwater_operator.decide.rollout import (
    RestartView,
    RolloutDecision,
    RolloutInput,
    RolloutPolicy,
    decide_rollout,
    refusal,
)
from slackwater_operator.decide.view import GroupView, MemberView, WorkerView

NOW = 1_000_000
PARTITIONS = [TopicPartition("t", number) for number in range(6)]
POLICY = RolloutPolicy(max_unavailable=1, session_budget=0.5, session_timeout_ms=20_000)


def worker(number: int, **more: object) -> WorkerView:
    base = WorkerView(f"w-{number}", True, "running", 1, 7, number == 0, lag=0, running_since_ms=NOW - 60_000)
    return replace(base, **more)  # type: ignore[arg-type]


def group(*numbers: int, state: str = "Stable", synced: bool = True) -> GroupView:
    members = [
        MemberView(f"id-{number}", f"w-{number}", frozenset(PARTITIONS[number :: len(numbers)]), synced)
        for number in numbers
    ]
    return GroupView(state, tuple(members))


def decide(*workers: WorkerView, policy: RolloutPolicy = POLICY, **more: object) -> RolloutDecision:
    base = RolloutInput(2, group(0, 1, 2), workers, (), (1_000,), NOW)
    decision = decide_rollout(policy, replace(base, **more))  # type: ignore[arg-type]
    assert decision.reason
    return decision


def test_the_first_is_no_leader() -> None:
    decision = decide(worker(0), worker(1), worker(2))
    assert (decision.action, decision.restart) == ("restart", ("w-1",))


def test_the_leader_is_the_last() -> None:
    decision = decide(worker(0), worker(1, revision=2), worker(2, revision=2))
    assert decision.restart == ("w-0",)
    new_leader = decide(worker(0, leader=False), worker(1, leader=True), worker(2, revision=2))
    assert new_leader.restart == ("w-0",)


def test_done_when_all_have_the_revision() -> None:
    assert decide(*[worker(number, revision=2) for number in range(3)]).action == "done"


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
    assert (late.action, late.reason) == ("wait", "w-2 is in generation 6, not 7 yet")
    ill = decide(worker(0), worker(1), worker(2, phase="warming"))
    assert (ill.action, ill.reason) == ("wait", "w-2 is warming")
    assert decide(worker(0), worker(1), worker(2), group=None).action == "wait"


UNDER_WAY = (RestartView("w-1", 7, 500),)


def restarting(**more: object) -> RolloutDecision:
    back = worker(1, revision=2, ended_ms=NOW - 3_000, running_since_ms=NOW - 1_000)
    return decide(worker(0), replace(back, **more), worker(2), under_way=UNDER_WAY)  # type: ignore[arg-type]


def test_the_next_only_when_the_last_is_back() -> None:
    assert restarting(revision=1, phase="draining").reason == "w-1 is draining"
    assert restarting(alive=False, phase="", generation=-1).reason == "w-1 is not started yet"
    assert restarting(phase="joining", generation=-1).reason == "w-1 is joining"
    decision = restarting()
    assert (decision.back, decision.restart) == (("w-1",), ("w-2",))


def test_the_next_only_when_the_last_has_caught_up() -> None:
    behind = restarting(lag=5_000)
    assert (behind.action, behind.reason) == (
        "wait",
        "w-1 is back and catches up: 5000 records behind, 500 before",
    )
    assert restarting(lag=None).reason == "w-1 is back, but its lag is not known"
    assert restarting(lag=1_400).restart == ("w-2",)


def test_a_lag_that_never_shrinks_does_not_hold_for_ever() -> None:
    assert restarting(lag=5_000, running_since_ms=NOW - 10_001).restart == ("w-2",)
    assert restarting(lag=5_000, running_since_ms=NOW - 9_999).restart == ()


def test_a_restart_over_budget_stops_the_roll() -> None:
    late = restarting(alive=False, phase="", generation=-1, ended_ms=NOW - 10_001, failures=3)
    assert late.action == "stop"
    assert "away for 10.0 s (it has failed 3 times), more than 10.0 s (50% of" in late.reason
    assert restarting(alive=False, phase="", generation=-1, ended_ms=NOW - 9_999).action == "wait"


def test_a_draining_worker_is_not_away() -> None:
    assert restarting(revision=1, phase="draining", ended_ms=NOW - 900_000).action == "wait"


def test_a_return_in_another_generation_stops_the_roll() -> None:
    decision = restarting(generation=8)
    assert decision.action == "stop"
    assert "generation 8, not 7" in decision.reason


def test_several_at_once_but_never_with_the_leader() -> None:
    two = replace(POLICY, max_unavailable=2)
    workers = [worker(number) for number in range(4)]
    all_in = group(0, 1, 2, 3)
    assert decide(*workers, policy=two, group=all_in).restart == ("w-1", "w-2")
    workers[1] = worker(1, revision=2)
    workers[2] = worker(2, revision=2, phase="joining", generation=-1, ended_ms=NOW - 100)
    away = (RestartView("w-2", 7, 0),)
    assert decide(*workers, policy=two, group=all_in, under_way=away).restart == ("w-3",)
    workers[3] = worker(3, revision=2)
    leader_left = decide(*workers, policy=two, group=all_in, under_way=away)
    assert (leader_left.action, leader_left.restart) == ("wait", ())


def test_the_first_restart_of_all_is_made_alone() -> None:
    two = replace(POLICY, max_unavailable=2)
    workers = [worker(number) for number in range(3)]
    assert decide(*workers, policy=two, gaps_ms=()).restart == ("w-1",)


def test_paused() -> None:
    decision = decide(worker(0), worker(1), policy=replace(POLICY, paused=True))
    assert (decision.action, decision.reason) == ("wait", "spec.rollout.paused is true")


def test_what_does_not_fit_is_refused_with_the_setting_that_would() -> None:
    decision = decide(worker(0), worker(1), worker(2), gaps_ms=(1_000, 12_000))
    assert (decision.action, decision.restart) == ("refuse", ())
    assert "session.timeout.ms] to 24000, or spec.rollout.sessionBudget to 60%" in decision.reason
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
    return {one.instance_id: one.partitions for one in view.members if one.instance_id}


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
    assert "assigned to nobody" in missing(view, *workers, more=(TopicPartition("u", 0),))
    assert missing(None, *workers)
    stale = {**held(view), "w-1": frozenset(PARTITIONS)}
    assert "w-1 does not hold yet" in unsettled(view, workers, stale, PARTITIONS)


def test_no_workers_are_settled_when_the_group_is_empty() -> None:
    assert unsettled(GroupView("Empty"), [], {}, PARTITIONS) == ""
    assert "still Stable with 2 members" in unsettled(group(0, 1), [], {}, PARTITIONS)
