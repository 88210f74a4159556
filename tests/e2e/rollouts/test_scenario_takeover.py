"""A new image goes through a group by takeover, under load: nobody else hears of it, and pauses are short."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from slackwater.pipeline.engines import spark_session
from tests.support import spark
from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, Pauses, Produced, around, now_ms, usual_pauses

pytestmark = pytest.mark.controlplane

TAKEOVER = {"strategy": "Takeover", "takeover": {"warmTimeout": "5m"}}
QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Several Sparks on one machine: docs/design/spark.md, "Java"."""

LINGER_MS = 100
"""The load's. librdkafka sends each partition's batch by itself: with 5 ms the 5,000 records a second were
nearly as many requests, and three brokers took more than a core for them."""
TURN_S = 0.02
"""Often, so that the time between two records of a partition is no large part of a pause."""
STEADY_S = 10
"""How long the load has been there when the new revision is: brokers that have just begun compile first, and
partitions wait for seconds."""


@dataclass(frozen=True)
class Size:
    """How large a group, and what is asked of it: pauses in ms, as the workers tell them."""

    workers: int
    partitions: int
    rate: float
    median_ms: int
    worst_ms: int


SIZES = [
    pytest.param(Size(4, 12, 600, median_ms=500, worst_ms=1_500), id="4 workers", marks=pytest.mark.long),
    pytest.param(Size(10, 48, 5_000, median_ms=100, worst_ms=500), id="10 workers", marks=pytest.mark.long),
]


@pytest.mark.parametrize("size", SIZES)
def test_a_new_image_rolls_out_by_takeover(cluster: ClusterSite, namespace: str, size: Size) -> None:
    """The goal is a median pause of 50 ms and a worst pause of 250 ms. Two cores that run nothing but the
    workers, three brokers, the control plane and the load meet it. The limits allow for other processes."""
    spec: dict[str, Any] = {
        "partitions": size.partitions,
        "replicas": size.workers,
        "rollout": TAKEOVER,
        "delivery": {"batchInterval": "500ms"},
        "pipeline": {"engine": "python", "handler": "handlers:keep_rows"},
    }
    group = cluster.group(f"over-{namespace}", **spec)
    before = group.await_settled(size.workers)
    group.await_condition("RolledOut")
    with group.load(rate=size.rate, linger_ms=LINGER_MS, turn_s=TURN_S) as load:
        until(lambda: load.sent > STEADY_S * size.rate, "a load that brokers and workers are used to")
        roll = _roll(cluster, group, spec, size.workers)
        after = group.await_settled(size.workers)
        joins, pauses = _taken(group)
        produced = load.stop()
    group.await_handled(produced)
    _check(group, size.workers, roll, produced, (before, after))

    said, by_sink = Pauses.of(list(pauses.values())), _by_sink(group, joins)
    usual = usual_pauses(group.sink, roll.began_ms, roll.ended_ms, joins)
    print(f"as the workers say it: {said}")
    print(f"by the sink's files: {by_sink}; between any other two batches of a partition: {usual}")
    assert said.count == by_sink.count == size.partitions, "each partition was served before and after"
    assert said.median <= size.median_ms, said
    assert said.worst <= size.worst_ms, said
    # The files say when a batch was written, the workers when it was read: a batch lies between the two.
    # No rest does: the old worker takes all that has come, and the new one the first that comes.
    assert by_sink.median <= 2 * size.median_ms, (by_sink, usual)
    assert by_sink.worst <= size.worst_ms, (by_sink, usual)


@pytest.mark.long
def test_a_new_image_rolls_out_by_takeover_on_spark(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str
) -> None:
    workers, partitions = 3, 6
    with ClusterSite(control_plane, kafka, namespace) as site, site.operator():
        # As in the worker's Spark image.
        site.push("*", environment={spark_session.ARCHIVE_VARIABLE: str(spark.archive())})
        spec: dict[str, Any] = {
            "partitions": partitions,
            "replicas": workers,
            "rollout": TAKEOVER,
            "pipeline": {"engine": "spark", "spark": {"conf": QUICK_JAVA}},
        }
        group = site.group(f"spark-{namespace}", **spec)
        before = group.await_settled(workers)
        group.await_condition("RolledOut")
        with group.load(rate=200, turn_s=0.1) as load:
            roll = _roll(site, group, spec, workers)
            after = group.await_settled(workers)
            joins, pauses = _taken(group)
            produced = load.stop()
        group.await_handled(produced)
        _check(group, workers, roll, produced, (before, after))
        said = Pauses.of(list(pauses.values()))
        print(f"as the workers say it: {said}")
        print(f"by the sink's files: {_by_sink(group, joins)}")
        assert said.count == partitions
        assert said.worst <= 1_000, said


@dataclass(frozen=True)
class _Rolled:
    began_ms: int
    ended_ms: int


def _roll(site: ClusterSite, group: Group, spec: Mapping[str, Any], workers: int) -> _Rolled:
    """``kubectl apply`` of another image, until all is done."""
    shape = {name: value for name, value in spec.items() if name not in ("partitions", "pipeline")}
    pipeline = {**spec["pipeline"], "image": site.image("v2")}
    manifest = yaml.safe_dump(site.manifest(group.name, **shape, pipeline=pipeline))
    began_ms = now_ms()
    site.plane.kubectl("apply", "-f", "-", stdin=manifest)
    group.await_rolled(site.image("v2"), workers)
    rolled = _Rolled(began_ms, now_ms())
    print(f"kubectl apply to done, {workers} workers: {(rolled.ended_ms - began_ms) / 1000:.1f} s")
    return rolled


def _taken(group: Group) -> tuple[dict[int, float], dict[int, int]]:
    """Of each partition: when its new worker joined, and the pause, both by /status."""
    joins: dict[int, float] = {}
    pauses: dict[int, int] = {}
    # Who has joined has not read of each of its partitions yet.
    for name, worker in group.await_taken_over().items():
        taken = worker["takeover"]
        assert taken is not None, f"{name} has taken over from nobody"
        assert not taken["forced"], (name, taken)
        assert taken["generation"] == taken["generation_before"], (name, taken)
        print(f"{name}: {_phases(taken)}")
        joins |= {int(number): float(taken["joined_ms"]) for _, number in worker["assignment"]}
        pauses |= {int(tp.rpartition("-")[2]): int(ms) for tp, ms in taken["pauses_ms"].items()}
    return joins, pauses


def _by_sink(group: Group, joins: Mapping[int, float]) -> Pauses:
    """The pauses by the sink's files, from batch written to batch written."""
    spans = around(group.sink, joins)
    old = Pauses.of([round(joins[partition] - last) for partition, (last, _) in spans.items()])
    new = Pauses.of([round(first - joins[partition]) for partition, (_, first) in spans.items()])
    print(f"last batch written to the join: {old}")
    print(f"join to the first batch written: {new}")
    return Pauses.of([round(first - last) for last, first in spans.values()])


def _phases(taken: Mapping[str, Any]) -> str:
    """How long each part of a takeover took, by the two workers' clocks."""
    marks = ("asked", "drain", "committed", "answered", "joined", "first_record")
    pairs = itertools.pairwise(marks)
    return ", ".join(f"{end} +{taken[f'{end}_ms'] - taken[f'{begin}_ms']} ms" for begin, end in pairs)


def _check(
    group: Group, workers: int, roll: _Rolled, produced: list[Produced], generations: tuple[int, int]
) -> None:
    until(lambda: len(group.takeovers(roll.began_ms)) >= workers, "the workers' events")
    takeovers = group.takeovers(roll.began_ms)
    said = "\n".join(map(str, takeovers))
    assert len({takeover.instance for takeover in takeovers}) == len(takeovers) == workers, said
    assert generations[0] == generations[1], "the generation has moved"
    assert group.rebalances(roll.began_ms) == 0, said
    assert group.restarts(roll.began_ms) == [], "nobody goes before its successor has come"
    assert group.sets() == {f"{group.name}-b": (0, workers)}
    verdict = group.verify(produced)
    print(verdict)
    assert verdict.exact, verdict
