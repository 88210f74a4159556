"""`slackwater explain` and `kubectl slackwater explain` against a real API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.e2e.kube.kube_objects import group
from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[3]
GROUPS = "slackwater.dev/v1alpha1", "consumergroups"


@pytest.fixture(autouse=True)
def crds(control_plane: ControlPlane) -> None:
    control_plane.define()


def environment(plane: ControlPlane, kubeconfig: Path | None = None) -> dict[str, str]:
    path = f"{ROOT / 'operator'}{os.pathsep}{ROOT / 'worker'}"
    return {**plane.environment(kubeconfig), "PYTHONPATH": path}


def explain(
    plane: ControlPlane, *arguments: str, kubeconfig: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slackwater", "explain", *arguments],
        env=environment(plane, kubeconfig),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def refused(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode != 0
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    return line


def test_explain_shows_state_and_decisions(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.api.create(path_of(*GROUPS, namespace), group(namespace))
    conditions = [
        {
            "type": "Degraded",
            "status": "True",
            "reason": "NameTaken",
            "message": "the StatefulSet flights belongs to somebody else",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    control_plane.api.patch(
        path_of(*GROUPS, namespace, "flights", "status"),
        {"status": {"replicas": 3, "conditions": conditions}},
    )
    explained = explain(control_plane, "flights", "-n", namespace)
    assert explained.returncode == 0, explained.stderr
    assert f"{namespace}/flights" in explained.stdout.splitlines()[0]
    assert "the StatefulSet flights belongs to somebody else" in explained.stdout


@pytest.mark.long
def test_explain_suggests_the_nearest_name(control_plane: ControlPlane, namespace: str) -> None:
    missing = f"slackwater: error: there is no ConsumerGroup flihgts in namespace {namespace}; "
    assert refused(explain(control_plane, "flihgts", "-n", namespace)) == missing + "it contains none"
    control_plane.api.create(path_of(*GROUPS, namespace), group(namespace))
    assert refused(explain(control_plane, "flihgts", "-n", namespace)) == missing + "did you mean flights?"
    assert "; it contains flights" in refused(explain(control_plane, "other", "-n", namespace))
    # A name of its own: other tests' namespaces, with flights in them, may still be on their way out.
    control_plane.api.create(path_of(*GROUPS, namespace), group(namespace, f"of-{namespace}"))
    elsewhere = refused(explain(control_plane, f"of-{namespace}", "-n", "default"))
    assert elsewhere.endswith(f"; it exists in {namespace} (-n {namespace})"), elsewhere


@pytest.mark.long
def test_explain_reports_an_obstacle_in_one_line(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nobody = control_plane.kubeconfig_for(namespace, "nobody")
    assert "cannot get resource" in refused(explain(control_plane, "flights", kubeconfig=nobody))
    assert "does not exist" in refused(explain(control_plane, "flights", kubeconfig=tmp_path / "none"))
    nowhere = refused(explain(control_plane, "flights", "--context", "nowhere"))
    assert "context nowhere" in nowhere
    gone = tmp_path / "gone"
    gone.write_text(control_plane.kubeconfig.read_text().replace(control_plane.url, "https://127.0.0.1:9"))
    line = refused(explain(control_plane, "flights", kubeconfig=gone))
    assert "127.0.0.1:9 cannot be reached" in line
    assert line.endswith("check the context")


def test_watch_shows_each_change_until_it_is_deleted(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.api.create(path_of(*GROUPS, namespace), group(namespace))
    with subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-m",
            "slackwater",
            "explain",
            "flights",
            "-n",
            namespace,
            "--watch",
            "-o",
            "json",
        ],
        env=environment(control_plane),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        try:
            assert watching.stdout is not None
            assert watching.stderr is not None
            first = watching.stdout.readline()
            control_plane.api.patch(
                path_of(*GROUPS, namespace, "flights", "status"), {"status": {"replicas": 7, "members": 7}}
            )
            assert watching.stdout.readline() != first
            assert set(json.loads(first)) == {"title", "state", "decisions", "otherwise"}
            control_plane.api.delete(path_of(*GROUPS, namespace, "flights"))
            assert watching.wait(HANG_S) == 1
            assert f"{namespace}/flights was deleted" in watching.stderr.read()
        finally:
            watching.send_signal(signal.SIGKILL)


@pytest.mark.long
def test_explain_says_that_slackwater_is_not_installed(
    control_plane: ControlPlane, namespace: str, kubectl: Command
) -> None:
    kubectl("delete", "-f", str(ROOT / "crds"))
    try:
        until(
            lambda: "install Slackwater there" in explain(control_plane, "flights").stderr,
            "the message",
        )
    finally:
        control_plane.define()
