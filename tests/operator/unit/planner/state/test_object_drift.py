"""What counts as drift, and what the API server only writes otherwise."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from slackwater_operator.planner.objects import differs, with_applied_hash

Json = dict[str, Any]


def manifest() -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "flights", "labels": {"a": "b"}},
        "spec": {
            "replicas": 0,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "worker",
                            "env": [{"name": "EMPTY", "value": ""}],
                            "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                        }
                    ],
                    "tolerations": [],
                }
            },
        },
    }


def as_served() -> Json:
    """What the API server makes of it: defaults, canonical quantities, nothing empty."""
    live = copy.deepcopy(with_applied_hash(manifest()))
    live["metadata"] |= {"uid": "1", "resourceVersion": "7", "generation": 1}
    live["spec"]["revisionHistoryLimit"] = 10
    pod = live["spec"]["template"]["spec"]
    del pod["tolerations"]
    pod["restartPolicy"] = "Always"
    container = pod["containers"][0]
    container["env"] = [{"name": "EMPTY"}]
    container["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    container["terminationMessagePath"] = "/dev/termination-log"
    pod["containers"].insert(0, {"name": "injected"})
    return live


def test_what_the_api_server_writes_otherwise_is_no_drift() -> None:
    assert not differs(with_applied_hash(manifest()), as_served())


def test_a_missing_field_is_drift() -> None:
    assert differs(with_applied_hash(manifest()), None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 3),
        (("metadata", "labels"), {"a": "c"}),
        (("metadata", "labels"), {}),
        (("spec", "template", "spec", "containers"), []),
        (("metadata", "annotations"), {}),
    ],
)
def test_what_somebody_else_has_changed_is_drift(path: tuple[str, ...], value: object) -> None:
    live = as_served()
    inside = live
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    assert differs(with_applied_hash(manifest()), live)


@pytest.mark.parametrize("amount", ["2", "1e999999999", "1" * 2_000_000], ids=["2", "exponent", "digits"])
def test_another_amount_is_drift(amount: str) -> None:
    live = as_served()
    live["spec"]["template"]["spec"]["containers"][1]["resources"]["limits"]["cpu"] = amount
    assert differs(with_applied_hash(manifest()), live)


def test_what_is_no_longer_wanted_differs() -> None:
    less = manifest()
    del less["metadata"]["labels"]
    assert differs(with_applied_hash(less), as_served())
