"""A container's environment and command line by Kubernetes' rules."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane.images import CRASHES, Image, ImageRegistry, find_image, unless
from tests.support.controlplane.kubelet.environment import (
    MissingReference,
    environment,
    expand,
    quantity,
    references,
    resource_of,
)

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"b": "2", "a": "1"}},
    "spec": {"nodeName": "node-1"},
    "status": {"podIP": "10.244.0.1", "podIPs": [{"ip": "10.244.0.1"}, {"ip": "fd00::1"}]},
}
OBJECTS: dict[tuple[str, str], dict[str, Any] | None] = {
    ("configmaps", "c"): {"data": {"key": "from config"}, "binaryData": {}},
    ("secrets", "s"): {"data": {"password": base64.b64encode(b"secret").decode()}},
    ("secrets", "none"): None,
}


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ({"name": "X", "value": "plain"}, "plain"),
        (field("metadata.name"), "p"),
        (field("metadata.labels['a']"), "1"),
        (field("metadata.labels['none']"), ""),
        (field("metadata.labels"), 'a="1"\nb="2"\n'),
        (field("spec.nodeName"), "node-1"),
        (field("status.podIP"), "10.244.0.1"),
        (field("status.podIPs"), "10.244.0.1,fd00::1"),
        ({"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}}, "from config"),
        ({"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}}, "secret"),
    ],
)
def test_a_variable_has_the_value_that_its_source_names(entry: dict[str, Any], value: str) -> None:
    assert environment({"env": [entry]}, POD, OBJECTS) == {"X": value}


def test_later_variables_use_earlier_ones_and_win_over_env_from() -> None:
    container = {
        "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}],
        "env": [{"name": "key", "value": "own"}, {"name": "both", "value": "$(key)-$(P_password)-$(later)"}],
    }
    variables = environment(container, POD, OBJECTS)
    assert variables == {"P_password": "secret", "key": "own", "both": "own-secret-$(later)"}
    assert references(container) == {("secrets", "s"), ("configmaps", "c")}


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ({"secretKeyRef": {"name": "none", "key": "a"}}, 'secret "none" not found'),
        ({"configMapKeyRef": {"name": "c", "key": "other"}}, "couldn't find key other"),
    ],
)
def test_what_is_missing_is_named_unless_it_is_optional(reference: dict[str, Any], why: str) -> None:
    with pytest.raises(MissingReference, match=why):
        environment({"env": [{"name": "X", "valueFrom": reference}]}, POD, OBJECTS)
    kind = next(iter(reference))
    optional = {kind: {**reference[kind], "optional": True}}
    assert environment({"env": [{"name": "X", "valueFrom": optional}]}, POD, OBJECTS) == {}


def test_dollars_double_to_stay() -> None:
    assert expand("$$(A) $(A) $(B) $", {"A": "1"}) == "$(A) 1 $(B) $"


def test_quantities_and_resources_round_up() -> None:
    container = {"resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}}
    assert resource_of(container, {"resource": "limits.cpu"}) == "2"
    assert resource_of(container, {"resource": "limits.cpu", "divisor": "1m"}) == "1500"
    assert resource_of(container, {"resource": "limits.memory", "divisor": "1Mi"}) == "1024"
    assert resource_of(container, {"resource": "requests.cpu"}) == "0"
    with pytest.raises(ValueError, match="not a quantity"):
        quantity("1 GB")


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "args", "argv"),
    [
        ([], [], ["entry", "cmd"]),
        ([], ["a"], ["entry", "a"]),
        (["c"], [], ["c"]),
        (["c"], ["a"], ["c", "a"]),
    ],
)
def test_command_and_args_stand_over_entrypoint_and_cmd(
    command: list[str], args: list[str], argv: list[str]
) -> None:
    assert Image(entrypoint=["entry"], command=["cmd"]).argv(command, args) == argv
    assert Image(entrypoint=["entry"], command=["cmd"], prefix=["wrap"]).argv(command, args) == [
        "wrap",
        *argv,
    ]


def test_a_prefix_can_spare_the_preflight() -> None:
    image = Image(prefix=unless("--preflight", CRASHES))
    passed = subprocess.run(image.argv(["echo", "a b"], ["--preflight"]), capture_output=True, text=True)
    assert (passed.returncode, passed.stdout) == (0, "a b --preflight\n")
    failed = subprocess.run(image.argv(["echo", "a b"], []), capture_output=True, text=True)
    assert (failed.returncode, failed.stderr) == (3, "boom: echo a b\n")


def test_the_latest_pattern_that_matches_counts(tmp_path: Path) -> None:
    registry = ImageRegistry(tmp_path / "images.json")
    registry.push("mine/*", Image(pull_ms=1))
    registry.push("mine/one:*", Image(pull_ms=2))
    registry.push("mine/*", Image(pull_ms=3))
    path = tmp_path / "images.json"
    assert find_image(path, "mine/one:1").pull_ms == 3, "what was pushed last"
    registry.remove("mine/*")
    assert find_image(path, "mine/one:1").pull_ms == 2
    assert find_image(path, "mine/two:1") == find_image(path, "busybox:1")
    assert list(find_image(path, "registry.example/slackwater/worker:9").entrypoint) == ["slackwater"]
