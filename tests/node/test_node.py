"""What the process kubelet cannot show: images, containers, probes, limits, DNS, Services, a drain.

One node for all tests, each with a group of its own, which it removes.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from typing import Any

import pytest

from tests.node.conftest import NAMESPACE, Report
from tests.node.scenarios import (
    NEW_IMAGE,
    RATE,
    gaps,
    running,
    scale,
    seconds,
    settled,
    under_load,
    with_handler,
)
from tests.support.controlplane import ApiError, until
from tests.support.controlplane.api import Json
from tests.support.controlplane.build import kubectl
from tests.support.node import images
from tests.support.node.node import NAME
from tests.support.node.phases import PHASES, RestartPhases, restart_phases
from tests.support.node.site import NodeSite, flight, order
from tests.support.processes import OwnedProcess
from tests.support.site import Group, Pauses, now_ms

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]


def test_the_chart_as_the_readme_has_it(site: NodeSite, report: Report) -> None:
    """helm install and helm test, then the first group: to its first record; the images are on the node."""
    said = site.plane.helm("test", "slackwater", "--namespace", NAMESPACE, "--logs", "--timeout", "120s")
    assert "2 of 2 operators are ready" in said, said
    manifest = site.manifest("orders/autoscaled.yaml")
    del manifest["spec"]["scaling"]["schedules"]  # six workers in working hours
    site.make_topic("orders", 6)
    started = time.monotonic()
    group = site.apply(manifest, partitions=6)
    with group.load(rate=RATE, value=order) as load:
        until(lambda: group.handled_count() > 0, "the first record in the sink", 180)
        first_s = time.monotonic() - started
        group.await_settled(2)
        group.await_condition("Ready")
        produced = load.stop()
    group.await_handled(produced)
    verdict = group.verify(produced)
    assert verdict.exact, verdict
    report.add(
        "`helm install --wait`, `helm test`, `kubectl apply` of `examples/orders/autoscaled.yaml`",
        f"installed in {site.install_s:.1f} s; first record in its file {first_s:.1f} s after the apply; "
        f"{verdict.produced} records, 0 lost, 0 doubled",
    )
    site.remove(group)


def test_restart_to_a_new_image(site: NodeSite, report: Report) -> None:
    with running(site, "orders/takeover.yaml", "restarted", 2, rollout={"strategy": "Restart"}) as group:
        since = now_ms()

        def roll() -> None:
            group.roll(NEW_IMAGE)
            group.await_rolled(NEW_IMAGE, 2)
            group.await_settled(2)

        cost = under_load(group, roll)
        report.add("Restart of 2 workers to a new image", f"{cost}; gaps {seconds(gaps(group, since))}")
        assert group.rebalances(since) == 0, group.tell()
        measured = [restart_phases(group, site.pods, restart) for restart in group.restarts(since)]
        phases = [phase for phase in measured if phase is not None]
        assert len(phases) == 2, group.restarts(since)
        report.add("where a restart's gap goes", "; ".join(map(by_phase, phases)))


def by_phase(restart: RestartPhases) -> str:
    parts = ", ".join(f"{name} {restart.phases[name] / 1000:.2f}" for name in PHASES)
    return f"{parts} s (pod's start to joined {restart.start_to_joined_ms / 1000:.2f} s)"


def test_restart_at_rest(site: NodeSite, report: Report) -> None:
    """Nothing to read, nothing else to do for the machine: from the pod's start to the membership."""
    with running(site, "orders/takeover.yaml", "at-rest", 1, rollout={"strategy": "Restart"}) as group:
        uid = group.uids()["at-rest-0"]
        site.plane.kubectl("-n", site.namespace, "delete", "pod", "at-rest-0")
        until(lambda: group.uids().get("at-rest-0", uid) != uid, "another pod", 120)
        group.await_settled(1)
        events = [event for event in group.worker_events() if event.event == "joined"]
        joined = max(event.ts_ms for event in events)
        begun = [e.ts_ms for e in site.pods.sandboxes(site.namespace, "at-rest-0") if e.event == "started"]
        report.add("a pod's start to its membership, at rest", f"{(joined - max(begun)) / 1000:.2f} s")


def test_takeover_to_a_new_image(site: NodeSite, report: Report) -> None:
    with running(site, "orders/takeover.yaml", "taken-over", 2) as group:
        since = now_ms()
        pauses: list[int] = []

        def roll() -> None:
            group.roll(NEW_IMAGE)
            group.await_rolled(NEW_IMAGE, 2)
            group.await_settled(2)
            workers = group.await_taken_over()
            reported = [(worker["takeover"] or {})["pauses_ms"] for worker in workers.values()]
            pauses.extend(int(ms) for each in reported for ms in each.values())

        cost = under_load(group, roll)
        assert all(takeover.same_generation for takeover in group.takeovers(since)), group.takeovers(since)
        assert group.rebalances(since) == 0, group.tell()
        report.add("Takeover of 2 workers to a new image", f"{cost}; {Pauses.of(pauses)}")


def test_kill_9_of_a_worker(site: NodeSite, report: Report) -> None:
    with running(site, "orders/takeover.yaml", "killed", 2, rollout={"strategy": "Restart"}) as group:
        since = now_ms()
        uids = group.uids()

        def kill() -> None:
            site.pods.kill(site.namespace, "killed-1")
            until(lambda: restarts_of(group, "killed-1") == 1, "a restart in place", 120)
            group.await_settled(2)

        cost = under_load(group, kill)
        assert group.uids() == uids, "the pod is the same, its container is another one"
        assert group.rebalances(since) == 0, group.tell()
        report.add(
            "kill -9 of a worker (its container restarts)", f"{cost}; gap {seconds(gaps(group, since))}"
        )


def restarts_of(group: Group, pod: str) -> int:
    status = next(p["status"] for p in group.pods() if p["metadata"]["name"] == pod)
    return int(status["containerStatuses"][0]["restartCount"])


FILLS = """\
import pathlib

from orders.pipeline import as_table as orders

FILL = pathlib.Path("/data/fill")


def as_table(table):
    if table.num_rows and FILL.exists():
        FILL.unlink()
        held = [b"x" * 2**24 for _ in range(64)]  # 1 GiB; the limit is 512 MiB
    return orders(table)
"""


def test_a_worker_out_of_memory(site: NodeSite, report: Report) -> None:
    manifest = site.manifest("orders/takeover.yaml", "large", replicas=2, rollout={"strategy": "Restart"})
    with settled(site, with_handler(site, manifest, "filling", FILLS), 2) as group:
        since = now_ms()

        def fill() -> None:
            (site.folder / "fill").touch()
            until(lambda: any(ended_by_memory(pod) for pod in group.pods()), "an OOM kill", 120)
            group.await_settled(2)

        cost = under_load(group, fill)
        assert group.rebalances(since) == 0, group.tell()
        report.add(
            "a worker OOMKilled (its container restarts)", f"{cost}; gap {seconds(gaps(group, since))}"
        )


def ended_by_memory(pod: Json) -> bool:
    containers = pod["status"].get("containerStatuses", [])
    ends = [container.get("lastState", {}).get("terminated", {}) for container in containers]
    return any(end.get("reason") == "OOMKilled" for end in ends)


def test_scale_up_and_down(site: NodeSite, report: Report) -> None:
    with running(site, "orders/takeover.yaml", "scaled", 2, rollout={"strategy": "Restart"}) as group:
        steps: list[int] = []

        cost = under_load(group, lambda: steps.extend(scale(site, group, 4, 2)))
        assert steps == [1, 1], group.tell()
        report.add("scale 2 to 4, and back to 2", f"1 rebalance each; {cost.partition('; ')[2]}")


def test_a_group_that_goes_over_to_the_consumer_protocol(site: NodeSite, report: Report) -> None:
    with running(site, "orders/takeover.yaml", "consumer", 2) as group:
        since = now_ms()
        steps: list[int] = []

        def live() -> None:
            group.change(kafka={"groupProtocol": "Consumer"}, pipeline={"image": NEW_IMAGE})
            group.await_rolled(NEW_IMAGE, 2)
            group.await_settled(2)
            pod = min(group.uids())
            site.pods.kill(site.namespace, pod)
            until(lambda: restarts_of(group, pod) == 1, "a restart in place", 120)
            group.await_settled(2)
            steps.append(group.rebalances(since))
            steps.extend(scale(site, group, 4, 2))

        cost = under_load(group, live)
        assert (steps[0], 0 < steps[1] <= 2, 0 < steps[2] <= 2) == (0, True, True), group.tell()
        report.add(
            "to the consumer protocol by takeover, kill -9, scale 2 to 4, and back to 2",
            f"{steps[0]}, {steps[1]} and {steps[2]} epochs; {cost.partition('; ')[2]}",
        )


def test_a_drain_honours_the_budget(site: NodeSite, report: Report) -> None:
    with running(site, "orders/takeover.yaml", "drained", 2, rollout={"strategy": "Restart"}) as group:
        since = now_ms()
        refused: list[str] = []

        def drain() -> None:
            # As `kubectl drain`: the second pod while the first is not back.
            uids = group.uids()
            until(lambda: len(group.ready_pods()) == 2 and group.evictable() == 1, "a settled budget")
            for pod in uids:
                evict(site, pod, refused)
            until(lambda: set(group.uids().values()).isdisjoint(uids.values()), "other pods", 120)
            group.await_settled(2)

        cost = under_load(group, drain)
        assert refused, "the budget lets one pod go at a time"
        assert group.rebalances(since) == 0, group.tell()
        report.add(
            "eviction of both workers, one after another by the budget",
            f"{cost}; gaps {seconds(gaps(group, since))}",
        )


def test_kubectl_drain_and_uncordon(site: NodeSite, report: Report) -> None:
    """One node: what is evicted waits for its return, and the budget keeps the other worker there."""
    with running(site, "orders/takeover.yaml", "cordoned", 2, rollout={"strategy": "Restart"}) as group:
        since = now_ms()
        said: list[str] = []

        def drain() -> None:
            until(lambda: len(group.ready_pods()) == 2 and group.evictable() == 1, "a settled budget")
            flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=12s")
            try:
                said.append(site.plane.kubectl("drain", NAME, *flags, check=False))
                waiting = [pod for pod in group.pods() if not pod["spec"].get("nodeName")]
                assert len(waiting) == 1, "one worker is evicted, and waits for a node"
                assert len(group.ready_pods()) == 1, "the other one works on"
            finally:
                site.plane.kubectl("uncordon", NAME)
            group.await_settled(2)
            until(lambda: len(group.ready_pods()) == 2 and group.evictable() == 1, "a settled budget")

        cost = under_load(group, drain)
        print(said[0])
        assert "Cannot evict pod as it would violate the pod's disruption budget" in said[0]
        assert group.rebalances(since) == 0, group.tell()
        (gap,) = gaps(group, since)
        report.add(
            "`kubectl drain` of the only node, given up after 12 s, and `kubectl uncordon`",
            f"1 of 2 workers evicted, the other one kept by the budget; {cost}; gap {gap / 1000:.1f} s",
        )


def evict(site: NodeSite, pod: str, refused: list[str]) -> None:
    def gone() -> bool:
        try:
            site.plane.api.evict(site.namespace, pod)
        except ApiError as exc:
            if exc.status != 429:
                raise
            refused.append(pod)
            return False
        return True

    until(gone, f"the eviction of {pod}", 120, every_s=0.5)


def test_port_forward(site: NodeSite, report: Report) -> None:
    with running(site, "orders/takeover.yaml", "forwarded", 1, rollout={"strategy": "Restart"}) as group:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        forward = OwnedProcess(
            [str(kubectl()), "-n", site.namespace, "port-forward", "pod/forwarded-0", f"{port}:8080"],
            env=site.plane.environment(), output=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            status = until(lambda: worker_status(port), "the worker's status", 30)
        finally:
            forward.kill()
        assert status["phase"] == "running"
        assert len(status["assignment"]) == group.partitions
        report.add("`kubectl port-forward` to a worker", "`/status` and `/metrics` answer")


def worker_status(port: int) -> dict[str, Any] | None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
        return dict(json.load(answer))


def test_spark_in_the_pod(site: NodeSite, report: Report) -> None:
    site.node.load(images.spark_users())
    manifest = site.manifest("flights/spark-local.yaml", "sparks", replicas=1)
    with settled(site, manifest, 1) as group:
        since = now_ms()

        def restart() -> None:
            uid = group.uids()["sparks-0"]
            site.plane.kubectl("-n", site.namespace, "delete", "pod", "sparks-0")
            until(lambda: group.uids().get("sparks-0", uid) != uid, "another pod", 120)
            group.await_settled(1)

        cost = under_load(group, restart, value=flight)
        assert group.rebalances(since) == 0, group.tell()
        report.add(
            "a worker with Spark and a JVM in its pod, restarted",
            f"{cost}; gap {seconds(gaps(group, since))}",
        )


def test_spark_as_a_user_that_openshift_picks(site: NodeSite, report: Report) -> None:
    """Its id is in no passwd, its group 0; the root file system is read-only, as in all pods of workers."""
    site.node.load(images.spark_users())
    manifest = site.manifest("flights/spark-local.yaml", "openshift", replicas=1)
    user = {"runAsUser": 1000660000, "runAsGroup": 0, "fsGroup": 1000660000}
    manifest["spec"]["template"]["spec"]["securityContext"] = user
    with settled(site, manifest, 1) as group:
        cost = under_load(group, lambda: None, value=flight)
        owners = {path.stat().st_uid for path in (site.folder / "openshift").rglob("*.parquet")}
        assert owners == {user["runAsUser"]}
        report.add(f"a worker with Spark as user {user['runAsUser']} of group 0", cost)
