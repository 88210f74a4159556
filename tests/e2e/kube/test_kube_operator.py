"""The operator's process against a real API server: the Lease, its end in each way, health and metrics."""

from __future__ import annotations

import contextlib
import html
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slackwater.kafka.admin import KafkaAdmin, NewTopic
from tests.e2e.kube.kube_objects import group
from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.devbroker import DevBroker
from tests.support.proxies import ApiProxy
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.controlplane

LEASE_S = 15
AT_ONCE_S = 10
"""What takes less did not wait for the end of a Lease."""
LEASE_LOST = 3
POLL_S = 0.25
"""Where seconds pass: a look costs the processes that are asked CPU time, too."""


@pytest.fixture(scope="module", autouse=True)
def crds(control_plane: ControlPlane) -> None:
    control_plane.define()


class OperatorProcess:
    """One `slackwater-operator`, started on a free port."""

    def __init__(self, environment: dict[str, str], log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "slackwater_operator.cli.operator",
                    "--http-host=127.0.0.1",
                    "--http-port=0",
                    *arguments,
                ],
                env=environment,
                stderr=out,
                stdout=out,
            )
        self.port = int(self.said(r"http on port (\d+)"))

    @property
    def text(self) -> str:
        """All that it has logged."""
        return self._log.read_text()

    def said(self, pattern: str, timeout_s: float = HANG_S) -> str:
        """Waits for a line; gives its first group, or all that matched."""

        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, (
                f"it ended with {self.process.returncode}:\n{self.text[-3000:]}"
            )
            return re.search(pattern, self.text)

        match = until(look, f"{pattern!r} in the log", timeout_s)
        return match[1] if match.re.groups else match[0]

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an HTTP request."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def leads(self) -> bool:
        """Whether it says so."""
        return self.get("/healthz")[1] == "leading\n"

    def end(self) -> None:
        """However it is."""
        self.process.kill()
        self.process.wait(10)


Start = Callable[..., OperatorProcess]


@pytest.fixture
def start(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Starts operators for the test's namespace; they are ended afterwards."""
    with contextlib.ExitStack() as all_of_them:
        count = 0

        def started(*arguments: str, kubeconfig: Path | None = None) -> OperatorProcess:
            nonlocal count
            count += 1
            environment = {**control_plane.environment(kubeconfig), "POD_NAMESPACE": namespace}
            path = f"{Path.cwd() / 'operator'}:{Path.cwd() / 'worker'}"
            made = OperatorProcess(
                {**environment, "POD_NAME": f"op-{count}", "PYTHONPATH": path},
                tmp_path / f"operator-{count}.log",
                "--namespace",
                namespace,
                *arguments,
            )
            all_of_them.callback(made.end)
            return made

        yield started


def lease_of(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    lease = plane.api.get(path_of("coordination.k8s.io/v1", "leases", namespace, "slackwater-operator"))
    assert lease is not None
    spec: dict[str, Any] = lease["spec"]
    return spec


def test_a_template_that_nests_deep_or_has_nulls_stops_no_group(
    control_plane: ControlPlane, namespace: str, start: Start
) -> None:
    levels = 1_500  # beyond Python's limit, within the API server's
    nulls = {"metadata": None, "spec": {"volumes": None, "containers": None}}
    deep = json.dumps(group(namespace, "deep", template="DEEP"))
    deep = deep.replace('"DEEP"', '{"a":' * levels + "{}" + "}" * levels)
    for document in (deep, json.dumps(group(namespace, "nulls", template=nulls))):
        control_plane.kubectl("create", "-n", namespace, "-f", "-", stdin=document)
    start()

    shown = '{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Degraded")].reason}{"\\n"}{end}'

    def both_are_read() -> bool:
        listed = control_plane.kubectl("get", "cg", "-n", namespace, "-o", f"jsonpath={shown}")
        reasons = dict(line.split("=") for line in listed.splitlines())
        return reasons["deep"] == "InvalidSpec" and reasons["nulls"] not in (
            "",
            "InvalidSpec",
            "InternalError",
        )

    until(both_are_read, "InvalidSpec of the group deep, another status of nulls", HANG_S, every_s=0.5)


def test_the_second_operator_leads_within_the_lease_after_a_kill(
    control_plane: ControlPlane, namespace: str, start: Start
) -> None:
    first = start()
    until(first.leads, "the first leads")
    second = start()
    until(lambda: first.get("/readyz") == (200, "leading 0 groups\n"), "the first is ready")
    until(lambda: second.get("/readyz") == (200, "waiting; op-1 leads\n"), "the second waits")
    spec = lease_of(control_plane, namespace)
    assert spec["holderIdentity"] == "op-1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec["renewTime"])
    assert abs(time.time() - _seconds(spec["renewTime"])) < 10  # UTC, whatever the machine's zone

    first.process.send_signal(signal.SIGKILL)
    renewed_s, _, led_s = succession(control_plane, namespace, first, second)
    assert LEASE_S <= led_s - renewed_s < 2 * LEASE_S
    assert lease_of(control_plane, namespace)["leaseTransitions"] == 1


def succession(
    plane: ControlPlane, namespace: str, first: OperatorProcess, second: OperatorProcess
) -> tuple[float, float, float]:
    """Waits until the second leads: when the first renewed the Lease for the last time, when it had ended,
    and when the second led, in s by the wall clock."""
    renewed_s = ended_s = 0.0

    def leads() -> bool:
        nonlocal renewed_s, ended_s
        spec = lease_of(plane, namespace)
        if spec["holderIdentity"] == "op-1":
            renewed_s = _seconds(spec["renewTime"])
        if not ended_s and first.process.poll() is not None:
            ended_s = time.time()
        return second.leads()

    until(leads, "the second leads", every_s=POLL_S)
    return renewed_s, ended_s, time.time()


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


def test_a_clean_stop_hands_over_at_once(control_plane: ControlPlane, namespace: str, start: Start) -> None:
    first = start()
    until(first.leads, "the first leads")
    second = start()
    until(lambda: second.get("/readyz")[1].startswith("waiting; op-1"), "the second waits")
    stopped_s = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(HANG_S) == 0
    assert lease_of(control_plane, namespace)["holderIdentity"] != "op-1", "it was given back"
    until(second.leads, "the second leads")
    assert time.monotonic() - stopped_s < AT_ONCE_S


@pytest.mark.long
def test_a_waiting_replica_stops_at_once(start: Start) -> None:
    first = start()
    until(first.leads, "the first leads")
    second = start()
    until(lambda: second.get("/readyz")[1].startswith("waiting; op-1"), "the second waits")
    stopped_s = time.monotonic()
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(HANG_S) == 0
    assert time.monotonic() - stopped_s < AT_ONCE_S


@pytest.mark.long
def test_a_leader_whose_api_server_hangs_ends_before_its_lease(
    control_plane: ControlPlane, namespace: str, start: Start, tmp_path: Path
) -> None:
    """`kubernetes.aio.leaderelection` does not do this."""
    host, port = control_plane.host_port
    with ApiProxy(f"{host}:{port}") as proxy:
        first = start(kubeconfig=proxy.kubeconfig(control_plane.kubeconfig, tmp_path))
        until(first.leads, "the first leads")
        second = start()
        until(lambda: second.get("/readyz")[1].startswith("waiting; op-1"), "the second waits")
        proxy.hang()
        renewed_s, ended_s, led_s = succession(control_plane, namespace, first, second)
        assert first.process.returncode == LEASE_LOST
        assert "could not be renewed within 10 s; ending" in first.text
        # The last renewal that was stored may be one that the first had no answer to.
        assert 5 < ended_s - renewed_s < LEASE_S <= led_s - renewed_s < 2 * LEASE_S


@pytest.mark.long
def test_a_leader_that_was_suspended_past_its_deadline_ends(start: Start) -> None:
    first = start()
    until(first.leads, "the first leads")
    first.process.send_signal(signal.SIGSTOP)
    time.sleep(12)  # the deadline is 10 s: this is the fault that is made, not a wait for something
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(HANG_S) == LEASE_LOST


def test_a_leader_that_loses_its_lease_ends(
    control_plane: ControlPlane, namespace: str, start: Start
) -> None:
    first = start()
    until(first.leads, "the first leads")
    control_plane.api.patch(
        path_of("coordination.k8s.io/v1", "leases", namespace, "slackwater-operator"),
        {"spec": {"holderIdentity": "somebody"}},
    )
    assert first.process.wait(HANG_S) == LEASE_LOST
    assert "is held by somebody; ending" in first.text


def test_a_short_outage_of_the_api_server_changes_nothing(
    control_plane: ControlPlane, namespace: str, start: Start, tmp_path: Path
) -> None:
    """A proxy cuts the clients off. Restarting the API server could take longer than the Lease's deadline."""
    host, port = control_plane.host_port
    with ApiProxy(f"{host}:{port}") as proxy:
        first = start(kubeconfig=proxy.kubeconfig(control_plane.kubeconfig, tmp_path))
        until(lambda: first.get("/readyz")[0] == 200 and first.leads(), "it leads")
        proxy.cut()
        first.said("could not be renewed")
        assert first.leads()
        proxy.open()
        before = lease_of(control_plane, namespace)["renewTime"]
        until(lambda: lease_of(control_plane, namespace)["renewTime"] != before, "a renewal")
        control_plane.api.create(
            path_of("slackwater.dev/v1alpha1", "consumergroups", namespace), group(namespace)
        )
        until(lambda: first.get("/readyz") == (200, "leading 1 groups\n"), "the new group is seen")
        assert first.process.poll() is None


def rights() -> list[dict[str, Any]]:
    """The table "What it may do"."""
    text = (Path(__file__).parents[3] / "docs" / "design" / "operator.md").read_text()
    rows = re.findall(
        r"^\| ([a-z0-9.]+) \| ([a-z/ ]+) \| ([a-z ]+) \|$", text.split("## What it may do")[1], re.MULTILINE
    )
    return [
        {
            "apiGroups": ["" if api_group == "core" else api_group],
            "resources": resources.split(),
            "verbs": verbs.split(),
        }
        for api_group, resources, verbs in rows
    ]


def test_the_operator_needs_no_more_rights_than_documented(
    control_plane: ControlPlane, namespace: str, start: Start, devbroker: DevBroker
) -> None:
    with KafkaAdmin(devbroker.bootstrap) as admin:
        admin.create_topics([NewTopic(namespace, 2)]).unwrap()
    rules = rights()
    assert len(rules) == 14
    config = control_plane.kubeconfig_for(namespace, "operator", rules=rules)
    first = start("--worker-image", "slackwater-worker:1", kubeconfig=config)
    until(first.leads, "it leads")
    asked: dict[str, Any] = {"topics": [namespace], "kafka": {"bootstrapServers": devbroker.bootstrap}}
    control_plane.api.create(
        path_of("slackwater.dev/v1alpha1", "consumergroups", namespace), group(namespace, **asked)
    )

    def status() -> dict[str, Any] | None:
        document = control_plane.api.get(
            path_of("slackwater.dev/v1alpha1", "consumergroups", namespace, "flights")
        )
        return (document or {}).get("status")

    until(lambda: (status() or {}).get("conditions"), "conditions in the status")
    for api_version, plural in (
        ("v1", "services"),
        ("v1", "configmaps"),
        ("v1", "serviceaccounts"),
        ("policy/v1", "poddisruptionbudgets"),
        ("batch/v1", "jobs"),
        ("events.k8s.io/v1", "events"),
    ):
        path = path_of(api_version, plural, namespace)
        until(partial(control_plane.api.list, path), f"{plural} of the group")
    status_code, page = first.get(f"/groups/{namespace}/flights")
    assert status_code == 200
    assert all(condition["message"] in html.unescape(page) for condition in (status() or {})["conditions"])
    assert f"/groups/{namespace}/flights" in first.get("/")[1]
    assert first.get(f"/groups/{namespace}/trains")[0] == 404
    assert "forbidden" not in first.text.lower()
    assert "Traceback" not in first.text


GROUPS = "slackwater.dev/v1alpha1", "consumergroups"
RBAC = "rbac.authorization.k8s.io"


def grant(plane: ControlPlane, namespace: str, of: str, *, but: str = "") -> None:
    """Gives the ServiceAccount `operator` of the namespace `of` its rights, but those for one resource."""
    allowed = [rule for rule in rights() if but not in rule["resources"]]
    path = path_of(f"{RBAC}/v1", "roles", namespace)
    if plane.api.get(f"{path}/operator") is not None:
        plane.api.patch(f"{path}/operator", {"rules": allowed})
        return
    plane.api.create(path, {"metadata": {"name": "operator"}, "rules": allowed})
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": of}],
    }
    plane.api.create(path_of(f"{RBAC}/v1", "rolebindings", namespace), binding)


def test_a_namespace_that_cannot_be_read_is_reported_and_does_not_hold_the_others(
    control_plane: ControlPlane, namespace: str, start: Start
) -> None:
    """No right at all, then one that is missing, then all of them."""
    api = control_plane.api

    def degraded(where: str) -> dict[str, Any]:
        conditions = (
            (api.get(path_of(*GROUPS, where, "flights")) or {}).get("status", {}).get("conditions", [])
        )
        return next((each for each in conditions if each["type"] == "Degraded"), {})

    with control_plane.namespace() as other:
        config = control_plane.kubeconfig_for(namespace, "operator")
        grant(control_plane, namespace, namespace)
        for where in (namespace, other):
            api.create(path_of(*GROUPS, where), group(where))
        first = start("--namespace", other, "--worker-image", "slackwater-worker:1", kubeconfig=config)
        until(lambda: first.get("/readyz")[0] == 200, "it is ready")
        until(lambda: degraded(namespace), "the group of the other namespace is reconciled")
        assert other in first.get("/readyz")[1]
        until(lambda: 'access="list/watch/get consumergroups' in first.get("/metrics")[1], "the metric")

        def event() -> dict[str, Any] | None:
            events = api.list(path_of("events.k8s.io/v1", "events", namespace))
            return next((event for event in events if event["reason"] == "WatchRefused"), None)

        watch_refused = until(event, "the Event", every_s=POLL_S)
        assert watch_refused["regarding"]["kind"] == "Lease"
        assert other in watch_refused["note"]
        assert "consumergroups.slackwater.dev" in watch_refused["note"]

        grant(control_plane, other, namespace, but="pods")
        until(
            lambda: degraded(other).get("reason") == "Forbidden", "the group says so itself", every_s=POLL_S
        )
        assert "pods" in degraded(other)["message"]
        assert api.list(path_of("v1", "configmaps", other), label_selector="slackwater.dev/group") == []

        grant(control_plane, other, namespace)
        until(lambda: first.get("/readyz") == (200, "leading 2 groups\n"), "it is read again", every_s=POLL_S)
        until(lambda: degraded(other).get("reason") != "Forbidden", "its group is reconciled", every_s=POLL_S)
        assert "slackwater_watch_refused{" not in first.get("/metrics")[1]


@pytest.mark.long
def test_an_operator_that_may_not_discover_its_kind_says_so_and_waits(
    control_plane: ControlPlane, namespace: str, start: Start
) -> None:
    api, binding = control_plane.api, path_of(f"{RBAC}/v1", "clusterrolebindings", name="system:discovery")
    config = control_plane.kubeconfig_for(namespace, "operator")
    grant(control_plane, namespace, namespace)
    subjects = api.request("GET", binding)["subjects"]
    api.patch(binding, {"subjects": []})
    try:
        first = start(kubeconfig=config)
        until(lambda: "get /apis/slackwater.dev/v1alpha1" in first.get("/readyz")[1], "it names the right")
        until(lambda: "slackwater_watch_refused{" in first.get("/metrics")[1], "the metric")
    finally:
        api.patch(binding, {"subjects": subjects})
    until(lambda: first.get("/readyz") == (200, "leading 0 groups\n"), "it leads")
    assert "slackwater_watch_refused{" not in first.get("/metrics")[1]


def test_an_operator_without_election_leads_at_once_with_metrics_and_without_a_lease(
    control_plane: ControlPlane, namespace: str, start: Start
) -> None:
    first = start("--no-leader-election", "--log-format", "json")
    until(first.leads, "it leads")
    assert control_plane.api.list(path_of("coordination.k8s.io/v1", "leases", namespace)) == []
    status, text = first.get("/metrics")
    assert status == 200
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["slackwater_leader"] == 1
    assert values["slackwater_reconcile_errors_total"] == 0
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(HANG_S) == 0
    lines = [json.loads(line) for line in first.text.splitlines()]
    assert {"ts_ms", "level", "logger", "message"} <= set(lines[0])


@pytest.mark.long
def test_a_port_that_is_in_use_is_reported(start: Start, control_plane: ControlPlane) -> None:
    first = start()
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "slackwater_operator.cli.operator",
            f"--http-port={first.port}",
            "--http-host=127.0.0.1",
        ],
        env={
            **control_plane.environment(),
            "PYTHONPATH": f"{Path.cwd() / 'operator'}:{Path.cwd() / 'worker'}",
        },
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 2
    assert str(first.port) in ended.stderr.splitlines()[-1]
