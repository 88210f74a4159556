"""Which decisions the status keeps."""

from __future__ import annotations

from slackwater_operator.api.v1alpha1.status.group_status import DECISIONS_KEPT
from slackwater_operator.planner.decision_log import remember


def test_a_decision_is_kept_once_while_only_its_figures_change() -> None:
    kept = remember((), 1, "scaling", "hold", "need 2.51 of 3")
    assert remember(kept, 2, "scaling", "hold", "need 12.7 of 3") == kept
    assert len(remember(kept, 2, "scaling", "up", "need 12.7 of 3")) == 2
    assert len(remember(kept, 2, "scaling", "hold", "the lag is not known")) == 2
    assert len(remember(kept, 2, "rollout", "hold", "need 2.51 of 3")) == 2


def test_steps_that_follow_each_other_at_once_are_each_kept() -> None:
    """As KEDA's first worker and the HPA's next number: the operator holds in between only if it is quick."""
    kept = remember((), 1, "scaling", "up", "0 to 1: requested by spec.replicas")
    again = remember(kept, 2, "scaling", "up", "1 to 3: requested by spec.replicas")
    assert [step.reason[:6] for step in again] == ["0 to 1", "1 to 3"]
    tried = remember((), 1, "scaling", "up", "1 to 3: need 2.51")
    assert remember(tried, 2, "scaling", "up", "1 to 3: need 2.7") == tried, "the same, tried again"


def test_the_decisions_of_a_long_rollout_leave_the_others() -> None:
    kept = remember((), 1, "scaling", "up", "1 to 3: need 2.51")
    kept = remember(kept, 2, "topics", "kept", "a topic was added")
    for pod in range(3 * DECISIONS_KEPT):
        kept = remember(kept, 3 + pod, "rollout", f"restart flights-{pod}", "the group is Stable")
    assert len(kept) == DECISIONS_KEPT
    assert [decision.kind for decision in kept[:2]] == ["scaling", "topics"]
    assert kept[-1].action == f"restart flights-{3 * DECISIONS_KEPT - 1}"
    assert [decision.at_ms for decision in kept] == sorted(decision.at_ms for decision in kept)


def test_no_more_decisions_are_kept_than_the_last() -> None:
    kept: tuple = ()  # type: ignore[type-arg]
    for number in range(50):
        kept = remember(kept, number, "scaling", f"step{chr(97 + number % 26)}", "because")
    assert len(kept) == DECISIONS_KEPT
    assert kept[-1].at_ms == 49
