"""The test kit's control plane and its process kubelet do what a cluster does."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command
from tests.support.controlplane import (
    CRASHES,
    ApiError,
    CommandFailed,
    ControlPlane,
    Image,
    path_of,
    unless,
    until,
)
from tests.support.controlplane.kubelet import processes

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

SAFE: Json = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
SLEEPS = "trap 'exit 0' TERM; sleep 600 & wait"


def container(script: str, **more: Any) -> Json:
    return {
        "name": "main",
        "image": "busybox:1",
        "command": ["sh", "-c", script],
        "securityContext": SAFE,
        **more,
    }


def pod(name: str, script: str = SLEEPS, *, spec: Json | None = None, **more: Any) -> Json:
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [container(script, **more)],
            **(spec or {}),
        },
    }


def stateful_set(name: str, replicas: int, **more: Any) -> Json:
    labels = {"app": name}
    template = pod(name, **more)
    return {
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


class Cluster:
    """The control plane, within one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.api = plane.api
        self.namespace = namespace

    def path(self, plural: str, name: str = "", subresource: str = "", version: str = "v1") -> str:
        return path_of(version, plural, self.namespace, name, subresource)

    def create(self, plural: str, body: Json, version: str = "v1") -> Json:
        return self.api.create(self.path(plural, version=version), body)

    def pod(self, name: str) -> Json:
        pod = self.api.get(self.path("pods", name))
        assert pod is not None, f"no pod {name}"
        return pod

    def names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.api.list(self.path("pods"))}

    def ready(self, name: str) -> bool:
        pod = self.api.get(self.path("pods", name))
        return _is_ready(pod or {})

    def state(self, name: str) -> Json:
        """The state of the pod's first container."""
        container: Json = self.pod(name)["status"].get("containerStatuses", [{}])[0]
        return container

    def another_is_ready(self, name: str, uid: str) -> bool:
        """Whether a pod of that name is ready that is not the one of ``uid``."""
        pod = self.api.get(self.path("pods", name))
        return pod is not None and pod["metadata"]["uid"] != uid and _is_ready(pod)

    def await_ready(self, *names: str) -> None:
        for name in names:
            until(lambda name=name: self.ready(name), f"{name} ready")  # type: ignore[misc]

    def log(self, name: str) -> str:
        return self.plane.pods.logs(self.namespace, name)

    def await_log(self, name: str, text: str) -> None:
        until(lambda: text in self.log(name), f"{text!r} in the log of {name}")


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)


def test_kubectl_and_helm_reach_the_control_plane(kubectl: Command, helm: Command) -> None:
    assert "Server Version: v1.35.4" in kubectl("version")
    assert "NAMESPACE" in helm("list", "--all-namespaces")
    with pytest.raises(CommandFailed, match="no-such-pod"):
        kubectl("get", "pod", "no-such-pod")


def test_a_restricted_namespace_refuses_a_pod_without_a_security_context(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match="violates PodSecurity"):
        cluster.create(
            "pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        )


def test_a_stateful_set_scales_and_a_deleted_pod_returns_by_its_name(cluster: Cluster) -> None:
    grace: Json = {"terminationGracePeriodSeconds": 600}
    cluster.create("statefulsets", stateful_set("s", 3, spec=grace), "apps/v1")
    cluster.await_ready("s-0", "s-1", "s-2")
    first = cluster.pod("s-1")["metadata"]["uid"]
    cluster.api.delete(cluster.path("pods", "s-1"))
    # Long before its grace is over, which a pod that ends at once does not need.
    until(lambda: cluster.another_is_ready("s-1", first), "another s-1")

    scale = {"spec": {"replicas": 1}}
    cluster.api.patch(cluster.path("statefulsets", "s", "scale", "apps/v1"), scale)
    until(lambda: cluster.names() == {"s-0"}, "only s-0 left")
    assert len(cluster.plane.pods.running(cluster.namespace)) == 1


@pytest.mark.long
def test_pods_go_to_all_nodes_but_not_to_a_cordoned_one(cluster: Cluster, kubectl: Command) -> None:
    kubectl("cordon", "node-2")
    try:
        for name in ("a", "b"):
            cluster.create("pods", pod(name))
        cluster.await_ready("a", "b")
        assert {cluster.pod(name)["spec"]["nodeName"] for name in ("a", "b")} == {"node-1"}
    finally:
        kubectl("uncordon", "node-2")
    for name in ("c", "d"):
        cluster.create("pods", pod(name))
    cluster.await_ready("c", "d")
    assert {cluster.pod(name)["spec"]["nodeName"] for name in ("c", "d")} == {"node-1", "node-2"}


@pytest.mark.long
def test_a_pod_without_room_is_unschedulable_until_another_pod_ends(cluster: Cluster) -> None:
    def allow(pods: int) -> None:
        path = path_of("v1", "nodes", name="node-1", subresource="status")
        cluster.api.patch(path, {"status": {"allocatable": {"pods": str(pods)}}})

    def scheduled(name: str) -> Json:
        conditions = cluster.pod(name).get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})

    there = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
    cluster.create("pods", pod("a", spec=there))
    cluster.await_ready("a")
    allow(1)
    try:
        cluster.create("pods", pod("b", spec=there))
        until(lambda: scheduled("b"), "word of b")
        assert (scheduled("b")["status"], scheduled("b")["reason"]) == ("False", "Unschedulable")
        assert "nodeName" not in cluster.pod("b")["spec"]
        cluster.api.delete(cluster.path("pods", "a"))
        cluster.await_ready("b")
        assert scheduled("b")["status"] == "True"
    finally:
        allow(500)


@pytest.mark.long
def test_a_drain_evicts_with_grace_and_only_as_the_budget_allows(cluster: Cluster, kubectl: Command) -> None:
    says_goodbye = "trap 'echo goodbye; exit 0' TERM; echo up; sleep 600 & wait"
    cluster.create("statefulsets", stateful_set("s", 2, script=says_goodbye), "apps/v1")
    cluster.await_ready("s-0", "s-1")
    cluster.await_log("s-0", "up")
    budget = {
        "metadata": {"name": "s"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "s"}}},
    }
    cluster.create("poddisruptionbudgets", budget, "policy/v1")
    path = cluster.path("poddisruptionbudgets", "s", version="policy/v1")
    until(lambda: (cluster.api.get(path) or {})["status"].get("currentHealthy") == 2, "budget")
    with pytest.raises(ApiError, match="disruption budget") as refused:
        cluster.api.evict(cluster.namespace, "s-0")
    assert refused.value.status == 429
    cluster.api.patch(path, {"spec": {"maxUnavailable": 1}})
    until(lambda: (cluster.api.get(path) or {})["status"].get("disruptionsAllowed") == 1, "budget")
    node = cluster.pod("s-0")["spec"]["nodeName"]
    try:
        kubectl("drain", node, "--ignore-daemonsets", "--pod-selector=app=s", "--timeout=600s")
        assert "goodbye" in cluster.log("s-0")
        cluster.await_ready("s-0")
        assert cluster.pod("s-0")["spec"]["nodeName"] != node
    finally:
        kubectl("uncordon", node)


@pytest.mark.long
def test_a_deployment_gets_a_service_with_endpoints(cluster: Cluster) -> None:
    spec = pod("web", "exec sleep 600", ports=[{"name": "http", "containerPort": 8080}])["spec"]
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    cluster.create("deployments", {"metadata": {"name": "web"}, "spec": deployment}, "apps/v1")
    port = {"name": "http", "port": 80, "targetPort": "http"}
    cluster.create("services", {"metadata": {"name": "web"}, "spec": {"selector": labels, "ports": [port]}})

    def addresses() -> bool:
        slices = cluster.api.list(cluster.path("endpointslices", version="discovery.k8s.io/v1"))
        ready = [
            e
            for endpoint_slice in slices
            for e in endpoint_slice.get("endpoints") or []
            if e["conditions"]["ready"]
        ]
        return len(ready) == 2 and all(e["addresses"][0].startswith("10.244.") for e in ready)

    until(addresses, "two endpoints")


def test_a_job_reports_success_and_failure(cluster: Cluster) -> None:
    def job(name: str, script: str) -> None:
        spec = pod(name, script, spec={"restartPolicy": "Never"})["spec"]
        body = {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": spec}}}
        cluster.create("jobs", body, "batch/v1")

    def condition(name: str) -> str:
        job = cluster.api.get(cluster.path("jobs", name, version="batch/v1")) or {}
        return ",".join(condition["type"] for condition in job.get("status", {}).get("conditions", []))

    job("good", "echo done")
    job("bad", "exit 7")
    until(lambda: "Complete" in condition("good"), "the good job's end")
    until(lambda: "Failed" in condition("bad"), "the bad job's end")
    bad = next(name for name in cluster.names() if name.startswith("bad"))
    ended = cluster.state(bad)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (7, "Error")
    assert cluster.pod(bad)["status"]["phase"] == "Failed"


@pytest.mark.long
async def test_the_end_of_a_container_spares_one_with_the_same_namespace_number(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The kernel may reuse the number of a mount namespace before its process has been reaped."""

    def start(name: str, script: str) -> processes.ContainerProcess:
        (tmp_path / name).mkdir()
        return processes.start(
            ["sh", "-c", script], environment={"PATH": os.environ["PATH"]}, mounts=[], hostname=name,
            directory="/", log=tmp_path / f"{name}.log", pid_folder=tmp_path, volume_folder=tmp_path / name,
            on_exit=lambda *_: None,
        )  # fmt: skip

    # Nothing is awaited until the numbers are the same, so that the first is not reaped before.
    first = start("first", "exit 7")
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    second = start("second", "trap 'exit 5' TERM; echo up; sleep 600 & wait")
    until(lambda: (tmp_path / "second.log").read_text() == "up\n", "the second")
    (tmp_path / str(first.pid)).write_text((tmp_path / str(second.pid)).read_text())
    assert await first.wait() == 7
    second.terminate()
    assert await second.wait() == 5, "not 137, as of SIGKILL"


@pytest.mark.long
def test_a_container_says_why_it_ended(cluster: Cluster) -> None:
    never: Json = {"restartPolicy": "Never"}
    cluster.create(
        "pods", pod("file", "echo in the log; echo why > /dev/termination-log; exit 1", spec=never)
    )
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    cluster.create("pods", pod("log", "echo in the log; exit 1", spec=never, **fallback))
    cluster.create("pods", pod("nothing", "echo in the log; exit 1", spec=never))

    def ended(name: str) -> Json | None:
        ended: Json | None = cluster.state(name).get("state", {}).get("terminated")
        return ended

    said = {name: until(lambda name=name: ended(name), name).get("message") for name in cluster.names()}  # type: ignore[misc]
    assert said == {"file": "why\n", "log": "in the log\n", "nothing": None}


@pytest.mark.long
def test_probes_change_readiness_and_restart_containers(cluster: Cluster) -> None:
    serve = "mkdir -p $DIR/x; cd $DIR; exec python3 -m http.server 8080 --bind $POD_IP"
    probes = {
        "readinessProbe": {
            "httpGet": {"path": "/ok", "port": "http"},
            "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10,
        },
        "startupProbe": {
            "tcpSocket": {"port": 8080},
            "periodSeconds": 1, "failureThreshold": 100, "timeoutSeconds": 10,
        },
        "livenessProbe": {
            "exec": {"command": ["sh", "-c", "test ! -e $DIR/dead"]},
            "periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 10,
        },
    }  # fmt: skip
    mine = {
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "DIR", "value": "/srv/slackwater-probe-test"},
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "volumeMounts": [{"name": "work", "mountPath": "/srv/slackwater-probe-test"}],
    }
    volumes = {"volumes": [{"name": "work", "emptyDir": {}}]}
    cluster.create("pods", pod("p", serve, spec=volumes, **probes, **mine))
    until(lambda: cluster.state("p").get("started"), "the startup probe")
    assert not cluster.ready("p"), "ready before its probe passed"
    work = _volume(cluster, "p", "work")
    (work / "ok").touch()
    cluster.await_ready("p")
    (work / "ok").unlink()
    until(lambda: not cluster.ready("p"), "not ready")
    assert cluster.state("p")["restartCount"] == 0
    (work / "ok").touch()
    (work / "dead").touch()
    until(lambda: cluster.state("p")["restartCount"] == 1, "a restart by the liveness probe")
    (work / "dead").unlink()
    cluster.await_ready("p")

    def event_is_recorded() -> bool:
        events = cluster.api.list(cluster.path("events"))
        return any("Liveness probe failed: exit code 1" in event["message"] for event in events)

    until(event_is_recorded, "the Event of the liveness probe")


def _volume(cluster: Cluster, name: str, volume: str) -> Path:
    log = cluster.plane.pods.process(cluster.namespace, name).log
    return log.parents[4] / "volumes" / log.parent.name / volume


def test_environment_and_volumes_show_configuration_and_changed_secrets(cluster: Cluster) -> None:
    cluster.create(
        "configmaps", {"metadata": {"name": "c"}, "data": {"greeting": "hello", "file.txt": "text"}}
    )
    cluster.create("secrets", {"metadata": {"name": "s"}, "stringData": {"password": "first"}})
    env = [
        {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "greeting"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "ALL", "value": "$(GREETING)-$(NAME)-$$(NAME)-$(NOTHING)"},
    ]
    root = "/etc/slackwater-kit-test"
    mounts = [
        {"name": "config", "mountPath": f"{root}/config", "readOnly": True},
        {"name": "secret", "mountPath": f"{root}/secret", "readOnly": True},
        {"name": "all", "mountPath": f"{root}/all"},
        {"name": "config", "mountPath": f"{root}/one.txt", "subPath": "file.txt"},
    ]
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    volumes = [
        {"name": "config", "configMap": {"name": "c", "items": [
            {"key": "file.txt", "path": "sub/f"}, {"key": "file.txt", "path": "file.txt"},
        ]}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "all", "projected": {"sources": [
            {"secret": {"name": "s", "optional": True}},
            {"configMap": {"name": "none", "optional": True}},
            {"downwardAPI": {"items": [labels]}},
            {"serviceAccountToken": {"path": "token", "audience": "me"}},
        ]}},
    ]  # fmt: skip
    script = (
        "echo $ALL $PASSWORD $APP $CPU $(hostname);"
        f" cat {root}/config/sub/f {root}/one.txt {root}/all/labels;"
        f" stat -Lc %a {root}/secret/password; wc -c < {root}/all/token;"
        f" touch {root}/config/x || echo read-only;"
        f" cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; {SLEEPS}"
    )
    limits = {"resources": {"limits": {"cpu": "1500m"}}}
    cluster.create(
        "pods",
        pod("p", script, spec={"volumes": volumes}, env=env, envFrom=[{"configMapRef": {"name": "c"}}],
            volumeMounts=mounts, **limits),
    )  # fmt: skip
    cluster.await_log("p", cluster.namespace)
    said = cluster.log("p")
    assert said.startswith("hello-p-$(NAME)-$(NOTHING) first p 2 p\ntexttext"), said
    assert 'app="p"\n' in said
    assert "\n400\n" in said
    assert "read-only" in said

    secret = _volume(cluster, "p", "secret") / "password"
    assert secret.read_text() == "first"
    cluster.api.patch(cluster.path("secrets", "s"), {"stringData": {"password": "second"}})
    until(lambda: secret.read_text() == "second", "the new password in the mounted file")
    cluster.api.patch(cluster.path("pods", "p"), {"metadata": {"labels": {"new": "label"}}})
    shown = _volume(cluster, "p", "all") / "labels"
    until(lambda: 'new="label"' in shown.read_text(), "the new label in the mounted file")


@pytest.mark.long
def test_a_pod_with_its_own_tmp_keeps_its_other_mounts(cluster: Cluster) -> None:
    """The kubelet's own folder may be below /tmp: a volume mounted there must not hide later mounts."""
    cluster.create("configmaps", {"metadata": {"name": "c"}, "data": {"f": "from config"}})
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "config", "configMap": {"name": "c"}}]
    mounts = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "config", "mountPath": "/etc/slackwater-kit-test/deep"},
        {"name": "config", "mountPath": "/tmp/inside"},
    ]
    with tempfile.NamedTemporaryFile(dir="/tmp") as of_the_machine:
        script = (
            "ls -d /tmp/inside; cat /etc/slackwater-kit-test/deep/f /tmp/inside/f; echo mine > /tmp/mine;"
            f" test -e {of_the_machine.name} || echo hidden; {SLEEPS}"
        )
        cluster.create("pods", pod("p", script, spec={"volumes": volumes}, volumeMounts=mounts))
        cluster.await_log("p", "hidden")
    assert cluster.log("p").endswith("/tmp/inside\nfrom configfrom confighidden\n"), cluster.log("p")
    assert (_volume(cluster, "p", "tmp") / "mine").read_text() == "mine\n"
    assert not Path("/tmp/mine").exists()


@pytest.mark.long
def test_a_pod_waits_for_missing_references(cluster: Cluster) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "later", "key": "a"}}}]
    cluster.create("pods", pod("env", "echo $A; exec sleep 600", env=env))
    volumes = {"volumes": [{"name": "v", "secret": {"secretName": "later"}}]}
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/etc/slackwater-kit-test"}]}
    cluster.create(
        "pods", pod("volume", "cat /etc/slackwater-kit-test/a; exec sleep 600", spec=volumes, **mounts)
    )
    cluster.plane.images.push("registry.example/absent:1", Image(missing=True))
    cluster.create("pods", pod("image", image="registry.example/absent:1"))

    def waits(name: str) -> str:
        return str(cluster.state(name).get("state", {}).get("waiting", {}).get("reason"))

    until(lambda: waits("env") == "CreateContainerConfigError", "env waits")
    until(lambda: waits("volume") == "ContainerCreating", "volume waits")
    until(lambda: waits("image") == "ImagePullBackOff", "image waits")
    assert cluster.pod("env")["status"]["phase"] == "Pending"
    cluster.create("secrets", {"metadata": {"name": "later"}, "stringData": {"a": "arrived"}})
    cluster.plane.images.remove("registry.example/absent:1")
    cluster.await_ready("env", "volume", "image")
    cluster.await_log("env", "arrived")
    cluster.await_log("volume", "arrived")


@pytest.mark.long
def test_init_containers_come_first_and_hooks_run(cluster: Cluster) -> None:
    share = {"volumeMounts": [{"name": "v", "mountPath": "/srv/slackwater-init-test"}]}
    first = container("echo from init > /srv/slackwater-init-test/f", **share) | {"name": "init"}
    spec = {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [first],
        "terminationGracePeriodSeconds": 50,  # the hook runs in it
    }
    stop = {
        "exec": {
            "command": [
                "sh",
                "-c",
                "cat /srv/slackwater-init-test/f; echo stopping >> /srv/slackwater-init-test/f",
            ]
        }
    }
    script = "f=/srv/slackwater-init-test/f; trap 'cat $f; exit 0' TERM; cat $f; sleep 600 & wait"
    cluster.create("pods", pod("p", script, spec=spec, lifecycle={"preStop": stop}, **share))
    cluster.await_ready("p")
    cluster.await_log("p", "from init")
    cluster.api.delete(cluster.path("pods", "p"))
    until(lambda: not cluster.names(), "the pod's end")
    assert "stopping" in cluster.log("p"), "preStop runs before SIGTERM"


@pytest.mark.long
def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_period(cluster: Cluster) -> None:
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    cluster.create("pods", pod("p", stubborn, spec={"terminationGracePeriodSeconds": 2}))
    cluster.await_log("p", "up")
    pid = cluster.plane.pods.process(cluster.namespace, "p").pid
    before = time.monotonic()
    cluster.api.delete(cluster.path("pods", "p"))
    until(lambda: not cluster.names(), "the pod's end")
    assert 2 <= time.monotonic() - before < 30, "30 s: the default"
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_a_container_that_ends_restarts_with_a_back_off(cluster: Cluster) -> None:
    cluster.plane.images.push("crashing:1", Image(prefix=unless("--well", CRASHES)))
    cluster.create("pods", pod("bad", image="crashing:1"))
    cluster.create("pods", pod("good", image="crashing:1", args=["--well"]))
    cluster.await_ready("good")

    def backs_off() -> Json | None:
        state = cluster.state("bad")
        waiting = state.get("state", {}).get("waiting", {})
        return state if waiting.get("reason") == "CrashLoopBackOff" else None

    state = until(backs_off, "back-off")
    assert state["restartCount"] == 1, "the first restart comes at once"
    assert state["lastState"]["terminated"]["exitCode"] == 3
    assert "boom" in cluster.log("bad")

    killed = cluster.plane.pods.kill(cluster.namespace, "good", signal.SIGKILL)
    until(lambda: cluster.state("good")["restartCount"] == 1, "a restart after SIGKILL")
    assert cluster.state("good")["lastState"]["terminated"]["exitCode"] == 137
    [again] = until(lambda: cluster.plane.pods.running(cluster.namespace, "good"), "its process")
    assert again.pid != killed


def test_kubectl_logs_shows_the_output_of_a_pod(cluster: Cluster, kubectl: Command) -> None:
    cluster.create("pods", pod("p", f"for i in 1 2 3; do echo line $i; done; {SLEEPS}"))
    cluster.await_log("p", "line 3")
    assert kubectl("-n", cluster.namespace, "logs", "p") == "line 1\nline 2\nline 3\n"
    assert kubectl("-n", cluster.namespace, "logs", "p", "--tail=1") == "line 3\n"


@pytest.mark.long
def test_a_switched_off_node_reports_nothing(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The test starts its own control plane, because the node does not come back."""
    with ControlPlane.start(tmp_path / "p", nodes=("one", "two")) as plane, plane.namespace() as name:
        cluster = Cluster(plane, name)
        cluster.create("statefulsets", stateful_set("s", 2), "apps/v1")
        cluster.await_ready("s-0", "s-1")
        node = cluster.pod("s-0")["spec"]["nodeName"]
        uid = cluster.pod("s-0")["metadata"]["uid"]
        plane.pods.switch_off(node)
        until(lambda: len(plane.pods.running(name)) == 1, "one process less")
        assert cluster.ready("s-0"), "nobody can have said that it isn't"
        plane.api.delete(path_of("v1", "nodes", name=node))
        plane.api.delete(cluster.path("pods", "s-0"), grace_s=0)
        until(lambda: cluster.another_is_ready("s-0", uid), "s-0 elsewhere")
        assert cluster.pod("s-0")["spec"]["nodeName"] != node


@pytest.mark.long
def test_pods_outlive_the_api_server_and_then_catch_up_with_changes(tmp_path: Path) -> None:
    with ControlPlane.start(tmp_path / "p") as plane, plane.namespace() as name:
        cluster = Cluster(plane, name)
        cluster.create("statefulsets", stateful_set("s", 2), "apps/v1")
        cluster.await_ready("s-0", "s-1")
        pids = {process.pod: process.pid for process in plane.pods.running(name)}
        plane.stop_apiserver()
        with pytest.raises(ConnectionRefusedError):
            plane.api.get(path_of("v1", "namespaces"))
        plane.pods.kill(name, "s-1")
        until(
            lambda: any(process.pid != pids["s-1"] for process in plane.pods.running(name, "s-1")),
            "a restart without the API server",
        )
        plane.start_apiserver()
        until(lambda: cluster.state("s-1")["restartCount"] == 1, "the restart in the status")
        assert plane.pods.process(name, "s-0").pid == pids["s-0"]
        cluster.api.delete(cluster.path("pods", "s-0"))
        until(
            lambda: any(process.pid != pids["s-0"] for process in plane.pods.running(name, "s-0")),
            "another s-0",
        )


@pytest.mark.long
@pytest.mark.parametrize("end", ["close", "kill -9 of the kubelet"])
def test_an_ended_control_plane_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    mount = "/etc/slackwater-left-test/deep"
    spec = {"volumes": [{"name": "v", "emptyDir": {}}]}
    script = "setsid sleep 601 & echo $! > /etc/slackwater-left-test/deep/pid; exec sleep 602"
    with ControlPlane.start(tmp_path / "p") as plane:
        name = "default"
        body = pod("p", script, spec=spec, volumeMounts=[{"name": "v", "mountPath": mount}])
        plane.api.create(path_of("v1", "pods", name), body)
        until(lambda: plane.pods.running(name, "p"), "the pod")
        process = plane.pods.process(name, "p")
        escaped = _volume(Cluster(plane, name), "p", "v") / "pid"
        pids = [
            *plane.pids.values(),
            process.pid,
            int(until(lambda: escaped.read_text().strip(), "its child")),
        ]
        network = process.ip.rpartition(".")[0]
        assert f"local {network}.0/24" in _routes()
        until(lambda: Path(mount).exists(), "the mount point")
        if end != "close":
            subprocess.run(["kill", "-9", str(plane.pids["kubelet"])], check=True)
            until(lambda: f"local {network}.0/24" not in _routes(), "the route's end")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the processes' end")
    # By the kubelet's watchdog, which goes on when the kubelet could not wait for it.
    until(lambda: f"local {network}.0/24" not in _routes(), "the route's end")


def _routes() -> str:
    return subprocess.run(
        ["ip", "route", "show", "table", "local"], capture_output=True, text=True, check=True
    ).stdout


def test_a_service_account_has_only_the_rights_of_its_rules(cluster: Cluster) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    cluster.plane.kubeconfig_for(cluster.namespace, "reader", rules=rules)
    reader = cluster.plane.api_for(cluster.namespace, "reader")
    assert reader.list(cluster.path("pods")) == []
    with pytest.raises(ApiError, match="cannot list resource"):
        reader.list(cluster.path("secrets"))
