"""A group is rewound by an annotation while records arrive: each one is in the table once afterwards."""

from __future__ import annotations

import pytest

from tests.support.controlplane import path_of, until
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.operator import OperatorProcess
from tests.support.site.sink import handled

pytestmark = pytest.mark.controlplane


def _files(group: Group) -> dict[str, int]:
    """The sink's files, each with the time of its last change."""
    return {path.name: path.stat().st_mtime_ns for path in group.sink.glob("*.parquet")}


def _jobs_and_pods(group: Group) -> list[str]:
    api, namespace = group.site.plane.api, group.site.namespace
    return [
        document["metadata"]["name"]
        for version, plural in (("batch/v1", "jobs"), ("v1", "pods"))
        for document in api.list(path_of(version, plural, namespace))
        if "-rewind-" in document["metadata"]["name"]
    ]


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_an_annotation_rewinds_a_group_and_every_record_is_there_once(
    cluster: ClusterSite, operator: OperatorProcess, namespace: str, killed: bool
) -> None:
    group = cluster.group(f"rewind-{namespace}", partitions=2, replicas=2)
    group.await_settled(2)
    with group.load(rate=0) as load:
        load.burst(200)
        until(lambda: group.handled_count() == 200, "everything handled")
        files, uids = _files(group), group.uids()
        later = [place for place in handled(group.sink) if place[0] == 1 or place[1] >= 30]

        group.annotate(rewind=f"{group.topic}:7:0")
        condition = group.await_condition("Degraded", reason="RewindRefused")
        assert f"{group.topic}-7 does not exist: the topic has 2 partitions" in condition["message"]
        assert group.uids() == uids

        since = now_ms()
        group.annotate(rewind=f"{group.topic}:0:30 {group.topic}:1:start")
        load.rate = 50
        for phase in ("Checking", "Stopping", "Rewinding") if killed else ():
            until(lambda phase=phase: group.status()["rewind"]["phase"] == phase, phase)  # type: ignore[misc]
            operator.restart_after()
        condition = group.await_condition("Rewound")
        assert f"{group.topic}-0: the group continues at offset 30" in condition["message"]
        assert f"{group.topic}-1: the group continues at offset 0" in condition["message"]
        removed = int(condition["message"].split("removed ")[1].split(" rows")[0])
        assert removed >= len(later) > 100, "of partition 0 from offset 30 on, and all of partition 1"
        group.await_settled(2)
        produced = load.stop()
    group.await_handled(produced)
    verdict = group.verify(produced)
    assert verdict.exact, verdict
    assert not files.items() <= _files(group).items(), "rows were written again"
    assert not set(uids.values()) & set(group.uids().values()), "the workers were stopped"
    assert group.rebalances(since) in group.costs(2), group.tell()
    reasons = {event["reason"] for event in group.events()}
    assert {"RewindRefused", "Rewinding", "Rewound"} <= reasons
    group.await_condition("Degraded", "False")
    until(lambda: not _jobs_and_pods(group), "the Jobs gone")
