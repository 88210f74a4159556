"""What each way to roll is applied as, with a handler in Python and with one that needs a JVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from benchmarks.rollouts import run, ways
from benchmarks.rollouts.peer import Settings as PeerSettings, consumer_properties
from benchmarks.rollouts.ways import CONSUMER, JVM, PYTHON, SPARK_CONF, WAYS, Settings, Variant
from slackwater_operator.api.v1alpha1.consumer_group import parse
from tests.support import spark
from tests.support.site import ClusterSite


@pytest.fixture
def site(tmp_path: Path) -> ClusterSite:
    """A site without a cluster."""
    made = ClusterSite.__new__(ClusterSite)
    made.folder, made.namespace = tmp_path, "ns"
    made.kafka = cast(Any, SimpleNamespace(bootstrap="b:1"))
    return made


PEERS = [variant for variant in WAYS if issubclass(variant.way, ways._Peers)]
OURS = [variant for variant in WAYS if variant not in PEERS]


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled."""
    monkeypatch.setattr(ways, "java_command", lambda program, **_: ["java", program])


def container_of(variant: Variant, site: ClusterSite, handler: str) -> tuple[dict[str, Any], Any]:
    """The pod's spec of a peer, and its container."""
    way = variant.make(site, Settings(handler=handler), f"roll-{variant.key}-{handler}")
    made = way.manifest("image:v1")
    pod = made["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.mark.parametrize("variant", PEERS, ids=lambda variant: variant.key)
def test_a_peer_is_given_its_handler(variant: Variant, site: ClusterSite) -> None:
    pod, container = container_of(variant, site, PYTHON)
    settings = PeerSettings.of(container["env"][0]["value"])
    assert (settings.spark_handler, settings.spark_conf) == ("", {})
    assert "volumes" not in pod
    pod, container = container_of(variant, site, JVM)
    settings = PeerSettings.of(container["env"][0]["value"])
    assert settings.spark_handler == "benchmarks.rollouts.work:handle_on_spark"
    assert settings.spark_conf == SPARK_CONF
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert container["workingDir"] == "/tmp"


@pytest.mark.parametrize("variant", WAYS, ids=lambda variant: variant.key)
def test_a_way_has_its_protocol_and_times(
    variant: Variant, site: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As members' properties by the classic protocol, and as the group's configs by the consumer protocol."""
    changes: list[Any] = []
    admin = MagicMock()
    admin.__enter__.return_value.alter_configs.side_effect = lambda change: changes.append(change) or admin
    monkeypatch.setattr(ways, "KafkaAdmin", lambda _: admin)
    way = variant.make(site, Settings(heartbeat_ms=700))
    way.configure()
    manifest = way.manifest("image:v1")
    if variant in PEERS:
        settings = PeerSettings.of(container_of(variant, site, PYTHON)[1]["env"][0]["value"])
        properties = consumer_properties(settings, "pod")
        assert bool(settings.java) == (variant.key == "i")
        assert properties.get("group.protocol") == ("consumer" if variant.protocol == CONSUMER else None)
        assert ("partition.assignment.strategy" in properties) == (variant.protocol != CONSUMER)
    else:
        properties = manifest["spec"]["kafka"]["properties"]
        assert manifest["spec"]["kafka"]["groupProtocol"] == variant.protocol
    assert {*way.times} == {"session.timeout.ms", "heartbeat.interval.ms"}
    assert {*way.times} & {*properties} == (set() if variant.protocol == CONSUMER else {*way.times})
    if variant.protocol == CONSUMER:
        [configs] = changes[0].values()
        assert configs == {
            "consumer.session.timeout.ms": "45000",
            "consumer.heartbeat.interval.ms": "700",
            "consumer.assignment.interval.ms": "0",
        }
    else:
        assert not changes


@pytest.mark.parametrize("variant", OURS, ids=lambda variant: variant.key)
def test_ours_is_given_its_handler(variant: Variant, site: ClusterSite) -> None:
    for handler, engine, function in (
        (PYTHON, "python", "benchmarks.rollouts.work:handle"),
        (JVM, "spark", "benchmarks.rollouts.work:handle_on_spark"),
    ):
        way = variant.make(site, Settings(handler=handler), f"roll-{variant.key}-{handler}")
        manifest = way.manifest("image:v1")
        spec = manifest["spec"]
        assert (spec["pipeline"]["engine"], spec["pipeline"]["handler"]) == (engine, function)
        assert spec["pipeline"].get("spark", {}) == ({"conf": SPARK_CONF} if handler == JVM else {})
        assert spec["rollout"].get("sessionBudget") == ("90%" if handler == JVM else None)
        assert parse(manifest).spec.pipeline.engine == engine, "the operator takes it"


def test_spark_has_the_archive_of_the_workers_image(
    site: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "archive", lambda: Path("/classes.jsa"))
    for variant in WAYS:
        plain = variant.make(site, Settings(), f"python-{variant.key}").environment()
        needs_jvm = variant.make(site, Settings(handler=JVM), f"jvm-{variant.key}").environment()
        assert {*needs_jvm} - {*plain} == {"SLACKWATER_SPARK_ARCHIVE"}
        assert needs_jvm["SLACKWATER_SPARK_ARCHIVE"] == "/classes.jsa"


def test_a_pods_start_is_until_it_was_ready() -> None:
    pod = {
        "status": {
            "containerStatuses": [{"state": {"running": {"startedAt": "2026-11-25T10:00:00Z"}}}],
            "conditions": [
                {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-11-25T09:59:59Z"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-25T10:00:14Z"},
            ],
        }
    }
    assert ways.start_s(pod) == 14


def test_a_mode_has_its_own_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Settings, float]] = []

    def stopped(_: Any, settings: Settings, rate: float, quiet_s: float, *, kill: bool) -> Any:
        asked.append((settings, rate))
        raise run.Unusable("enough")

    monkeypatch.setattr(run, "_run", stopped)
    assert run.main(["--handler", "jvm", "--ways", "a"]) == 2
    assert run.main([]) == 2
    assert run.main(["--handler", "jvm", "--workers", "2", "--rate", "100"]) == 2
    assert [(s.handler, s.workers, s.partitions, rate) for s, rate in asked] == [
        ("jvm", 3, 12, 300),
        ("python", 4, 12, 600),
        ("jvm", 2, 12, 100),
    ]
