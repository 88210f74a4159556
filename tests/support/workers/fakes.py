"""A group, a consumer, a sink and a handler's thread in virtual time, for tests of the worker's loop.

Records and columns are the real ones; what is made up is the broker's side, because a test of the loop
must be able to say when a rebalance comes and which commit is refused.
"""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pyarrow as pa

from slackwater import Batch
from slackwater.kafka.errors import CorruptRecordError, FencedInstanceIdError, SendDeadlineError
from slackwater.kafka.records import BatchBuilder, RecordColumns, decode
from slackwater.kafka.structs import (
    GenerationSeen,
    MembershipSnapshot,
    OffsetAndMetadata,
    SkippedRecords,
    TopicPartition,
)
from slackwater.runtime.config.worker_config import WorkerConfig, parse
from slackwater.runtime.delivery.dead_letters import DeadLetters, Headers
from slackwater.runtime.delivery.loop import Delivery
from slackwater.runtime.delivery.marks import read_marks
from slackwater.runtime.fault_points import Reached, no_faults
from slackwater.runtime.interfaces import AnyEngine, Range, SinkFencedError
from slackwater.runtime.telemetry.events import EventLog, StderrLog
from slackwater.runtime.telemetry.messaging_metrics import NO_MESSAGING_METRICS, MessagingMetrics
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from slackwater.runtime.worker_context import WorkerContext
from slackwater.tracing.spans import NO_TRACING, Tracing

START_MS = 1_700_000_000_000


class VirtualClock:
    """Time that passes only where something waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.skew_ms = 0

    def wall_ms(self) -> int:
        return START_MS + int(self.now) + self.skew_ms

    def mono_ms(self) -> float:
        return self.now

    def mono_id(self) -> str:
        return "virtual"

    def sleep(self, ms: float) -> None:
        assert ms >= 0
        self.now += ms


class VirtualTask:
    """A call that shows its end ``ends_at``. It is made at once or, if it is ``late``, then."""

    def __init__(
        self, clock: VirtualClock, call: Callable[[], Any], ends_at: float, *, late: bool = False
    ) -> None:
        self._clock, self.ends_at = clock, ends_at
        self._call: Callable[[], Any] | None = call
        self._value: Any = None
        self._error: BaseException | None = None
        if not late:
            self.run()

    def run(self) -> None:
        """Makes the call, unless it was made."""
        call, self._call = self._call, None
        if call is None:
            return
        try:
            self._value = call()
        except BaseException as exc:
            self._error = exc

    def wait(self, timeout_ms: float) -> bool:
        self._clock.now = min(max(self.ends_at, self._clock.now), self._clock.now + max(0.0, timeout_ms))
        if self._clock.now < self.ends_at:
            return False
        self.run()
        return True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class VirtualRunner:
    """Each call takes the next of ``durations`` (ms), or ``usual_ms``. Reading marks takes ``marks_ms``."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.durations: deque[float] = deque()
        self.usual_ms = self.marks_ms = 0.0
        self._last: VirtualTask | None = None
        self._free_at = 0.0

    def submit(self, call: Callable[[], Any]) -> VirtualTask:
        if self._last is not None:
            self._last.run()
        reads_marks = getattr(call, "func", None) is read_marks
        usual = self.usual_ms if reads_marks or not self.durations else self.durations.popleft()
        took = self.marks_ms if reads_marks else usual
        self._free_at = max(self._free_at, self._clock.now) + took
        self._last = VirtualTask(self._clock, call, self._free_at, late=reads_marks and took > 0)
        return self._last


@dataclass
class FakeCluster:
    """Logs and committed offsets; outlives consumers."""

    topic: str = "flights"
    logs: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    committed: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    journal: list[tuple[Any, ...]] = field(default_factory=list)
    """What happened, in order: stage, publish, discard, commit, letters."""
    topic_id: UUID | None = None
    """As a new consumer learns it; one that is there already after a refresh."""
    cluster_id: str = ""
    instance_owner: object = None
    headers: dict[tuple[int, int], list[tuple[str, bytes | None]]] = field(default_factory=dict)
    """By partition and offset, where they are not the usual."""
    compacted: dict[TopicPartition, int] = field(default_factory=dict)
    """Records below this offset are gone, though the log begins at 0, as compaction leaves it."""

    markers: dict[TopicPartition, int] = field(default_factory=dict)
    """How many offsets behind the last record are no records, as transactions' markers."""
    unreadable: dict[TopicPartition, range] = field(default_factory=dict)
    """The offsets of a batch that the client cannot read."""

    def end(self, tp: TopicPartition) -> int:
        return len(self.logs[tp]) + self.markers.get(tp, 0)

    def produce(self, partition: int, values: Iterable[str]) -> TopicPartition:
        tp = TopicPartition(self.topic, partition)
        self.logs.setdefault(tp, []).extend(value.encode() for value in values)
        return tp

    def read(self, tp: TopicPartition, offset: int, most: int) -> RecordColumns:
        offset = max(offset, self.compacted.get(tp, 0))
        values = self.logs[tp][offset : offset + most]
        builder = BatchBuilder(max_bytes=1 << 24)
        for i, value in enumerate(values):
            assert builder.append(
                1_357_034_400_000 + offset + i,
                b"N%d" % i,
                value,
                self.headers.get((tp.partition, offset + i), [("h", b"x")]),
            )
        return decode(builder.build(base_offset=offset), fetch_offset=offset)


def corrupt(tp: TopicPartition, position: int, offsets: range, data: bytes = b"raw") -> CorruptRecordError:
    """The client's error for the batch of ``offsets``, of which it has fetched ``data``."""
    error = CorruptRecordError("cannot be read")
    error.topic_partition, error.position, error.reason, error.batch = tp, position, "too large", data
    error.offset, error.last_offset, error.next_offset = offsets.start, offsets.stop - 1, offsets.stop
    return error


class FakeConsumer:
    """A member whose rebalances and refused commits the test says."""

    def __init__(self, cluster: FakeCluster, clock: VirtualClock, max_records: int = 100) -> None:
        self._cluster, self._clock, self._max = cluster, clock, max_records
        self.positions: dict[TopicPartition, int] = {}
        self.unconfirmed: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.at_poll: deque[Callable[[], None]] = deque()
        """Done within the next polls, one in each."""
        self.commit_errors: deque[Exception | None] = deque()
        self.committed_errors: deque[Exception] = deque()
        self.looked_up: list[Any] = []
        """What was asked for: a partition, or several in one question."""
        self.polls = 0
        self._known_topic_id = cluster.topic_id
        self.skipped: list[SkippedRecords] = []
        self.poll_errors: deque[Exception] = deque()
        self.reset_to_latest = False
        self._fetched: set[TopicPartition] = set()
        self.closed = self.left = False
        self.snapshot = MembershipSnapshot("STABLE", -1, "", "w-0", False)
        self.listener: Any = None
        self.replaced = ""
        """The member id in whose place it joins."""
        self.expects = self.ended_polls = 0
        cluster.instance_owner = self

    def replace_member(self, member_id: str, epoch: int | None) -> None:
        self.replaced = member_id

    def expect_rebalance(self) -> None:
        self.expects += 1

    def end_poll(self) -> None:
        self.ended_polls += 1

    def subscribe(self, topics: Collection[str] = (), pattern: str | None = None, *, listener: Any) -> None:
        self.listener = listener

    def join(
        self, generation: int, *, follow_up: bool = False, returned: bool = False, state: str = "stable"
    ) -> None:
        """A Join has succeeded; ``state``: of the member after it."""
        generations = (
            *self.snapshot.generations,
            GenerationSeen(generation, follow_up, self._clock.wall_ms()),
        )
        self.snapshot = MembershipSnapshot(
            state, generation, "w-0-id", "w-0", False, generations, returned=returned
        )

    def sync(self, *, returned: bool = False) -> None:
        """The Sync of the last Join has succeeded."""
        self.snapshot = replace(self.snapshot, state="stable", returned=returned)

    def assign(self, *partitions: TopicPartition) -> None:
        """To be called within a poll, as ``revoke`` and ``lose``."""
        for tp in partitions:
            committed = self._cluster.committed.get(tp)
            reset = self._cluster.end(tp) if self.reset_to_latest else 0
            self.positions[tp] = committed.offset if committed else reset
        self.listener.on_partitions_assigned(list(partitions))

    def revoke(self, *partitions: TopicPartition) -> None:
        self.listener.on_partitions_revoked(list(partitions))
        self._drop(partitions)

    def lose(self, *partitions: TopicPartition) -> None:
        self.listener.on_partitions_lost(list(partitions))
        self._drop(partitions)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            del self.positions[tp]
            self._fetched.discard(tp)
            self.paused.discard(tp)

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, RecordColumns]:
        self.polls += 1
        self._check_fenced()
        if self.at_poll:
            self.at_poll.popleft()()
        if self.poll_errors:
            raise self.poll_errors.popleft()
        left, polled = self._max if max_records is None else min(self._max, max_records), {}
        for tp, position in self.positions.items():
            if tp in self.paused or not left:
                continue
            self._fetched.add(tp)
            if position >= len(self._cluster.logs[tp]):
                self.positions[tp] = max(position, self._cluster.end(tp))
                continue
            batch = self._cluster.unreadable.get(tp, range(0))
            if position in batch:
                raise corrupt(tp, position, batch)
            most = min(left, batch.start - position) if position < batch.start else left
            polled[tp] = self._cluster.read(tp, position, most)
            left -= len(polled[tp])
            self.positions[tp] = polled[tp].next_offset
        if not polled:
            self._clock.sleep(timeout_ms)
        return polled

    def _check_fenced(self) -> None:
        if self._cluster.instance_owner is not self:
            raise FencedInstanceIdError("heartbeat")

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    def pause(self, *partitions: TopicPartition) -> None:
        assert self.positions.keys() >= set(partitions)
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        assert self.positions.keys() >= set(partitions)
        self.paused.difference_update(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self.positions
        self.positions[partition] = offset

    def highwater(self, partition: TopicPartition) -> int | None:
        return self._cluster.end(partition) if partition in self._fetched else None

    def position_confirmed(self, partition: TopicPartition) -> bool:
        return partition not in self.unconfirmed

    def current_lag(self, partition: TopicPartition) -> int | None:
        end = self.highwater(partition)
        return None if end is None else max(0, end - self.positions[partition])

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        assert partition in self.positions
        return self._known_topic_id

    def cluster_id(self) -> str:
        return self._cluster.cluster_id

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None:
        assert refresh
        self._known_topic_id = self._cluster.topic_id

    def skipped_records(self) -> list[SkippedRecords]:
        skipped, self.skipped = self.skipped, []
        return skipped

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        return self.positions[partition]

    def committed(self, partition: Any, metadata: bool = False, timeout_ms: int | None = None) -> Any:
        assert metadata
        self.looked_up.append(partition)
        if self.committed_errors:
            raise self.committed_errors.popleft()
        if isinstance(partition, list):
            return {tp: self._cluster.committed.get(tp) for tp in partition}
        return self._cluster.committed.get(partition)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int | None = None
    ) -> None:
        error = self.commit_errors.popleft() if self.commit_errors else None
        if error is not None:
            self._cluster.journal.append(("refused", type(error).__name__))
            raise error
        self._check_fenced()
        assert self.positions.keys() >= offsets.keys(), "a commit for partitions of somebody else"
        self._cluster.committed.update(offsets)
        self._cluster.journal.append(("commit", {str(tp): at.offset for tp, at in sorted(offsets.items())}))

    def membership(self) -> MembershipSnapshot:
        return self.snapshot

    def close(self, *, timeout_ms: float | None = None, leave_group: bool | None = None) -> None:
        if self.positions:
            self.listener.on_partitions_revoked(sorted(self.positions))
        self.closed, self.left = True, bool(leave_group)


class FakeSink:
    """A table in memory. ``published``: by (partition, start offset), the offsets and values of the rows."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.published: dict[tuple[int, int], list[tuple[int, str | None]]] = {}
        self.table_marks: dict[tuple[TopicPartition, str], int] = {}
        """By partition and topic id."""
        self.staged = 0
        self.commits = 0
        self.marks_error: Exception | None = None
        self.stage_error: Exception | None = None
        self.empty_error: Exception | None = None
        """Raised by ``stage`` for a table without rows."""
        self.publish_error: Exception | None = None

    def probe(self) -> str:
        return "a fake"

    def marks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, dict[str, int]]:
        if self.marks_error is not None:
            raise self.marks_error
        self._cluster.journal.append(("marks", sorted(tp.partition for tp in partitions)))
        marks: dict[TopicPartition, dict[str, int]] = {}
        for (tp, topic_id), end in self.table_marks.items():
            if tp in partitions:
                marks.setdefault(tp, {})[topic_id] = end
        return marks

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        raise NotImplementedError("no worker does that")

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> FakeStaged:
        assert ranges, "an empty batch"
        if self.stage_error is not None:
            raise self.stage_error
        if self.empty_error is not None and not rows.num_rows:
            raise self.empty_error
        self.staged += 1
        for tp, span in sorted(ranges.items()):
            assert (span.mark or 0) <= span.start < span.end
            self._cluster.journal.append(("stage", tp.partition, span.start))
        return FakeStaged(self, self._cluster, rows, ranges)

    def rows(self, partition: int) -> list[int]:
        """All published offsets of a partition, in the order of the batches."""
        batches = [(start, rows) for (p, start), rows in self.published.items() if p == partition]
        return [offset for _, rows in sorted(batches) for offset, _ in rows]


class FakeStaged:
    def __init__(
        self, sink: FakeSink, cluster: FakeCluster, rows: pa.Table, ranges: Mapping[TopicPartition, Range]
    ) -> None:
        self._sink, self._cluster, self._rows, self._ranges = sink, cluster, rows, dict(ranges)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            span = self._ranges.pop(tp)
            self._cluster.journal.append(("discard", tp.partition, span.start))
        assert self._ranges, "all is dropped: discard() is for that"

    def publish(self) -> None:
        self._sink.staged -= 1
        if self._sink.publish_error is not None:
            raise self._sink.publish_error
        for tp, span in self._ranges.items():
            if self._sink.table_marks.get((tp, span.topic_id)) != span.mark:
                raise SinkFencedError(f"{tp} was written by another process")
        self._sink.commits += 1
        rows = self._rows.to_pylist()
        for tp, span in sorted(self._ranges.items()):
            self._sink.table_marks[tp, span.topic_id] = span.end
            self._sink.published[tp.partition, span.start] = [
                (row["offset"], row["value"] and row["value"].decode())
                for row in rows
                if row["partition"] == tp.partition
            ]
            self._cluster.journal.append(("publish", tp.partition, span.start))

    def discard(self) -> None:
        self._sink.staged -= 1
        for tp, span in sorted(self._ranges.items()):
            self._cluster.journal.append(("discard", tp.partition, span.start))


class FakeLetters:
    """A dead-letter topic of two partitions. ``reads``: (partition, offset) of each read-back.
    ``before_send``: called once, directly before the next records are sent."""

    def __init__(self, cluster: FakeCluster, clock: VirtualClock) -> None:
        self._cluster, self._clock = cluster, clock
        self.before_send: Callable[[], None] | None = None
        self.partitions: list[list[tuple[int, bytes | None, bytes | None, Headers]]] = [[], []]
        self.reads: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def partition_count(self) -> int:
        return len(self.partitions)

    def write(
        self,
        records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
        timestamp_ms: int,
        until_ms: float,
    ) -> None:
        if self.error is not None:
            raise self.error
        records = list(records)
        before_send, self.before_send = self.before_send, None
        if before_send is not None:
            before_send()
        if self._clock.mono_ms() > until_ms:
            raise SendDeadlineError("too late")
        for partition, key, value, headers in records:
            self.partitions[partition].append((timestamp_ms, key, value, headers))
        if records:
            self._cluster.journal.append(("letters", len(records)))

    def end(self, partition: int) -> int:
        return len(self.partitions[partition])

    def headers_since(self, partition: int, since: int) -> Iterator[Headers]:
        self.reads.append((partition, since))
        for _, _, _, headers in self.partitions[partition][since:]:
            yield headers

    def origins(self) -> list[str]:
        """``topic-partition@offset`` of every letter, sorted."""
        events = []
        for partition in self.partitions:
            for _, _, _, headers in partition:
                named = dict(headers)
                place = [(named[f"slackwater.{n}"] or b"").decode() for n in ("topic", "partition", "offset")]
                events.append(f"{place[0]}-{place[1]}@{place[2]}")
        return sorted(events)


class ValueEngine:
    """Rejects records whose value starts with ``bad`` and leaves out those that start with ``skip``."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors: deque[BaseException | None] = deque()
        self.failure: Callable[[list[str]], BaseException | None] = lambda values: None
        """What is raised for records of these values."""
        self.rejects = True
        """Whether it rejects any."""
        self.result: Any = None
        self.batches: list[Batch] = []
        """What it was told of each call's."""
        self.refreshes = 0
        self.refresh_errors: deque[BaseException | None] = deque()

    def start(self) -> None: ...

    def warm_up(self) -> None: ...

    def refresh(self) -> None:
        self.refreshes += 1
        error = self.refresh_errors.popleft() if self.refresh_errors else None
        if error is not None:
            raise error

    def close(self) -> None: ...

    def transform(self, table: pa.Table, batch: Batch) -> pa.Table:
        self.calls += 1
        self.batches.append(batch)
        error = self.errors.popleft() if self.errors else None
        if error is not None:
            raise error
        if self.result is not None:
            return self.result
        values = [value.decode() for value in table.column("value").to_pylist()]
        error = self.failure(values)
        if error is not None:
            raise error
        errors = [
            f"rejected {value}" if self.rejects and value.startswith("bad") else None for value in values
        ]
        table = table.append_column("_error", pa.array(errors, pa.string()))
        return table.filter(pa.array([not value.startswith("skip") for value in values]))


def worker_config(**changes: Any) -> WorkerConfig:
    """A small valid configuration; ``changes`` by the names of the file."""
    document: dict[str, Any] = {
        "groupId": "flights",
        "topics": ["flights"],
        "bootstrapServers": "127.0.0.1:9092",
        "handler": "handlers.flights:transform",
        "engine": "arrow",
        "sink": {"format": "parquet", "path": "out"},
        "deadLetterTopic": "flights.dlq",
    }
    return parse({**document, **changes})


class _LaterDelivery(Delivery):
    """One that has committed records of its partitions already: it notes of no batch that it is begun."""

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        super().on_partitions_assigned(assigned)
        for tp in assigned:
            self._owned[tp].passed = True


class Bench:
    """A delivery with everything around it made up. ``restart`` puts a new process in its place."""

    notes_first_batches = False
    """Whether it notes that a partition's first batch is begun. To be set before ``restart``."""

    def __init__(self, **changes: Any) -> None:
        self.clock = VirtualClock()
        self.cluster = FakeCluster()
        self.sink: Any = FakeSink(self.cluster)
        self.letters = FakeLetters(self.cluster, self.clock)
        self.config = worker_config(**changes)
        self.reached: Reached = no_faults
        self.tracing: Tracing = NO_TRACING
        self.messaging: Callable[[Metrics], MessagingMetrics] = lambda metrics: NO_MESSAGING_METRICS
        self.restart()

    def restart(
        self,
        instance: str = "w-0",
        max_records: int = 100,
        *,
        engine: AnyEngine | None = None,
    ) -> None:
        """``engine``: a real one in place of ``self.engine``."""
        self.engine = ValueEngine()
        self.runner, self.writer = VirtualRunner(self.clock), VirtualRunner(self.clock)
        self.consumer = self.make_consumer(max_records)
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        self.stop = 0
        topic = self.config.dead_letter_topic
        self.status = Status(self.config.group_id, instance, self.clock)
        self.status.started_ms = self.clock.wall_ms()
        self.metrics = Metrics(group=self.config.group_id, instance=instance)
        context = WorkerContext(
            self.config,
            instance,
            self.runner,
            self.writer,
            self.clock,
            EventLog(instance, self.clock, self.stdout),
            StderrLog(instance, self.clock, self.stderr),
            self.metrics,
            self.status,
            engine or self.engine,
            self.sink,
            DeadLetters(self.config.group_id, self.letters, self.clock) if topic else None,
            reached=self.reached,
            tracing=self.tracing,
            messaging=self.messaging(self.metrics),
        )
        context.events.correlate = context.log.correlate = self.tracing.fields
        if self.config.refresh_every_ms:
            context.refresh(engine or self.engine)
        delivery = Delivery if self.notes_first_batches else _LaterDelivery
        self.delivery = delivery(self.consumer, context, give_up=lambda: self.stop > 1)
        self.consumer.subscribe(["flights"], listener=self.delivery)

    def make_consumer(self, max_records: int) -> FakeConsumer:
        return FakeConsumer(self.cluster, self.clock, max_records)

    def produce(self, partition: int, *values: str) -> TopicPartition:
        return self.cluster.produce(partition, values)

    def assign(self, *partitions: TopicPartition, generation: int = 1) -> None:
        """Lets the next poll join and assign."""
        self.consumer.join(generation)
        self.consumer.at_poll.append(lambda: self.consumer.assign(*partitions))

    def steps(self, count: int, timeout_ms: float = 50) -> None:
        for _ in range(count):
            self.delivery.step(timeout_ms)

    def until_idle(self, most: int = 1000) -> None:
        """Steps until everything produced for the assignment is committed."""
        for _ in range(most):
            self.delivery.step(50)
            behind = [
                tp
                for tp in self.consumer.positions
                if tp not in self.cluster.committed
                or self.cluster.committed[tp].offset < len(self.cluster.logs[tp])
            ]
            if not behind and self.delivery.in_flight.batch is None and not self.consumer.at_poll:
                return
        raise AssertionError(f"not idle after {most} steps: {self.cluster.journal[-10:]}")

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stdout.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    def journal(self, *names: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.cluster.journal if entry[0] in names]

    def note(self, tp: TopicPartition) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.cluster.committed[tp].metadata)
        return document
