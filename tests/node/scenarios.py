"""What the scenarios on the node have in common: groups of its size, a load, what an operation costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.support.controlplane import until
from tests.support.controlplane.api import Json
from tests.support.node import images
from tests.support.node.site import NodeSite, order, small
from tests.support.site import Group, now_ms

NEW_IMAGE = images.users("1.1").name
RATE = 200


@contextmanager
def running(site: NodeSite, example: str, name: str, workers: int, **spec: Any) -> Iterator[Group]:
    """A group like an example, in the size of this node, settled; removed afterwards."""
    with settled(site, site.manifest(example, name, replicas=workers, **spec), workers) as group:
        yield group


@contextmanager
def settled(site: NodeSite, manifest: Json, workers: int) -> Iterator[Group]:
    """The group, with three partitions a worker; removed afterwards."""
    group = site.apply(small(manifest), partitions=3 * workers)
    try:
        group.await_settled(workers)
        group.await_condition("RolledOut")
        yield group
    finally:
        site.remove(group)


def with_handler(site: NodeSite, manifest: Json, name: str, text: str) -> Json:
    """The group with the function ``as_table`` of a module that comes from a ConfigMap."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"own.py": text},
    }
    site.plane.kubectl("-n", site.namespace, "apply", "-f", "-", stdin=yaml.safe_dump(config_map))
    manifest["spec"]["pipeline"].update(handlerPath=["/own", "/app"], handler="own:as_table")
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "own", "configMap": {"name": name}})
    pod["containers"][0]["volumeMounts"].append({"name": "own", "mountPath": "/own"})
    return manifest


def under_load(group: Group, act: Callable[[], None], value: Callable[[int], bytes] = order) -> str:
    """What ``act`` costs: rebalances, lost, doubled. No record may be lost or doubled."""
    since = now_ms()
    # What a record waits for the load's turn would count as part of a gap.
    with group.load(rate=RATE, value=value, turn_s=0.02) as load:
        until(lambda: min(group.committed().values()) > 0, "commits of every partition")
        act()
        produced = load.stop()
    group.await_handled(produced)
    verdict = group.verify(produced)
    assert verdict.exact, verdict
    return f"{group.rebalances(since)} rebalances; {verdict.produced} records, 0 lost, 0 doubled"


def scale(site: NodeSite, group: Group, *counts: int) -> list[int]:
    """Scales to each count, one after the other; the rebalances that each step has cost."""
    steps = []
    for count in counts:
        since = now_ms()
        site.plane.kubectl("-n", site.namespace, "scale", "cg", group.name, f"--replicas={count}")
        group.await_settled(count)
        steps.append(group.rebalances(since))
    return steps


def gaps(group: Group, since: int) -> list[int]:
    """The gaps of the restarts, ms."""
    restarts = group.restarts(since)
    assert all(restart.same_generation for restart in restarts), restarts
    gaps = [restart.gap_ms for restart in restarts]
    assert all(gap is not None for gap in gaps), restarts
    return sorted(gap for gap in gaps if gap is not None)


def seconds(values_ms: list[int]) -> str:
    return f"{min(values_ms) / 1000:.1f} to {max(values_ms) / 1000:.1f} s"
