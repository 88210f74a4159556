"""A real API server on bad ConsumerGroups: refused at `kubectl apply`, with the field and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from slackwater_operator.api.v1alpha1.consumer_group import ResourceError, parse
from tests.support.controlplane import CommandFailed, ControlPlane
from tests.support.operator.bad_resources import GONE, NOT_FOR_PODS, REFUSED, UNREADABLE, Bad, good

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module")
def home(api_server: ControlPlane) -> Iterator[str]:
    with api_server.namespace() as name:
        yield name


def apply(plane: ControlPlane, home: str, document: dict[str, Any], *arguments: str) -> str:
    return plane.kubectl("apply", "-n", home, "-f", "-", *arguments, stdin=yaml.safe_dump(document))


def refusal(plane: ControlPlane, home: str, document: dict[str, Any]) -> str:
    with pytest.raises(CommandFailed) as raised:
        apply(plane, home, document)
    return str(raised.value)


@pytest.mark.parametrize("bad", REFUSED, ids=lambda bad: bad.what)
def test_a_bad_resource_is_refused_with_its_field_and_a_remedy(
    api_server: ControlPlane, home: str, bad: Bad
) -> None:
    error = refusal(api_server, home, bad.document)
    assert bad.field in error
    assert bad.says in error


def test_refused_resources_are_not_stored(api_server: ControlPlane, home: str) -> None:
    assert api_server.kubectl("get", "cg", "-n", home, "-o", "name") == ""


@pytest.mark.parametrize("bad", [*UNREADABLE, *NOT_FOR_PODS], ids=lambda bad: bad.what)
def test_the_operator_refuses_what_the_api_server_accepts(
    api_server: ControlPlane, home: str, bad: Bad
) -> None:
    kept = yaml.safe_load(apply(api_server, home, bad.document, "--dry-run=server", "-o", "yaml"))
    if bad in NOT_FOR_PODS:
        assert parse(kept).metadata.uid
        return
    with pytest.raises(ResourceError, match="resource: ") as raised:
        parse(kept)
    assert bad.says in str(raised.value)


@pytest.fixture
def flights(api_server: ControlPlane, home: str) -> Iterator[str]:
    """A ConsumerGroup that is there."""
    apply(api_server, home, good(**{"spec/groupId": "flights"}))
    yield "flights"
    api_server.kubectl("delete", "cg", "flights", "-n", home)


@pytest.mark.parametrize("changes", [{"spec/groupId": "other"}, {"spec/groupId": GONE}])
def test_the_group_id_cannot_be_changed(
    api_server: ControlPlane, home: str, flights: str, changes: dict[str, Any]
) -> None:
    error = refusal(api_server, home, good(**{"spec/groupId": "flights", **changes}))
    assert "groupId is immutable; create another ConsumerGroup" in error


def test_the_group_id_cannot_be_added_later(api_server: ControlPlane, home: str) -> None:
    apply(api_server, home, good())
    try:
        error = refusal(api_server, home, good(**{"spec/groupId": "flights"}))
        assert "groupId is immutable" in error
        apply(api_server, home, good(**{"spec/scaling/catchUp": "1m"}))
    finally:
        api_server.kubectl("delete", "cg", "flights", "-n", home)


def test_kubectl_scale_keeps_to_the_bounds(api_server: ControlPlane, home: str, flights: str) -> None:
    api_server.kubectl("scale", "cg/flights", "-n", home, "--replicas=5")
    output = api_server.kubectl("get", "cg", "flights", "-n", home, "-o", "jsonpath={.spec.replicas}")
    assert output == "5"
    with pytest.raises(CommandFailed) as raised:
        api_server.kubectl("scale", "cg/flights", "-n", home, "--replicas=13")
    assert "must be between scaling.minReplicas and scaling.maxReplicas" in str(raised.value)


def test_an_edit_that_misspells_a_field_is_refused(api_server: ControlPlane, home: str, flights: str) -> None:
    error = refusal(api_server, home, good(**{"spec/groupId": "flights", "spec/roll_out": {"paused": True}}))
    assert 'unknown field "spec.roll_out"' in error
