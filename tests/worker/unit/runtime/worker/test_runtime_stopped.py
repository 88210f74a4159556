"""A worker that is stopped at a step for so long that its partitions get another owner, and then goes on.

In virtual time: while it is stopped, all that its successor does happens within the fault point. The files
are those of the real sink, read by pyarrow.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from slackwater import Batch
from slackwater.kafka.errors import CommitFailedError, FencedInstanceIdError, KafkaError
from slackwater.kafka.records import RecordColumns
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.errors import FencedError
from slackwater.runtime.fault_points import Step, StopAt
from tests.support.waiting import HANG_S
from tests.support.workers.fakes import (
    Bench,
    FakeCluster,
    FakeConsumer,
    FakeLetters,
    ValueEngine,
    VirtualClock,
)

LONG_MS = 10_000
BATCH = 6
"""Records of a poll of the worker that is stopped, of two partitions."""


class GroupMember(FakeConsumer):
    """``out``: what the broker says to its commits from when it is no member any more."""

    out: KafkaError | None = None

    def _check_fenced(self) -> None:
        if isinstance(self.out, FencedInstanceIdError):
            raise self.out

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, RecordColumns]:
        if self.out is not None and self.positions:
            self._check_fenced()
            self.lose(*self.positions)
        return super().poll_columns(timeout_ms, max_records)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int | None = None
    ) -> None:
        if self.out is not None:
            raise self.out
        super().commit(offsets, timeout_ms)


class DroppingEngine(ValueEngine):
    """Leaves out all records."""

    def transform(self, table: pa.Table, batch: Batch) -> pa.Table:
        return super().transform(table, batch).slice(0, 0)


class Process(Bench):
    """A worker's process; ``join`` gives it a membership of its own."""

    notes_first_batches = True

    def __init__(self, group: Group, max_records: int) -> None:
        self._group, self._max_records = group, max_records
        self._own_sink = ParquetSink("flights", str(group.out))
        self._cluster, self._clock, self._letters = group.cluster, group.clock, group.letters
        super().__init__()

    def write_slowly(self) -> None:
        """From now on the handler is called for a next batch while one is written."""
        self.writer.usual_ms = 60

    def restart(self, instance: str = "w-0", max_records: int = 100) -> None:
        self.cluster, self.clock, self.letters = self._cluster, self._clock, self._letters
        self.sink = self._own_sink
        super().restart(instance, self._max_records)

    def make_consumer(self, max_records: int) -> FakeConsumer:
        return GroupMember(self.cluster, self.clock, max_records)

    def join(self, instance: str) -> None:
        """Becomes a member, with all partitions."""
        self.restart(instance)
        self.assign(*self._group.partitions, generation=next(self._group.generations))

    def go_out(self, why: KafkaError) -> None:
        """The group goes on without it."""
        assert isinstance(self.consumer, GroupMember)
        self.consumer.out = why

    def go_on(self) -> None:
        """What it does after it was stopped, until it has nothing more to do."""
        try:
            self.steps(60)
        except FencedError:
            leftover = self.delivery.retire()
            while leftover.batch is not None:
                leftover.wait(HANG_S)
                leftover.advance()


class Group:
    """Its partitions, and the folder of its files."""

    def __init__(self, out: Path) -> None:
        self.out, self.cluster, self.clock = out, FakeCluster(), VirtualClock()
        self.letters = FakeLetters(self.cluster, self.clock)
        self.generations = itertools.count(1)
        self.partitions: list[TopicPartition] = []
        self.produced = 0

    def produce(self, count: int) -> None:
        """Of two partitions; every fourth record is rejected."""
        for _ in range(count):
            kind = "bad" if self.produced % 4 == 1 else "v"
            tp = self.cluster.produce(self.produced // 2 % 2, [f"{kind}{self.produced}"])
            self.partitions = sorted({*self.partitions, tp})
            self.produced += 1

    def check(self) -> None:
        """Each record is a row or a dead letter, once."""
        good: Counter[tuple[int, int]] = Counter()
        bad: list[str] = []
        for tp in self.partitions:
            for offset, value in enumerate(self.cluster.logs[tp]):
                if value.startswith(b"bad"):
                    bad.append(f"{tp}@{offset}")
                else:
                    good[tp.partition, offset] += 1
        assert self.rows() == good
        assert self.letters.origins() == sorted(bad)
        assert {tp: at.offset for tp, at in self.cluster.committed.items()} == {
            tp: len(self.cluster.logs[tp]) for tp in self.partitions
        }

    def rows(self) -> Counter[tuple[int, int]]:
        files = [str(file) for file in self.out.glob("*.parquet")]
        if not files:
            return Counter()
        table = ds.dataset(files).to_table(columns=["partition", "offset"])
        return Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


Successor = Callable[[Group, int], tuple[Process, Callable[[Process], Process]]]


def new_process(group: Group, most: int) -> tuple[Process, Callable[[Process], Process]]:
    """The session ends; a process that never owned the partitions gets them."""

    def succeed(stopped: Process) -> Process:
        stopped.go_out(CommitFailedError())
        successor = Process(group, most)
        successor.join("w-1")
        return successor

    return Process(group, BATCH), succeed


def returning_member(group: Group, most: int) -> tuple[Process, Callable[[Process], Process]]:
    """Another process joins with the same instance id, and fences the first at once."""

    def succeed(stopped: Process) -> Process:
        stopped.go_out(FencedInstanceIdError())
        successor = Process(group, most)
        successor.join("w-0")
        return successor

    return Process(group, BATCH), succeed


def previous_owner(group: Group, most: int) -> tuple[Process, Callable[[Process], Process]]:
    """A process that had owned the partitions, and gave them to the one that is stopped, gets them back."""
    successor = owned_before(group, most, "w-1")
    successor.consumer.at_poll.append(lambda: successor.consumer.revoke(*group.partitions))
    successor.steps(1)

    def succeed(stopped: Process) -> Process:
        stopped.go_out(CommitFailedError())
        successor.assign(*group.partitions, generation=next(group.generations))
        return successor

    return Process(group, BATCH), succeed


def taken_back(group: Group, most: int) -> tuple[Process, Callable[[Process], Process]]:
    """A pod hands its membership over to the one that is stopped, and takes it back."""
    successor = owned_before(group, most, "w-0")
    successor.go_out(FencedInstanceIdError())
    successor.delivery.retire()

    def succeed(stopped: Process) -> Process:
        stopped.go_out(FencedInstanceIdError())
        successor.join("w-0")
        return successor

    return Process(group, BATCH), succeed


def same_process(group: Group, most: int) -> tuple[Process, Callable[[Process], Process]]:
    """The process that was stopped gets its partitions back itself, with the next generation."""
    process = Process(group, BATCH)

    def succeed(stopped: Process) -> Process:
        def back() -> None:
            process.consumer.lose(*group.partitions)
            process.consumer.join(next(group.generations))
            process.consumer.assign(*group.partitions)

        process.consumer.commit_errors.append(CommitFailedError())
        process.consumer.at_poll.append(back)
        return process

    return process, succeed


def owned_before(group: Group, most: int, instance: str) -> Process:
    group.produce(4)
    process = Process(group, most)
    process.join(instance)
    process.until_idle()
    return process


SUCCESSORS: list[Successor] = [new_process, returning_member, previous_owner, taken_back, same_process]
CAPS = [4, 100]
"""Most records of a successor's poll: less and more than there were in the batch of the one that was
stopped."""


@pytest.mark.parametrize(
    ("most", "slow"),
    [(CAPS[0], False), pytest.param(CAPS[1], False, marks=pytest.mark.long), (CAPS[1], True)],
)
@pytest.mark.parametrize("successor", SUCCESSORS)
@pytest.mark.parametrize("step", Step)
def test_stopped_at_any_step_a_former_owner_changes_nothing_when_it_goes_on(
    tmp_path: Path, step: Step, successor: Successor, most: int, slow: bool
) -> None:
    """``slow``: two batches are in flight, one being written and one with the handler."""
    group = Group(tmp_path)
    stopped, succeed = successor(group, most)
    reached: list[Step] = []

    def while_stopped() -> None:
        reached.append(step)
        group.clock.sleep(LONG_MS)
        owner = succeed(stopped)
        group.produce(4)
        if owner is not stopped:
            owner.until_idle()

    stopped.reached = StopAt(step, 2 if slow and step is not Step.ASSIGNED else 1, while_stopped)
    group.produce(16)
    stopped.join("w-0")
    if slow:
        stopped.write_slowly()
    stopped.go_on()
    if successor is same_process:
        stopped.until_idle()
    assert reached == [step]
    group.check()
    assert not list((tmp_path / ".slackwater/flights/staging").iterdir())


@pytest.mark.parametrize("successor", SUCCESSORS[:4])
def test_stopped_while_dead_letters_are_sent_they_are_not_written_twice(
    tmp_path: Path, successor: Successor
) -> None:
    group = Group(tmp_path)
    stopped, succeed = successor(group, 100)

    def while_stopped() -> None:
        group.clock.sleep(LONG_MS)
        succeed(stopped).until_idle()

    group.produce(16)
    group.letters.before_send = while_stopped
    stopped.join("w-0")
    stopped.go_on()
    assert group.letters.before_send is None
    group.check()


@pytest.mark.parametrize("successor", SUCCESSORS[:4])
@pytest.mark.parametrize("drops", ["stopped", "successor"])
def test_of_two_owners_the_one_that_has_written_a_batch_decides_on_its_rows(
    tmp_path: Path, successor: Successor, drops: str
) -> None:
    """Of a batch without rows the table has the marks: a former owner does not add rows to it."""
    group = Group(tmp_path)
    stopped, succeed = successor(group, 100)
    group.produce(16)
    killed = Process(group, 4)  # writes, and does not commit
    killed.reached = StopAt(Step.PUBLISHED, 1, lambda: killed.go_out(CommitFailedError()))
    killed.join("w-9")
    killed.go_on()
    before = group.rows()
    assert before

    def while_stopped() -> None:
        owner = succeed(stopped)
        if drops == "successor":
            owner.delivery.in_flight._context.engine = DroppingEngine()
        owner.until_idle()

    stopped.reached = StopAt(Step.FENCED, 1, while_stopped)
    stopped.join("w-0")
    if drops == "stopped":
        stopped.delivery.in_flight._context.engine = DroppingEngine()
    stopped.go_on()
    if drops == "stopped":
        group.check()
    else:
        assert group.rows() == before
