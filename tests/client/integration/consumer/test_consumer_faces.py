"""The public calls of the consumer on a real broker and on the dev broker, by both faces."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from slackwater.kafka import (
    AsyncConsumer,
    AsyncConsumerRebalanceListener,
    IllegalStateError,
    KafkaAdmin,
    KafkaConsumer,
    KafkaProducer,
    KafkaTimeoutError,
    MemberState,
    OffsetAndMetadata,
    PartitionNotAssignedError,
    RebalanceListenerError,
    RecordDeserializationError,
    TopicPartition,
    WakeupError,
)
from slackwater.kafka.admin import NewTopic
from tests.client.integration.groups.consumer_harness import (
    LONGER_THAN_A_TEST_MS,
    drain,
    make_topic,
    options,
    produce,
    unique,
)
from tests.support.devbroker import DevBroker
from tests.support.waiting import WAIT_S, wait_until, wait_until_async


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


@contextmanager
def soon(action: Callable[[], Any], ready: Callable[[], Any]) -> Iterator[None]:
    """Does something on another thread as soon as it is ready for that."""
    thread = threading.Thread(target=lambda: (wait_until(ready, "ready"), action()))
    thread.start()
    yield
    thread.join(WAIT_S)


# -- the same calls --------------------------------------------------------------------------------------


def test_both_consumers_have_the_same_calls() -> None:
    blocking = {
        name for name in vars(AsyncConsumer) if inspect.iscoroutinefunction(getattr(AsyncConsumer, name))
    }
    for name in dir(KafkaConsumer):
        if name.startswith("_") or name == "DEFAULT_CONFIG":
            continue
        theirs = getattr(AsyncConsumer, name)
        if callable(theirs):
            mine = inspect.signature(getattr(KafkaConsumer, name)).parameters
            assert list(inspect.signature(theirs).parameters) == list(mine), name
    assert {
        "poll",
        "poll_columns",
        "poll_arrow",
        "commit",
        "committed",
        "position",
        "topics",
        "close",
    } <= blocking


class Sync:
    """An AsyncConsumer that is used as the other face: so that one body tests both."""

    def __init__(self, *topics: str, **configs: Any) -> None:
        self._runner = asyncio.Runner()
        self._consumer = AsyncConsumer(*topics, **configs)
        self._runner.run(self._consumer.start())

    def __getattr__(self, name: str) -> Any:
        assert name not in ("_runner", "_consumer"), "not made yet"
        attribute = getattr(self._consumer, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            async def run() -> Any:
                result = attribute(*args, **kwargs)
                return await result if isinstance(result, Awaitable) else result

            return self._runner.run(run())

        return call

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._runner.run(self._consumer.__anext__())
            except StopAsyncIteration:
                return

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._consumer.close())
        self._runner.close()


@pytest.fixture(params=[KafkaConsumer, Sync], ids=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


def read(consumer: Any, view: str, limit: int | None = None) -> list[tuple[int, int]]:
    """One poll by one of the views, as (partition, value)."""
    if view == "poll":
        polled = consumer.poll(500, max_records=limit)
        return [(r.partition, int(r.value)) for records in polled.values() for r in records]
    table = consumer.poll_arrow(500, max_records=limit)
    return [(row["partition"], int(row["value"])) for row in table.to_pylist()]


@pytest.mark.parametrize("view", ["poll", "poll_arrow"])
def test_positions_commits_and_back_pressure_are_the_same_in_each_view(
    broker: Any, face: Any, view: str
) -> None:
    topic, group = make_topic(broker.bootstrap, 2, 400), unique("g")
    first, second = partitions(topic, 2)
    more = {"max_partition_fetch_bytes": 4_096, "fetch_max_bytes": 8_192}
    with face(**options(broker.bootstrap, group, **more)) as consumer:
        consumer.assign([first, second])
        records: list[tuple[int, int]] = []
        while not records:
            records += read(consumer, view, 7)
        assert len(records) <= 7
        for tp in (first, second):
            assert consumer.position(tp) == sum(number == tp.partition for number, _ in records)
        buffer = consumer._core.buffer
        while len(records) < 200:
            records += read(consumer, view, 7)
            # A batch for each partition may come above the limit, as with Kafka's own limits.
            assert buffer.total_bytes <= 8_192 + 2 * 16_384
        consumer.commit()
        at = {tp: sum(number == tp.partition for number, _ in records) for tp in (first, second)}
        committed = consumer.committed([first, second])
        assert {tp: offset.offset for tp, offset in committed.items()} == at
        consumer.pause(first)
        before = consumer.position(first)
        while consumer.position(second) < 200:
            rows = read(consumer, view)
            assert {number for number, _ in rows} <= {1}
            records += rows
        assert consumer.position(first) == before
        consumer.resume(first)
        while len(records) < 400:
            records += read(consumer, view)
        for tp in (first, second):
            assert [value for number, value in records if number == tp.partition] == list(range(200))
            assert consumer.current_lag(tp) == 0
            assert consumer.highwater(tp) == 200


# -- without a group -----------------------------------------------------------------------------------


def test_topics_without_a_group_are_read_completely(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 3, 30)
    events: list[str] = []

    class Listener:
        def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            events.append(f"assigned {len(assigned)}")

        def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            events.append(f"revoked {len(revoked)}")

    with face(**options(broker.bootstrap, None, metadata_max_age_ms=200)) as consumer:
        consumer.subscribe([topic], listener=Listener())
        assert drain(consumer, 30) == {tp: list(range(10)) for tp in partitions(topic, 3)}
        assert consumer.subscription() == {topic}
        assert consumer.group_metadata().state == MemberState.UNJOINED
        with pytest.raises(IllegalStateError, match="group_id"):
            consumer.commit()
        with pytest.raises(IllegalStateError, match="group_id"):
            consumer.enforce_rebalance()
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        assert consumer.subscription() is None
    assert events == ["assigned 3", "revoked 3"]


def test_topics_pattern_and_assignment_exclude_each_other(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 1)
    (tp,) = partitions(topic, 1)
    with face(**options(broker.bootstrap, unique("g"))) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.assign([tp])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.subscribe(pattern="t.*")
        with pytest.raises(ValueError, match="either topics or a pattern"):
            consumer.subscribe([topic], pattern="t.*")
        with pytest.raises(ValueError, match="unsubscribe"):
            consumer.subscribe([])
        with pytest.raises(TypeError, match="on_partitions_assigned"):
            consumer.subscribe([topic], listener=object())
        consumer.unsubscribe()
        consumer.assign([tp])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.subscribe([topic])
        with pytest.raises(IllegalStateError, match="does not join a group"):
            consumer.enforce_rebalance()
        consumer.assign([])
        assert consumer.assignment() == set()
        consumer.subscribe(pattern="t.*")


def test_calls_for_unassigned_partitions_raise(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 2, 10)
    partition, other = partitions(topic, 2)
    with face(**options(broker.bootstrap, None)) as consumer:
        with pytest.raises(PartitionNotAssignedError, match="no partitions"):
            consumer.seek_to_end()
        consumer.assign([partition])
        calls: list[Callable[[], Any]] = [
            lambda: consumer.seek(other, 1),
            lambda: consumer.seek_to_beginning(other),
            lambda: consumer.seek_to_end(partition, other),
            lambda: consumer.pause(partition, other),
            lambda: consumer.resume(other),
            lambda: consumer.position(other),
            lambda: consumer.highwater(other),
            lambda: consumer.current_lag(other),
        ]
        for call in calls:
            with pytest.raises(PartitionNotAssignedError, match=f"{other} is not assigned"):
                call()
        assert consumer.paused() == set()
        place = OffsetAndMetadata
        no_offsets: list[Any] = [-1, 1.5, "1", None, True, 2**63, place(2**63)]
        for bad in [*no_offsets, place(1, "", cast(Any, 0.5)), place(1, cast(Any, 7))]:
            with pytest.raises(ValueError, match="offset"):
                consumer.seek(partition, bad)
        with pytest.raises(ValueError, match="leader epoch"):
            consumer.seek(partition, place(1, "", 2**31))
        for no_time in (-1, float("nan")):
            with pytest.raises(ValueError, match="timeout_ms"):
                consumer.poll(no_time)
        consumer.seek(partition, place(3))
        assert consumer.position(partition) == 3
        assert [r.offset for r in consumer.poll(30_000)[partition]] == [3, 4]


# -- deserializers, interceptors ---------------------------------------------------------------------------


def fussy(data: bytes | None) -> int:
    number = int(data or b"")
    if number == 3:
        raise ValueError("three is not a number")
    return number


def test_a_record_that_cannot_be_deserialized_can_be_skipped(broker: Any, face: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 1, 6), unique("g")
    (tp,) = partitions(topic, 1)
    with face(**options(broker.bootstrap, group, value_deserializer=fussy)) as consumer:
        consumer.assign([tp])
        assert [r.value for r in consumer.poll(30_000)[tp]] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as info:
                consumer.poll(30_000)
        error = info.value
        assert (error.topic_partition, error.offset, error.origin) == (tp, 3, "value")
        assert (error.key, error.value) == (b"k", b"3")
        assert isinstance(error.__cause__, ValueError)
        consumer.commit()
        assert consumer.committed(tp) == 3
        consumer.seek(error.topic_partition, error.offset + 1)
        assert [r.value for r in consumer.poll(30_000)[tp]] == [4, 5]
        assert consumer.position(tp) == 6


def test_other_partitions_do_not_hide_a_record_that_cannot_be_deserialized(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 2)
    bad, good = partitions(topic, 2)
    with KafkaProducer(bootstrap_servers=broker.bootstrap, batch_size=200) as producer:
        for number in range(2_000):
            producer.send(topic, b"%d" % (10 + number), partition=1)
        for number in range(2, 6):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
    more = {"value_deserializer": fussy, "max_partition_fetch_bytes": 1_000}
    with face(**options(broker.bootstrap, None, **more)) as consumer:
        consumer.assign([bad, good])
        polled: dict[TopicPartition, list[Any]] = {}
        while bad not in polled:
            polled = consumer.poll(30_000)
        assert [record.value for record in polled[bad]] == [2]
        before = consumer.position(good)
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match=f"offset 1 of {bad}"):
                consumer.poll(30_000)
        assert (consumer.position(bad), consumer.position(good)) == (1, before)
        consumer.pause(bad)
        assert set(consumer.poll(30_000)) == {good}
        rest = 2_000 - consumer.position(good)
        assert rest > 0
        consumer.resume(bad)
        consumer.seek(bad, 2)
        drain(consumer, rest + 2)


def test_the_iterator_stops_at_a_record_that_cannot_be_deserialized(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 1, 6)
    (tp,) = partitions(topic, 1)
    more = {"value_deserializer": fussy, "consumer_timeout_ms": 60_000}
    with face(**options(broker.bootstrap, None, **more)) as consumer:
        consumer.assign([tp])
        records = iter(consumer)
        assert [next(records).value for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RecordDeserializationError, match="offset 3"):
            next(records)
        assert consumer.position(tp) == 3
        with pytest.raises(RecordDeserializationError, match="offset 3"):
            next(iter(consumer))
        consumer.seek(tp, 4)
        records = iter(consumer)
        assert [next(records).value for _ in range(2)] == [4, 5]


BETWEEN: dict[str, Callable[[Any, list[TopicPartition]], Any]] = {
    "nothing": lambda consumer, chosen: None,
    "assign again": lambda consumer, chosen: consumer.assign(chosen),
    "pause and resume": lambda consumer, chosen: (consumer.pause(*chosen), consumer.resume(*chosen)),
    "commit": lambda consumer, chosen: consumer.commit(),
}


@pytest.mark.parametrize(
    ("view", "between"), [("poll_arrow", "nothing"), *(("poll", step) for step in BETWEEN)]
)
def test_a_poll_continues_where_a_broken_off_iteration_ended(
    broker: Any, face: Any, view: str, between: str
) -> None:
    """Records that the iterator has polled and not yielded are neither skipped nor committed."""
    topic, group = make_topic(broker.bootstrap, 2, 120), unique("g")
    chosen = partitions(topic, 2)
    # Small fetches: more waits in the buffer than the iterator holds.
    # One partition ends before the other: the broker then holds a fetch back for as long as it may.
    more = {"max_partition_fetch_bytes": 1_024, "max_poll_records": 20, "fetch_max_wait_ms": 50}
    with face(**options(broker.bootstrap, group, **more)) as consumer:
        consumer.assign(chosen)
        records: list[tuple[int, int]] = []
        while len(records) < 120:
            for record in consumer:
                records.append((record.partition, int(record.value)))
                if len(records) % 7 == 3 or len(records) == 120:
                    break
            BETWEEN[between](consumer, chosen)
            for tp in chosen:
                passed_on = sum(number == tp.partition for number, _ in records)
                assert consumer.position(tp) == passed_on
            if len(records) < 120:
                records += read(consumer, view, 5)
        assert sorted(records) == [(number, value) for number in range(2) for value in range(60)]


def test_a_subscription_that_changes_after_a_broken_off_iteration_skips_nothing(
    broker: Any, face: Any
) -> None:
    topic, other, group = make_topic(broker.bootstrap, 1, 300), make_topic(broker.bootstrap, 1), unique("g")
    more = {"max_partition_fetch_bytes": 1_024, "max_poll_records": 50}
    with face(topic, **options(broker.bootstrap, group, **more)) as consumer:
        values = [int(next(iter(consumer)).value) for _ in range(3)]
        consumer.subscribe([topic, other])
        while len(values) < 300:
            values += [value for _, value in read(consumer, "poll", 20)]
        assert values == list(range(300))


def test_close_does_not_commit_records_of_a_broken_off_iteration(broker: Any, face: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 1, 300), unique("g")
    (tp,) = partitions(topic, 1)
    more = {"enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000, "max_poll_records": 50}
    with face(topic, **options(broker.bootstrap, group, **more)) as consumer:
        values = [int(next(iter(consumer)).value) for _ in range(3)]
        while len(values) < 10:
            values += [value for _, value in read(consumer, "poll", 7)]
    assert values == list(range(len(values)))
    with face(**options(broker.bootstrap, group)) as after:
        assert after.committed(tp) == len(values)


class Traces:
    """Notes what it sees, and keeps even records only."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_consume(self, records: Any) -> Any:
        return {tp: [r for r in values if int(r.value) % 2 == 0] for tp, values in records.items()}

    def on_commit(self, offsets: Any) -> None:
        self.calls.append({tp.partition: offset.offset for tp, offset in offsets.items()})

    def close(self) -> None:
        self.calls.append("closed")


def test_interceptors_see_records_and_commits_of_each_kind(broker: Any, face: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 1, 6), unique("g")
    (tp,) = partitions(topic, 1)
    traces = Traces()
    more = {"interceptor_classes": [traces], "enable_auto_commit": True, "auto_commit_interval_ms": 100_000}
    with face(**options(broker.bootstrap, group, **more)) as consumer:
        consumer.assign([tp])
        assert [int(r.value) for r in consumer.poll(30_000)[tp]] == [0, 2, 4]
        assert consumer.position(tp) == 6
        consumer.commit({tp: OffsetAndMetadata(1)})
        assert traces.calls == [{0: 1}]
        consumer.commit_async({tp: OffsetAndMetadata(2)})
        wait_until(lambda: consumer.poll(20) or len(traces.calls) == 2, "the asynchronous commit")
    assert traces.calls == [{0: 1}, {0: 2}, {0: 6}, "closed"]


# -- listeners -----------------------------------------------------------------------------------------------


class Breaks:
    """A listener that notes what it sees of the consumer, and raises where it is told to."""

    def __init__(self, *fails: str) -> None:
        self.fails = set(fails)
        self.consumer: Any = None
        self.calls: list[tuple[str, int, int, int]] = []

    def _note(self, kind: str, given: list[TopicPartition]) -> None:
        self.calls.append((kind, len(given), len(self.consumer.assignment()), threading.get_ident()))
        if kind in self.fails:
            raise RuntimeError(f"the listener fails when {kind}")

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._note("assigned", assigned)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._note("revoked", revoked)

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        self._note("lost", lost)


def test_an_error_of_a_listener_is_raised_once_and_the_group_continues(broker: Any, face: Any) -> None:
    topic, listener = make_topic(broker.bootstrap, 2, 20), Breaks("assigned")
    with face(**options(broker.bootstrap, unique("g"))) as consumer:
        listener.consumer = consumer._consumer if face is Sync else consumer
        consumer.subscribe([topic], listener=listener)
        with pytest.raises(
            RebalanceListenerError, match=r"Breaks\.on_partitions_assigned\(\) raised RuntimeError: the"
        ):
            wait_until(lambda: consumer.poll(200), "an error")
        assert drain(consumer, 20) == {tp: list(range(10)) for tp in partitions(topic, 2)}
        listener.fails = {"revoked"}
        with pytest.raises(RebalanceListenerError, match=r"on_partitions_revoked"):
            consumer.unsubscribe()
        assert consumer.assignment() == set()
    here = threading.get_ident()
    # New partitions are in the assignment when the listener hears of them; those that go still are.
    assert listener.calls == [("assigned", 2, 2, here), ("revoked", 2, 2, here)]


def test_a_listener_may_consist_of_coroutines(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 1, 10)
    (tp,) = partitions(topic, 1)
    calls: list[tuple[str, int]] = []

    class Listener(AsyncConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            await asyncio.sleep(0.01)
            inner.seek(tp, 8)
            calls.append(("assigned", threading.get_ident()))

        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            await asyncio.sleep(0.01)
            calls.append(("revoked", threading.get_ident()))

    with face(**options(broker.bootstrap, unique("g"))) as consumer:
        inner = consumer._consumer if face is Sync else consumer
        consumer.subscribe([topic], listener=Listener())
        assert drain(consumer, 2) == {tp: [8, 9]}
    assert calls == [("assigned", threading.get_ident()), ("revoked", threading.get_ident())]


def test_close_calls_the_listener_before_it_leaves(broker: Any, face: Any) -> None:
    topic, group, listener = make_topic(broker.bootstrap, 1, 5), unique("g"), Breaks()
    (tp,) = partitions(topic, 1)
    more = {"enable_auto_commit": True, "auto_commit_interval_ms": 100_000}
    with face(**options(broker.bootstrap, group, **more)) as consumer:
        listener.consumer = consumer._consumer if face is Sync else consumer
        consumer.subscribe([topic], listener=listener)
        drain(consumer, 5)
        assert consumer.group_metadata().state == MemberState.STABLE
        assert consumer.group_metadata().member_id
    assert [kind for kind, *_ in listener.calls] == ["assigned", "revoked"]
    assert listener.calls[-1][2] == 1
    with KafkaConsumer(**options(broker.bootstrap, group)) as other:
        assert other.committed(tp) == 5


def test_enforce_rebalance_brings_a_new_generation(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 2)
    with face(**options(broker.bootstrap, unique("g"))) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(50) or consumer.membership().state == "stable", "joined")
        before = consumer.membership().generation
        consumer.enforce_rebalance("to see whether it does")
        wait_until(lambda: consumer.poll(50) or consumer.membership().generation > before, "a new generation")
        wait_until(lambda: consumer.poll(50) or len(consumer.assignment()) == 2, "its partitions")


def test_a_pattern_takes_up_new_topics_and_forgets_deleted_ones(broker: Any, face: Any) -> None:
    base = unique("p")
    with (
        KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin,
        face(**options(broker.bootstrap, unique("g"), metadata_max_age_ms=300)) as consumer,
    ):
        admin.create_topics([NewTopic(f"{base}-one", 1)]).unwrap()
        consumer.subscribe(pattern=f"{base}-.*")
        wait_until(lambda: consumer.poll(50) or consumer.subscription() == {f"{base}-one"}, "the first")
        wait_until(lambda: consumer.poll(50) or len(consumer.assignment()) == 1, "its partition")
        admin.create_topics([NewTopic(f"{base}-two", 2), NewTopic(f"other-{base}-x", 1)]).unwrap()
        wait_until(lambda: consumer.poll(50) or len(consumer.assignment()) == 3, "the new topic's partitions")
        admin.delete_topics([f"{base}-one"]).unwrap()
        wait_until(
            lambda: consumer.poll(50) or consumer.subscription() == {f"{base}-two"}, "the old one gone"
        )
        wait_until(lambda: consumer.poll(50) or len(consumer.assignment()) == 2, "its partition gone")
        assert {tp.topic for tp in consumer.assignment()} == {f"{base}-two"}


# -- commits -----------------------------------------------------------------------------------------------


def test_callbacks_come_in_order_and_before_a_commit_that_waits(broker: Any, face: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 1), unique("g")
    (tp,) = partitions(topic, 1)
    order: list[tuple[str, int]] = []
    more = {
        "default_offset_commit_callback": lambda given, error: order.append(("default", given[tp].offset))
    }
    with face(**options(broker.bootstrap, group, **more)) as consumer:
        consumer.assign([tp])
        core, futures = consumer._core, []
        at_once = core.committer.commit

        async def slow(offsets: Any, timeout_ms: int) -> None:
            await at_once(offsets, timeout_ms)
            if offsets[tp].offset % 3 == 0:
                await asyncio.sleep(0.2)  # as if the answer came later than those to commits after it

        core.committer.commit = slow
        for number in range(20):
            callback = (lambda given, error: order.append(("own", given[tp].offset))) if number % 2 else None
            futures.append(consumer.commit_async({tp: OffsetAndMetadata(number)}, callback))
        consumer.commit({tp: OffsetAndMetadata(50)})
        assert order == [("own" if number % 2 else "default", number) for number in range(20)]
        assert all(future.succeeded() for future in futures)
        assert consumer.committed(tp) == 50


def test_a_callback_that_raises_reaches_poll_once(broker: Any, face: Any) -> None:
    topic = make_topic(broker.bootstrap, 1)
    (tp,) = partitions(topic, 1)

    def fail(given: Any, error: Any) -> None:
        raise RuntimeError("the callback fails")

    with face(**options(broker.bootstrap, unique("g"))) as consumer:
        consumer.assign([tp])
        consumer.commit_async({tp: OffsetAndMetadata(1)}, fail)
        with pytest.raises(RuntimeError, match="the callback fails"):
            wait_until(lambda: consumer.poll(50), "the error")
        assert consumer.poll(50) == {}


# -- wakeup, close -------------------------------------------------------------------------------------------


def test_wakeup_ends_each_waiting_call(devbroker: Any) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 3)
    (tp,) = partitions(topic, 1)
    with KafkaConsumer(**options(devbroker.bootstrap, unique("g"))) as consumer:
        consumer.assign([tp])
        drain(consumer, 3)
        waits: list[Callable[[], Any]] = [
            lambda: consumer.poll(LONGER_THAN_A_TEST_MS),
            lambda: consumer.end_offsets([TopicPartition(topic, 7)], timeout_ms=LONGER_THAN_A_TEST_MS),
            lambda: consumer.offsets_for_times(
                {TopicPartition(topic, 7): 1}, timeout_ms=LONGER_THAN_A_TEST_MS
            ),
        ]
        for wait in waits:
            with soon(consumer.wakeup, lambda: consumer._wakeups._waiting), pytest.raises(WakeupError):
                wait()
        for call in (
            lambda: consumer.poll(0),
            consumer.commit,
            lambda: consumer.position(tp),
            lambda: consumer.committed(tp),
            lambda: consumer.partitions_for_topic(topic),
            consumer.topics,
        ):
            consumer.wakeup()
            # What does not block is not woken.
            consumer.seek(tp, 0)
            assert consumer.assignment() == {tp}
            with pytest.raises(WakeupError):
                call()
            call()
        consumer.wakeup()
    # close() is not woken


def test_a_signal_handler_can_wake_a_consumer(devbroker: Any) -> None:
    topic = make_topic(devbroker.bootstrap, 1)
    with KafkaConsumer(**options(devbroker.bootstrap, None)) as consumer:
        consumer.assign(partitions(topic, 1))
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.wakeup())
        try:
            for _ in range(20):
                with (
                    soon(lambda: os.kill(os.getpid(), signal.SIGUSR1), lambda: consumer._wakeups._waiting),
                    pytest.raises(WakeupError),
                ):
                    consumer.poll(30_000)
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_end_poll_ends_one_poll_without_an_error(devbroker: Any) -> None:
    """The one under way, for a thread and for a signal handler; or the next, and no other call."""
    topic = make_topic(devbroker.bootstrap, 1)
    with KafkaConsumer(**options(devbroker.bootstrap, unique("g"))) as consumer:
        consumer.assign(partitions(topic, 1))
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.end_poll())
        try:
            for end in (consumer.end_poll, lambda: os.kill(os.getpid(), signal.SIGUSR1)):
                with soon(end, lambda: consumer._wakeups._waiting):
                    assert consumer.poll(LONGER_THAN_A_TEST_MS) == {}
        finally:
            signal.signal(signal.SIGUSR1, before)
        consumer.end_poll()
        consumer.commit()
        assert consumer.poll(LONGER_THAN_A_TEST_MS) == {}


async def test_wakeup_ends_a_polling_task(devbroker: Any) -> None:
    topic = make_topic(devbroker.bootstrap, 1)
    async with AsyncConsumer(**options(devbroker.bootstrap, None)) as consumer:
        consumer.assign(partitions(topic, 1))
        task = asyncio.create_task(consumer.poll(30_000))
        await wait_until_async(lambda: consumer._wakeups._waiting)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await asyncio.wait_for(task, 25)
        waiting = asyncio.create_task(consumer.end_offsets([TopicPartition(topic, 9)], timeout_ms=30_000))
        await wait_until_async(lambda: consumer._wakeups._waiting)
        threading.Thread(target=consumer.wakeup).start()
        with pytest.raises(WakeupError):
            await asyncio.wait_for(waiting, 25)


def test_close_keeps_its_time_without_a_broker(face: Any) -> None:
    with DevBroker({"group.initial.rebalance.delay.ms": "50"}) as own:
        topic = make_topic(own.bootstrap, 1, 5)
        more = {
            "enable_auto_commit": True,
            "request_timeout_ms": LONGER_THAN_A_TEST_MS,
            "default_api_timeout_ms": LONGER_THAN_A_TEST_MS,
        }
        consumers = {ms: face(topic, **options(own.bootstrap, unique("g"), **more)) for ms in (0, 700)}
        for consumer in consumers.values():
            drain(consumer, 5)
        own.kill()
        for timeout_ms, consumer in consumers.items():
            consumer.commit_async()
            consumer.close(timeout_ms=timeout_ms)
            consumer.close()
            with pytest.raises(IllegalStateError, match="closed"):
                consumer.poll(0)
            with pytest.raises(IllegalStateError, match="closed"):
                consumer.commit()
            with pytest.raises(IllegalStateError, match="closed"):
                consumer.subscribe([topic])


def test_the_constructor_with_an_api_version_waits_for_no_broker(devbroker: Any) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 5)
    nobody = {"api_version": (2, 8), "bootstrap_timeout_ms": 300}
    with KafkaConsumer(topic, bootstrap_servers="127.0.0.1:1", **nobody) as consumer:
        assert not consumer.bootstrap_connected()
        assert consumer.subscription() == {topic}
        with pytest.raises(KafkaTimeoutError, match="127.0.0.1:1"):
            consumer.poll(30_000)
        with pytest.raises(KafkaTimeoutError, match="127.0.0.1:1"):
            consumer.bootstrap(timeout_ms=100)
    with KafkaConsumer(topic, **options(devbroker.bootstrap, None, api_version=(2, 8))) as consumer:
        consumer.bootstrap(timeout_ms=20_000)
        assert consumer.bootstrap_connected()
        drain(consumer, 5)
        produce(devbroker.bootstrap, topic, 1, 1, start=5)
        drain(consumer, 1)
