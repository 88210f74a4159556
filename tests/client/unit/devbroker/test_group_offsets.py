"""OffsetCommit and OffsetFetch at every version."""

from __future__ import annotations

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import Bench

E = ErrorCode


def fetch_all(bench: Bench, group: str = "g") -> dict[str, dict[int, int]]:
    request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=group, topics=None)])
    topics = bench.ask(request, 8).groups[0].topics
    return {topic.name: {p.partition_index: p.committed_offset for p in topic.partitions} for topic in topics}


@pytest.mark.parametrize("version", range(8, 11))
def test_a_batch_of_groups(version: int) -> None:
    bench = Bench(group="one")
    bench.commit(offset=1)
    bench.group = "two"
    bench.commit(offset=2)
    groups = [m.OffsetFetchRequestGroup(group_id=g, topics=None) for g in ("two", "one", "none")]
    answer = bench.ask(m.OffsetFetchRequest(groups=groups), version).groups
    assert [group.group_id for group in answer] == ["two", "one", "none"]
    assert [[p.committed_offset for t in group.topics for p in t.partitions] for group in answer] == [
        [2],
        [1],
        [],
    ]
    if version >= 10:
        assert answer[0].topics[0].topic_id == bench.topics.topic_id("t")


def test_partitions_that_do_not_exist_fail_alone_and_make_no_group() -> None:
    bench = Bench()
    assert bench.commit(partition=8) is E.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.commit(partition=-1) is E.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.coordinator.describe() == []
    topics = [
        m.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                m.OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in indexes
            ],
        )
        for name, indexes in (("t", [0, 8]), ("gone", [0]), ("u", [1]))
    ]
    answer = bench.ask(m.OffsetCommitRequest(group_id="g", topics=topics), 9)
    errors = {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == {("t", 0): 0, ("t", 8): unknown, ("gone", 0): unknown, ("u", 1): 0}
    assert fetch_all(bench) == {"t": {0: 1}, "u": {1: 1}}


def test_a_deleted_topic_takes_its_offsets_with_it() -> None:
    bench = Bench()
    bench.commit(offset=5)
    topic = m.OffsetCommitRequestTopic(
        name="u", partitions=[m.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)]
    )
    bench.ask(m.OffsetCommitRequest(group_id="g", topics=[topic]), 9)
    del bench.topics.counts["t"]
    bench.coordinator.topics_deleted(["t"])
    assert fetch_all(bench) == {"u": {0: 3}}
    bench.coordinator.unload()
    bench.coordinator.load(bench.now_ms)
    assert fetch_all(bench) == {"u": {0: 3}}
