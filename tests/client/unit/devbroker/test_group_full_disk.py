"""What a coordinator answers, and keeps, when its store takes nothing: a full disk."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, SESSION_MS, Bench, FlakyStore

E = ErrorCode


def test_an_assignment_that_cannot_be_stored_is_not_handed_out() -> None:
    bench = Bench(store=(store := FlakyStore()))
    joins = {name: bench.join(instance=name) for name in "ab"}
    bench.advance(DELAY_MS * 2)
    ids = {name: call.answer.member_id for name, call in joins.items()}
    store.full = True
    syncs = [bench.sync(ids["b"], 1, "b"), bench.sync(ids["a"], 1, "a", {ids["b"]: b"x"})]
    assert {call.error for call in syncs} == {E.COORDINATOR_NOT_AVAILABLE}
    assert {call.answer.assignment for call in syncs} == {b""}
    assert bench.state == "PreparingRebalance"
    store.full = False
    for name in "ab":
        bench.join(ids[name], name)
    bench.sync_all(ids)


def test_a_new_group_that_cannot_be_stored_does_not_come_into_being() -> None:
    bench = Bench(store=(store := FlakyStore()))
    store.full = True
    assert bench.join(instance="a").error is E.COORDINATOR_NOT_AVAILABLE
    assert bench.coordinator.describe() == []


def test_a_return_that_cannot_be_stored_leaves_the_old_member_in_place() -> None:
    bench = Bench(store=(store := FlakyStore()))
    ids = bench.form_static("a", "b")
    changed: dict[str, Any] = {"session_ms": 20_000, "protocols": [("range", b"new"), ("sticky", b"")]}
    store.full = True
    assert bench.join(instance="a", **changed).error is E.COORDINATOR_NOT_AVAILABLE
    assert bench.heartbeat(ids["a"], 1, "a") is E.NONE
    assert bench.described()["leader"] == ids["a"]
    member = next(member for member in bench.described()["members"] if member["instance_id"] == "a")
    assert (member["session_timeout_ms"], member["protocols"]) == (SESSION_MS, ["range"])
    store.full = False
    assert bench.join(instance="a").answer.generation_id == 1


@pytest.mark.parametrize("version", [2, 9, 10])
def test_a_commit_that_cannot_be_stored_is_not_committed(version: int) -> None:
    bench = Bench(store=(store := FlakyStore()))
    ids = bench.form_static("a")
    bench.commit(ids["a"], 1, "a", offset=5)
    store.full = True
    assert bench.commit(ids["a"], 1, None, offset=6, version=version) is E.COORDINATOR_NOT_AVAILABLE
    assert bench.committed() == 5
    store.full = False
    assert bench.commit(ids["a"], 1, None, offset=6, version=version) is E.NONE
    assert bench.committed() == 6


def test_what_was_refused_keeps_its_error_when_the_rest_cannot_be_stored() -> None:
    bench = Bench(store=(store := FlakyStore()))
    store.full = True
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=i, committed_offset=1, committed_metadata="x" * size)
        for i, size in enumerate((0, 5_000))
    ]
    topic = m.OffsetCommitRequestTopic(name="t", partitions=partitions)
    answer = bench.ask(m.OffsetCommitRequest(group_id="g", topics=[topic]), 9)
    errors = [p.error_code for p in answer.topics[0].partitions]
    assert errors == [E.COORDINATOR_NOT_AVAILABLE, E.OFFSET_METADATA_TOO_LARGE]


def test_a_group_that_could_not_be_deleted_is_still_there() -> None:
    bench = Bench(store=(store := FlakyStore()))
    bench.commit(offset=5)
    store.full = True
    answer = bench.ask(m.DeleteGroupsRequest(groups_names=["g"]))
    assert answer.results[0].error_code == E.COORDINATOR_NOT_AVAILABLE
    store.full = False
    assert bench.committed() == 5
    assert bench.state == "Empty"
