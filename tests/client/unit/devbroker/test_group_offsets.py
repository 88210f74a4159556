"""OffsetCommit and OffsetFetch at every version."""

from __future__ import annotations

from uuid import UUID

import pytest

from slackwater.devbroker.group import GroupStoreError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import Bench

E = ErrorCode
NOBODY = UUID(int=77)


def fetch_all(bench: Bench, group: str = "g") -> dict[str, dict[int, int]]:
    request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=group, topics=None)])
    topics = bench.ask(request, 8).groups[0].topics
    return {topic.name: {p.partition_index: p.committed_offset for p in topic.partitions} for topic in topics}


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_at_every_version(version: int) -> None:
    bench = Bench()
    assert bench.commit(offset=10 + version, partition=3, version=version) is E.NONE
    assert fetch_all(bench) == {"t": {3: 10 + version}}


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_at_every_version(version: int) -> None:
    bench = Bench()
    commit = m.OffsetCommitRequest(
        group_id="g",
        topics=[
            m.OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    m.OffsetCommitRequestPartition(
                        partition_index=2,
                        committed_offset=7,
                        committed_leader_epoch=5,
                        committed_metadata="x",
                    )
                ],
            )
        ],
    )
    bench.ask(commit, 9)
    if version >= 8:
        topic_id = bench.topics.topic_id("t") or NOBODY if version >= 10 else UUID(int=0)
        wanted = m.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[2, 3])
        group = m.OffsetFetchRequestGroup(group_id="g", topics=[wanted])
        made = bench.ask(m.OffsetFetchRequest(groups=[group], require_stable=True), version)
        assert made.groups[0].topics[0].topic_id == topic_id
        committed, missing = made.groups[0].topics[0].partitions
    else:
        old = m.OffsetFetchRequestTopic(name="t", partition_indexes=[2, 3])
        request = m.OffsetFetchRequest(group_id="g", topics=[old], require_stable=version >= 7)
        committed, missing = bench.ask(request, version).topics[0].partitions  # type: ignore[assignment]
    epoch = 5 if version >= 5 else -1
    assert (committed.committed_offset, committed.committed_leader_epoch, committed.metadata) == (
        7,
        epoch,
        "x",
    )
    assert (missing.committed_offset, missing.metadata, missing.error_code) == (-1, "", E.NONE)


@pytest.mark.parametrize("version", range(2, 8))
def test_null_topics_mean_all_before_v8(version: int) -> None:
    bench = Bench()
    bench.commit(offset=1, partition=5)
    bench.commit(offset=2, partition=1)
    answer = bench.ask(m.OffsetFetchRequest(group_id="g", topics=None), version)
    assert answer.error_code == E.NONE
    assert [(p.partition_index, p.committed_offset) for p in answer.topics[0].partitions] == [(1, 2), (5, 1)]


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


def test_topic_ids_that_nobody_has() -> None:
    bench = Bench()
    commit = m.OffsetCommitRequest(
        group_id="g",
        topics=[
            m.OffsetCommitRequestTopic(
                topic_id=NOBODY, partitions=[m.OffsetCommitRequestPartition(partition_index=0)]
            )
        ],
    )
    topic = bench.ask(commit, 10).topics[0]
    assert topic.topic_id == NOBODY
    assert topic.partitions[0].error_code == E.UNKNOWN_TOPIC_ID
    wanted = m.OffsetFetchRequestTopics(topic_id=NOBODY, partition_indexes=[0])
    fetch = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=[wanted])])
    partition = bench.ask(fetch, 10).groups[0].topics[0].partitions[0]
    assert (partition.error_code, partition.committed_offset) == (E.UNKNOWN_TOPIC_ID, -1)


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


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("x" * 4_096, E.NONE),
        ("x" * 4_097, E.OFFSET_METADATA_TOO_LARGE),
        ("\u20ac" * 4_096, E.NONE),  # three bytes each in UTF-8
        ("\U0001f40b" * 2_048, E.NONE),  # two UTF-16 units each
        ("\U0001f40b" * 2_048 + "x", E.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_is_measured_in_utf16_units(metadata: str, error: ErrorCode) -> None:
    bench = Bench()
    assert bench.commit(metadata=metadata) is error
    assert bench.committed() == (1 if error is E.NONE else -1)


def test_metadata_too_large_fails_for_its_partition_alone() -> None:
    bench = Bench()
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=i, committed_offset=1, committed_metadata="x" * size)
        for i, size in enumerate((0, 5_000))
    ]
    topic = m.OffsetCommitRequestTopic(name="t", partitions=partitions)
    answer = bench.ask(m.OffsetCommitRequest(group_id="g", topics=[topic]), 9)
    assert [p.error_code for p in answer.topics[0].partitions] == [E.NONE, E.OFFSET_METADATA_TOO_LARGE]
    assert fetch_all(bench) == {"t": {0: 1}}


def test_null_metadata_reads_back_as_empty() -> None:
    bench = Bench()
    bench.commit(metadata=None)
    request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert bench.ask(request, 9).groups[0].topics[0].partitions[0].metadata == ""


@pytest.mark.parametrize("version", [2, 9, 10])
def test_a_commit_that_cannot_be_stored_is_not_committed(version: int) -> None:
    bench = Bench()
    ids = bench.form_static("a")
    bench.commit(ids["a"], 1, "a", offset=5)
    append = bench.store.append

    def fail(records: object) -> None:
        raise GroupStoreError("No space left on device")

    bench.store.append = fail  # type: ignore[method-assign]
    assert bench.commit(ids["a"], 1, None, offset=6, version=version) is E.COORDINATOR_NOT_AVAILABLE
    assert bench.committed() == 5
    bench.store.append = append  # type: ignore[method-assign]
    assert bench.commit(ids["a"], 1, None, offset=6, version=version) is E.NONE
    assert bench.committed() == 6


def test_what_was_refused_keeps_its_error_when_the_rest_cannot_be_stored() -> None:
    bench = Bench()

    def fail(records: object) -> None:
        raise GroupStoreError("No space left on device")

    bench.store.append = fail  # type: ignore[method-assign]
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=i, committed_offset=1, committed_metadata="x" * size)
        for i, size in enumerate((0, 5_000))
    ]
    topic = m.OffsetCommitRequestTopic(name="t", partitions=partitions)
    answer = bench.ask(m.OffsetCommitRequest(group_id="g", topics=[topic]), 9)
    errors = [p.error_code for p in answer.topics[0].partitions]
    assert errors == [E.COORDINATOR_NOT_AVAILABLE, E.OFFSET_METADATA_TOO_LARGE]


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
