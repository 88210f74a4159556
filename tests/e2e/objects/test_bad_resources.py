"""A real API server on bad ConsumerGroups: refused when they are applied, with the field and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from slackwater_operator.api.v1alpha1.consumer_group import ResourceError, parse
from tests.support.controlplane import ApiError, CommandFailed, ControlPlane, path_of
from tests.support.operator.bad_resources import GONE, NOT_FOR_PODS, REFUSED, UNREADABLE, Bad, good

pytestmark = pytest.mark.controlplane


@pytest.mark.parametrize("bad", REFUSED, ids=lambda bad: bad.what)
def test_a_bad_resource_is_refused_with_its_field_and_a_remedy(
    control_plane: ControlPlane, home: str, bad: Bad
) -> None:
    with pytest.raises(ApiError) as refused:
        control_plane.api.try_out(home, bad.document)
    assert bad.field in refused.value.message
    assert bad.says in refused.value.message


def test_kubectl_shows_the_refusal_and_stores_nothing(control_plane: ControlPlane, home: str) -> None:
    bad = next(bad for bad in REFUSED if bad.what == "a misspelled field")
    with pytest.raises(CommandFailed) as refused:
        control_plane.kubectl("apply", "-n", home, "-f", "-", stdin=yaml.safe_dump(bad.document))
    assert f'unknown field "{bad.field}"' in str(refused.value)
    assert control_plane.api.list(path_of("slackwater.dev/v1alpha1", "consumergroups", home)) == []


@pytest.mark.parametrize("bad", [*UNREADABLE, *NOT_FOR_PODS], ids=lambda bad: bad.what)
def test_the_operator_refuses_what_the_api_server_accepts(
    control_plane: ControlPlane, home: str, bad: Bad
) -> None:
    kept = control_plane.api.try_out(home, bad.document)
    if bad in NOT_FOR_PODS:
        assert parse(kept).metadata.uid
        return
    with pytest.raises(ResourceError, match="resource: ") as raised:
        parse(kept)
    assert bad.says in str(raised.value)


@pytest.fixture
def flights(control_plane: ControlPlane, home: str) -> Iterator[str]:
    """The path of a ConsumerGroup that is there, whose groupId is its name."""
    control_plane.api.apply(home, good(**{"spec/groupId": "flights"}))
    path = path_of("slackwater.dev/v1alpha1", "consumergroups", home, "flights")
    yield path
    control_plane.api.delete(path)


@pytest.mark.parametrize("changes", [{"spec/groupId": "other"}, {"spec/groupId": GONE}])
def test_the_group_id_cannot_be_changed(
    control_plane: ControlPlane, home: str, flights: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match="groupId is immutable; create another ConsumerGroup"):
        control_plane.api.apply(home, good(**{"spec/groupId": "flights", **changes}))


def test_the_group_id_cannot_be_added_later(control_plane: ControlPlane, home: str, flights: str) -> None:
    control_plane.api.delete(flights)
    control_plane.api.apply(home, good())
    with pytest.raises(ApiError, match="groupId is immutable"):
        control_plane.api.apply(home, good(**{"spec/groupId": "flights"}))
    control_plane.api.apply(home, good(**{"spec/scaling/catchUp": "1m"}))


def test_kubectl_scale_keeps_to_the_bounds(control_plane: ControlPlane, home: str, flights: str) -> None:
    control_plane.kubectl("scale", "cg/flights", "-n", home, "--replicas=5")
    assert (control_plane.api.get(flights) or {})["spec"]["replicas"] == 5
    with pytest.raises(CommandFailed) as raised:
        control_plane.kubectl("scale", "cg/flights", "-n", home, "--replicas=13")
    assert "must be between scaling.minReplicas and scaling.maxReplicas" in str(raised.value)


def test_an_edit_that_misspells_a_field_is_refused(
    control_plane: ControlPlane, home: str, flights: str
) -> None:
    with pytest.raises(ApiError, match="spec.roll_out: field not declared in schema"):
        control_plane.api.apply(home, good(**{"spec/groupId": "flights", "spec/roll_out": {"paused": True}}))
