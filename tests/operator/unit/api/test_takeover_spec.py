"""spec.rollout for takeovers: what it means where nothing is said, and what the decisions get of it."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import MAX_NAME, MAX_NAME_TAKEOVER, ResourceError, parse
from slackwater_operator.policies.resource_policies import rollout_policy, takeover_policy
from tests.support.operator.bad_resources import good

TAKEOVER = {"spec/rollout/strategy": "Takeover"}


def group(**changes: Any) -> Any:
    return parse(good(**changes))


def test_the_default_strategy_is_restart() -> None:
    rollout = group().spec.rollout
    assert not rollout.takes_over
    assert (rollout.takeover.warm_timeout_ms, rollout.takeover.fallback) == (300_000, "Restart")


def test_the_policy_has_the_values_of_the_spec() -> None:
    made = group(
        **TAKEOVER,
        **{
            "spec/rollout/takeover": {"warmTimeout": "90s", "fallback": "Stop"},
            "spec/rollout/sessionBudget": "50%",
            "spec/delivery/drainTimeout": "40s",
        },
    )
    policy = takeover_policy(made, rollout_policy(made))
    assert (policy.warm_timeout_ms, policy.fallback) == (90_000, "Stop")
    assert policy.deadline_ms == 45_000
    assert policy.rollout.session_budget == 0.5
    assert policy.hands_over


def test_the_pause_annotation_pauses_takeovers() -> None:
    assert not rollout_policy(group(**TAKEOVER)).paused
    assert rollout_policy(group(**TAKEOVER), paused=True).paused
    assert rollout_policy(group(**TAKEOVER, **{"spec/rollout/paused": True})).paused


def test_a_former_template_may_have_no_key_whatever_the_spec_says() -> None:
    rollout = rollout_policy(group())
    assert not takeover_policy(group(), rollout).hands_over
    assert takeover_policy(group(), rollout, hands_over=True).hands_over
    assert not takeover_policy(group(**TAKEOVER), rollout, hands_over=False).hands_over


@pytest.mark.parametrize("wanted", ["10s", "1h"])
def test_a_warm_timeout_at_its_bounds_is_accepted(wanted: str) -> None:
    parse(good(**{"spec/rollout/takeover/warmTimeout": wanted}))


@pytest.mark.parametrize("wanted", ["9s999ms", "1h1ms"])
def test_a_warm_timeout_beyond_its_bounds_is_refused(wanted: str) -> None:
    with pytest.raises(ResourceError, match=r"warmTimeout: .* must be between 10s and 1h"):
        parse(good(**{"spec/rollout/takeover/warmTimeout": wanted}))


def test_only_takeovers_need_a_shorter_name() -> None:
    parse(good(**{"metadata/name": "f" * MAX_NAME}))
    parse(good(**{"metadata/name": "f" * MAX_NAME_TAKEOVER, **TAKEOVER}))
    with pytest.raises(ResourceError) as raised:
        parse(good(**{"metadata/name": "f" * (MAX_NAME_TAKEOVER + 1), **TAKEOVER}))
    assert "metadata.name: must have at most 50 characters for spec.rollout.strategy Takeover" in str(
        raised.value
    )
    assert "use Restart" in str(raised.value)
