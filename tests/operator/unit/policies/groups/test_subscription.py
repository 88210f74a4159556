"""Which revisions make the group rebalance by themselves, and what the decisions make of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slackwater.kafka.group_states import CLASSIC, CONSUMER
from slackwater_operator.model.group import GroupView, MemberView, WorkerView
from slackwater_operator.policies.rollout.rebalance_causes import expected_rebalance, goes_back_to_classic
from slackwater_operator.policies.rollout.restarts import (
    RestartView,
    RolloutInput,
    RolloutPolicy,
    decide_rollout,
)
from slackwater_operator.policies.takeover.decision import TakeoverDecision
from tests.operator.unit.policies.takeover import takeover_cases as cases

NOW = 1_000_000
ASSIGNORS = ("cooperative-sticky",)


def group(*topics: frozenset[str] | None, assignor: str = "cooperative-sticky") -> GroupView:
    members = [
        MemberView(f"id-{number}", f"w-{number}", frozenset(), True, topics=of_it)
        for number, of_it in enumerate(topics)
    ]
    return GroupView("Stable", tuple(members), assignor)


T, TU = frozenset("t"), frozenset("tu")


@pytest.mark.parametrize(
    ("view", "topics", "why"),
    [
        (group(T, T), ["t"], ""),
        (group(T, T), ["t", "u"], "the topics change (added: u)"),
        (group(TU, TU), ["t"], "the topics change (removed: u)"),
        (group(T, T), ["u"], "the topics change (added: u; removed: t)"),
        (group(TU, T), ["t", "u"], "the topics change (added: u)"),  # one has them already
        (group(T, None), ["t"], ""),  # of one nothing is known
        (group(T), None, ""),
        (group(), ["t"], ""),
        (None, ["t"], ""),
    ],
)
def test_other_topics_make_a_rebalance_expected(
    view: GroupView | None, topics: list[str] | None, why: str
) -> None:
    assert expected_rebalance(view, topics, ASSIGNORS) == why


def test_another_assignor_makes_a_rebalance_expected() -> None:
    observed = group(T, T, assignor="range")
    message = expected_rebalance(observed, ["t"], ["cooperative-sticky", "range"])
    assert message == "the assignor changes from range to cooperative-sticky"
    assert expected_rebalance(observed, ["t"], ["range", "cooperative-sticky"]) == ""
    both = expected_rebalance(observed, ["t", "u"], ASSIGNORS)
    assert both == f"the topics change (added: u); {message}"


CLASSIC_WORKER = MemberView("a", "w-0", frozenset(), True, topics=T, protocol=CLASSIC)
CONSUMER_WORKER = MemberView("b", "w-1", frozenset(), True, topics=T, protocol=CONSUMER)
STRANGER = MemberView("c", None, frozenset(), True, topics=T, protocol=CONSUMER)


@pytest.mark.parametrize(
    ("members", "to_consumer", "goes_back"),
    [
        ((CLASSIC_WORKER, CONSUMER_WORKER), False, True),
        ((CONSUMER_WORKER,), False, True),
        ((CONSUMER_WORKER,), True, False),
        ((CLASSIC_WORKER, CONSUMER_WORKER), True, False),
        ((CLASSIC_WORKER, CONSUMER_WORKER), None, True),  # a rollback: it has what the one worker has
        ((CONSUMER_WORKER,), None, False),
        ((CLASSIC_WORKER, CONSUMER_WORKER, STRANGER), False, False),
        ((CLASSIC_WORKER, STRANGER), False, False),
        ((replace(CLASSIC_WORKER, protocol=""),), False, False),
    ],
)
def test_the_last_worker_of_the_consumer_protocol_makes_a_rebalance_expected(
    members: tuple[MemberView, ...], to_consumer: bool | None, goes_back: bool
) -> None:
    strangers = [member for member in members if member is STRANGER]
    assert goes_back_to_classic(GroupView("Stable", members), strangers, to_consumer) is goes_back


def returned(expected: str, forced: str = "", *, others: int = 8) -> RolloutInput:
    """w-0 is back in generation 8, and left in 7."""
    back = WorkerView("w-0", True, "running", "2", 8, lag=0, running_since_ms=NOW - 9_000)
    other = replace(back, name="w-1", generation=others)
    away = RestartView("w-0", 7, 0, "uid", NOW - 10_000)
    return RolloutInput(
        "2", group(T, T), [back, other], [away], (1_000,), NOW, forced=forced, expected=expected
    )


def test_a_restart_in_an_expected_rebalance_has_gone_well_and_is_no_unplanned_one() -> None:
    assert decide_rollout(RolloutPolicy(), returned("")).action == "stop"
    assert decide_rollout(RolloutPolicy(), returned("", forced="a broker went")).unplanned == "a broker went"
    for forced in ("", "a broker went"):
        decision = decide_rollout(RolloutPolicy(), returned("the topics change", forced))
        assert (decision.action, decision.back, decision.unplanned) == ("done", ("w-0",), "")


def test_the_restart_is_over_when_all_are_in_the_new_generation() -> None:
    decision = decide_rollout(RolloutPolicy(), returned("the topics change", others=7))
    assert (decision.action, decision.back) == ("wait", ())
    assert "the topics change), but w-1 has not joined the new generation yet" in decision.reason


def taken_over(expected: str) -> TakeoverDecision:
    """f-3 was told to take over in generation 7, and runs in 8, as all others do by now."""
    workers = {f"f-a-{number}": cases.worker(cases.A, number, generation=8) for number in range(3)}
    workers["f-a-3"] = cases.not_in(cases.A, 3, "standby", handed_over=True)
    workers["f-b-3"] = cases.worker(cases.B, 3, generation=8)
    more = {"moving": cases.moving_since(9_000), "expected": expected}
    return cases.decide(cases.Case("", ("", 0), **cases.BOTH, workers=workers, more=more))


def test_a_takeover_in_an_expected_rebalance_has_gone_well_and_is_no_unplanned_one() -> None:
    assert taken_over("").action == "stop"
    decision = taken_over("the topics change")
    assert (decision.action, decision.moved, decision.unplanned) == ("retire", True, "")
    assert "the group rebalanced meanwhile: the topics change" in decision.reason
