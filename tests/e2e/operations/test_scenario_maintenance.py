"""A Delta table of many small files is compacted by Jobs of the operator while its group writes to it."""

from __future__ import annotations

from collections import Counter

import pytest

from slackwater.pipeline.sinks.compaction import LEAST_FILES
from tests.support.controlplane import path_of, until
from tests.support.controlplane.api import Json
from tests.support.delta import DeltaFolder
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.operator import OperatorProcess

pytestmark = pytest.mark.controlplane

MANY = 30


def files(group: Group) -> int:
    """How many data files the table's last version has."""
    return len(DeltaFolder(group.sink).files) if (group.sink / "_delta_log").exists() else 0


def maintained(group: Group, request: str) -> Json:
    """Has the table maintained now; its row of the status when that is done."""
    group.annotate(maintain=request)

    def done() -> Json | None:
        (row,) = group.status()["maintenance"]
        return dict(row) if row.get("request") == request and row["phase"] != "Running" else None

    return until(done, "the table is maintained")


def jobs_and_pods(group: Group) -> list[str]:
    api, namespace = group.site.plane.api, group.site.namespace
    return [
        document["metadata"]["name"]
        for version, plural in (("batch/v1", "jobs"), ("v1", "pods"))
        for document in api.list(path_of(version, plural, namespace))
        if "-maintenance-" in document["metadata"]["name"]
    ]


@pytest.mark.long
def test_many_small_files_become_few_while_the_group_writes(
    cluster: ClusterSite, operator: OperatorProcess, namespace: str
) -> None:
    group = cluster.group(
        f"maintain-{namespace}",
        partitions=2,
        replicas=2,
        pipeline={"sink": {"format": "delta"}},
        maintenance=[{"every": "24h", "clusterBy": ["offset"], "resources": {"limits": {"memory": "1Gi"}}}],
    )
    group.await_settled(2)
    since, uids = now_ms(), group.uids()
    with group.load(rate=50) as load:
        until(lambda: files(group) >= MANY, "many small files")
        row = maintained(group, "while it writes")
        assert (row["phase"], row["table"]) == ("Succeeded", str(group.sink))
        assert row["compacted"] >= MANY > row["written"] >= 1
        produced = load.stop()
    places = Counter((record.partition, record.offset) for record in produced)
    until(lambda: DeltaFolder(group.sink).places() == places, "each record is there once")
    assert maintained(group, "again")["phase"] == "Succeeded"
    assert files(group) <= LEAST_FILES
    assert DeltaFolder(group.sink).places() == places
    labels = frozenset({"namespace": namespace, "group": group.name, "table": str(group.sink)}.items())
    metrics = operator.metrics()
    assert metrics["slackwater_maintenance_last_success_time_seconds", labels] * 1000 > since
    assert metrics["slackwater_maintenance_failures", labels] == 0
    assert group.uids() == uids
    assert group.rebalances(since) == 0, group.tell()
    group.await_condition("Ready")
    until(lambda: not jobs_and_pods(group), "the Jobs are gone")
