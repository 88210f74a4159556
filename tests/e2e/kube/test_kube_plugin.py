"""`kubectl slackwater` against a real API server: what its commands change, and what they show."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from slackwater.runtime.telemetry.status import Status
from slackwater_operator.cli.kubectl.plugin import complete, main
from slackwater_operator.model import names
from slackwater_operator.specs.revision_record import revision_record, revision_source
from slackwater_operator.specs.statefulset import read_resource
from tests.e2e.kube.kube_objects import group
from tests.support.controlplane import ControlPlane, kubectl as kubectl_program, path_of
from tests.support.waiting import HANG_S
from tests.support.workers.fakes import VirtualClock

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[3]
GROUPS = "slackwater.dev/v1alpha1", "consumergroups"
Object = dict[str, Any]


@pytest.fixture(autouse=True)
def flights(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.define()
    control_plane.api.create(path_of(*GROUPS, namespace), group(namespace))


ONLY_LIBRARIES = """
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


@functools.cache
def only_libraries() -> str:
    """Python that finds no libraries but those that the krew archive has."""
    lock = (ROOT / "requirements" / "kubectl-slackwater.txt").read_text(encoding="utf-8")
    locked = {name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    hidden = {
        package
        for package, owners in importlib.metadata.packages_distributions().items()
        if not locked & {owner.lower().replace("_", "-") for owner in owners}
    }
    assert {"pyarrow", "kopf"} <= hidden
    return ONLY_LIBRARIES.format(hidden=sorted(hidden - {"slackwater", "slackwater_operator"}))


class Plugin:
    """Runs the plugin as kubectl does, in this process."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane, self._namespace = plane, namespace

    def run(
        self, *words: str, function: Callable[[Sequence[str]], int] = main, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        with (
            mock.patch.dict(os.environ, self._plane.environment(kubeconfig)),
            contextlib.redirect_stdout(io.StringIO()) as output,
            contextlib.redirect_stderr(io.StringIO()) as errors,
        ):
            code = function(words)
        return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())

    def __call__(self, *words: str, **options: Any) -> str:
        """What it prints. It must end well."""
        ended = self.run(*words, "-n", self._namespace, **options)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def refused(self, *words: str, code: int = 1, **options: Any) -> str:
        """The line that it refuses with."""
        ended = self.run(*words, "-n", self._namespace, **options)
        assert (ended.returncode, ended.stdout) == (code, "")
        [line] = ended.stderr.splitlines()
        return line


@pytest.fixture
def plugin(control_plane: ControlPlane, namespace: str) -> Plugin:
    return Plugin(control_plane, namespace)


@pytest.fixture
def resource(control_plane: ControlPlane, namespace: str) -> Any:
    def read() -> Object:
        document = control_plane.api.get(path_of(*GROUPS, namespace, "flights"))
        assert document is not None
        return document

    return read


def test_kubectl_finds_it_and_it_needs_the_libraries_of_the_krew_archive(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    # Patterns are matched by a library of their own.
    patterns = group(namespace, "patterns")
    patterns["spec"] |= {"topicPattern": "flights-.*"}
    del patterns["spec"]["topics"]
    control_plane.api.create(path_of(*GROUPS, namespace), patterns)
    program = tmp_path / "kubectl-slackwater"
    call = f"from {main.__module__} import main\nsys.exit(main())\n"
    program.write_text(f"#!{sys.executable}\n{only_libraries()}\n{call}")
    program.chmod(0o755)
    known = control_plane.environment()
    ended = subprocess.run(
        [str(kubectl_program()), "slackwater", "explain", "patterns", "-n", namespace],
        env={
            **known,
            "PATH": f"{tmp_path}{os.pathsep}{known['PATH']}",
            "PYTHONPATH": f"{ROOT / 'operator'}{os.pathsep}{ROOT / 'worker'}",
        },
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert f"{namespace}/patterns" in ended.stdout.splitlines()[0]
    assert "Kafka group patterns" in ended.stdout


@pytest.mark.long
def test_annotations_that_the_operator_acts_on(plugin: Plugin, resource: Any) -> None:
    def annotation(name: str) -> str | None:
        value: str | None = (resource()["metadata"].get("annotations") or {}).get(f"slackwater.dev/{name}")
        return value

    assert plugin("restart", "flights") == "consumergroup.slackwater.dev/flights restarts its workers\n"
    first = annotation("restartedAt")
    assert first is not None
    plugin("restart", "flights")
    assert annotation("restartedAt") not in (None, first), "each restart has a value of its own"
    plugin("pause", "flights")
    assert annotation("paused") == "true"
    plugin("resume", "flights")
    assert annotation("paused") is None
    plugin("retry", "flights")
    assert annotation("retry") is not None
    plugin("rewind", "flights", "flights:3:4200", "flights:4:start")
    assert annotation("rewind") == "flights:3:4200 flights:4:start"
    plugin("rewind", "flights", "flights:3:4200", "flights:4:start")
    again = annotation("rewind")
    assert again is not None
    assert again.startswith("flights:3:4200 flights:4:start #"), "once more, so another value"


@pytest.mark.long
def test_fields_of_the_resource(
    control_plane: ControlPlane, namespace: str, plugin: Plugin, resource: Any
) -> None:
    plugin("suspend", "flights")
    assert resource()["spec"]["suspend"] is True
    plugin("unsuspend", "flights")
    assert resource()["spec"]["suspend"] is False
    plugin("scale", "flights", "--replicas", "5")
    assert resource()["spec"]["replicas"] == 5
    patch = {"spec": {"scaling": {"lagPerReplica": 1000}, "rollout": {"paused": True}, "replicas": None}}
    control_plane.api.patch(path_of(*GROUPS, namespace, "flights"), patch)
    assert "spec.scaling.lagPerReplica" in plugin.refused("scale", "flights", "--replicas", "2")
    assert "spec.rollout.paused is true" in plugin.refused("resume", "flights")
    assert "spec.maintenance" in plugin.refused("maintain", "flights")
    delta = {"sink": {"format": "delta", "path": "/data/flights"}}
    control_plane.api.patch(
        path_of(*GROUPS, namespace, "flights"),
        {"spec": {"pipeline": delta, "maintenance": [{"every": "1h"}]}},
    )
    plugin("maintain", "flights")
    assert resource()["metadata"]["annotations"]["slackwater.dev/maintain"]


@pytest.mark.long
def test_what_is_not_permitted_or_not_there(
    control_plane: ControlPlane, namespace: str, plugin: Plugin
) -> None:
    rules = [{"apiGroups": ["slackwater.dev"], "resources": ["consumergroups"], "verbs": ["get", "list"]}]
    reader = control_plane.kubeconfig_for(namespace, "reader", rules=rules)
    assert "cannot patch resource" in plugin.refused("restart", "flights", kubeconfig=reader)
    assert "did you mean flights?" in plugin.refused("restart", "flihgts", code=2)


@pytest.mark.long
def test_names_of_groups_are_completed(plugin: Plugin, namespace: str) -> None:
    ended = plugin.run("-n", namespace, "status", "fl", function=complete)
    assert ended.stdout.splitlines() == ["flights", ":4"]
    assert plugin.run("-n", namespace, "status", "x", function=complete).stdout.splitlines() == [":4"]


def set_status(plane: ControlPlane, namespace: str, **rollout: Any) -> None:
    """The status as the operator writes it for the present generation."""
    path = path_of(*GROUPS, namespace, "flights")
    current = plane.api.get(path)
    assert current is not None
    status = {"observedGeneration": current["metadata"]["generation"], "rollout": rollout}
    plane.api.patch(f"{path}/status", {"status": status})


@pytest.mark.long
def test_a_step_is_promoted_and_a_rollout_aborted(
    control_plane: ControlPlane, namespace: str, plugin: Plugin, resource: Any
) -> None:
    def annotation(name: str) -> str:
        return str((resource()["metadata"].get("annotations") or {}).get(f"slackwater.dev/{name}"))

    assert "no rollout is at a step" in plugin.refused("promote", "flights")
    steps = [{"setWorkers": 1}, {"pause": {}}]
    control_plane.api.patch(path_of(*GROUPS, namespace, "flights"), {"spec": {"rollout": {"steps": steps}}})
    assert "not processed the newest spec" in plugin.refused("abort", "flights")
    step = {"revision": "bb", "steps": "x", "index": 1, "sinceMs": 1, "measuredMs": 1}
    set_status(control_plane, namespace, phase="Paused", wanted="bb", goodRevision="aa", step=step)
    assert "goes on after step 2 of 2" in plugin("promote", "flights")
    assert annotation("promote").split()[0] == "2"
    plugin("promote", "flights", "--full")
    assert annotation("promote").split()[0] == "all"
    assert "stops the rollout of revision bb, and goes back to aa" in plugin("abort", "flights")
    assert annotation("abort") == "bb"
    plugin("retry", "flights")
    assert annotation("abort") == "None", "a retry takes the abort back"
    set_status(control_plane, namespace, phase="Idle", wanted="aa", goodRevision="aa", step=None)
    assert "all workers have revision aa" in plugin.refused("abort", "flights")
    assert "no rollout is at a step" in plugin.refused("promote", "flights")


def test_undo_goes_back_to_a_kept_revision(
    control_plane: ControlPlane, namespace: str, plugin: Plugin, resource: Any
) -> None:
    path = path_of(*GROUPS, namespace, "flights")
    assert "there is no earlier revision" in plugin.refused("undo", "flights")

    def keep(name: str, number: int) -> None:
        """The spec as it is, kept as the operator keeps it."""
        current = resource()
        parsed, _ = read_resource(current, worker_image="w")
        kept = revision_record(parsed, name, revision_source(current), number=number)
        control_plane.api.create(path_of("v1", "configmaps", namespace), kept)

    keep("aa", 1)
    original = resource()["spec"]
    pipeline = {"handler": "flights.pipeline:other", "handlerTimeout": "1m"}
    control_plane.api.patch(path, {"spec": {"pipeline": pipeline, "replicas": 4}})
    keep("bb", 2)
    set_status(control_plane, namespace, wanted="bb", goodRevision="aa")
    listed = [line.split()[:2] for line in plugin("history", "flights").splitlines()]
    assert listed == [["NUMBER", "REVISION"], ["2", "bb"], ["1", "aa"]]
    assert "goes back to revision 1 (aa)" in plugin("undo", "flights")
    assert resource()["spec"]["pipeline"] == original["pipeline"], "what the later revision had added is gone"
    assert resource()["spec"]["replicas"] == 4, "not part of a revision"
    assert "already" in plugin.refused("undo", "flights", "--to-revision", "1")
    assert "goes back to revision 2 (bb)" in plugin("undo", "flights", "--to-revision", "bb")
    assert resource()["spec"]["pipeline"]["handlerTimeout"] == "1m"
    assert "revision 9 is not kept; kept: 2, 1" in plugin.refused("undo", "flights", "--to-revision", "9")
    options = plugin.run("undo", "--", function=complete).stdout.splitlines()
    assert "--to-revision" in options


@pytest.fixture
def worker_port() -> Iterator[int]:
    """A server on all addresses of this machine that answers /status as a worker does."""
    status = Status("flights", "flights-0", VirtualClock(), phase="running", generation=7)
    status.assignment, status.lag = [["flights", 0], ["flights", 1]], {"flights-0": 40, "flights-1": 2}
    body = json.dumps(status.document()).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/status" else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def own_address() -> str:
    """An address of this machine that is not a loopback one, where it has any: by its routes, nothing is
    sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def test_status_asks_the_pods_through_the_api_server(
    control_plane: ControlPlane, namespace: str, plugin: Plugin, worker_port: int
) -> None:
    api, labels = control_plane.api, names.labels("flights")
    container = {
        "name": "worker",
        "image": "flights:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    secure = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": secure}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "flights-0",
            "namespace": namespace,
            "labels": labels,
            "annotations": {names.HEALTH_PORT: str(worker_port)},
        },
        # No kubelet has this node's name, so nobody but the test reports on the pod.
        "spec": {**spec, "nodeName": "nobody"},
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        # Its controller takes no pod of such a name for one of its own.
        "metadata": {"name": "flights-a", "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": names.selector("flights")},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    owner = api.create(path_of("apps/v1", "statefulsets", namespace), stateful_set)
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "flights-a"}
    pod["metadata"]["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"]}]
    api.create(path_of("v1", "pods", namespace), pod)
    address = own_address()
    api.patch(
        path_of("v1", "pods", namespace, "flights-0", "status"),
        {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}},
    )
    text = plugin("status", "flights")
    assert f"ConsumerGroup {namespace}/flights" in text
    assert "StatefulSet flights-a" in text
    assert "Pod flights-0  Running" in text
    if address.startswith("127."):  # an API server connects to no loopback address of a pod
        assert "does not answer" in text
    else:
        assert "running, member of generation 7" in text
        assert "flights 0-1: lag 42" in text
        assert [line.split() for line in plugin("lag", "flights", "--sort-by-lag").splitlines()] == [
            ["TOPIC", "PARTITION", "LAG", "POD"],
            ["flights", "0", "40", "flights-0"],
            ["flights", "1", "2", "flights-0"],
        ]
    rules = [
        {"apiGroups": ["slackwater.dev"], "resources": ["consumergroups"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["list"]},
    ]
    viewer = control_plane.kubeconfig_for(namespace, "viewer", rules=rules)
    assert "you may not get pods/proxy" in plugin("status", "flights", kubeconfig=viewer)
    assert "you may not get pods/proxy" in plugin.refused("lag", "flights", kubeconfig=viewer)
