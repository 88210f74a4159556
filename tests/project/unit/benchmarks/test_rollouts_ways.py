"""What each way to roll is applied as, with a handler in Python and with one that needs a JVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.rollouts import run, ways
from benchmarks.rollouts.peer import Settings as PeerSettings
from benchmarks.rollouts.ways import JVM, PYTHON, SPARK_CONF, WAYS, Settings
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


def container_of(kind: type[ways.Way], site: ClusterSite, handler: str) -> tuple[dict[str, Any], Any]:
    """The pod's spec of a peer, and its container."""
    made = kind(site, Settings(handler=handler), f"roll-{kind.key}-{handler}").manifest("image:v1")
    pod = made["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.mark.parametrize("kind", WAYS[:2], ids=lambda kind: str(kind.key))
def test_a_peer_is_given_its_handler(kind: type[ways.Way], site: ClusterSite) -> None:
    pod, container = container_of(kind, site, PYTHON)
    settings = PeerSettings.of(container["env"][0]["value"])
    assert (settings.spark_handler, settings.spark_conf) == ("", {})
    assert "volumes" not in pod
    pod, container = container_of(kind, site, JVM)
    settings = PeerSettings.of(container["env"][0]["value"])
    assert settings.spark_handler == "benchmarks.rollouts.work:handle_on_spark"
    assert settings.spark_conf == SPARK_CONF
    assert settings.properties["session.timeout.ms"] == 45_000
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert container["workingDir"] == "/tmp"


@pytest.mark.parametrize("kind", WAYS[2:], ids=lambda kind: str(kind.key))
def test_ours_is_given_its_handler(kind: type[ways.Way], site: ClusterSite) -> None:
    for handler, engine, function in (
        (PYTHON, "python", "benchmarks.rollouts.work:handle"),
        (JVM, "spark", "benchmarks.rollouts.work:handle_on_spark"),
    ):
        way = kind(site, Settings(handler=handler), f"roll-{kind.key}-{handler}")
        manifest = way.manifest("image:v1")
        spec = manifest["spec"]
        assert (spec["pipeline"]["engine"], spec["pipeline"]["handler"]) == (engine, function)
        assert spec["pipeline"].get("spark", {}) == ({"conf": SPARK_CONF} if handler == JVM else {})
        assert spec["rollout"].get("sessionBudget") == ("90%" if handler == JVM else None)
        assert spec["kafka"]["properties"]["session.timeout.ms"] == "45000"
        assert parse(manifest).spec.pipeline.engine == engine, "the operator takes it"


def test_spark_has_the_archive_of_the_workers_image(
    site: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "archive", lambda: Path("/classes.jsa"))
    for kind in WAYS:
        plain = kind(site, Settings(), f"python-{kind.key}").environment()
        needs_jvm = kind(site, Settings(handler=JVM), f"jvm-{kind.key}").environment()
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

    def stopped(_: Any, settings: Settings, rate: float, quiet_s: float) -> Any:
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
