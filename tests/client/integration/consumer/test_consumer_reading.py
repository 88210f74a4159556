"""Reading without and with a group: positions, resets, pauses, fetching ahead, iteration, bad brokers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater.kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import (
    IllegalStateError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    NoBrokersAvailable,
    NoOffsetForPartitionError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeNoResetError,
    WakeupError,
)
from tests.client.integration.groups.consumer_harness import drain, make_topic, options, produce, unique
from tests.support.processes import reserve_ports
from tests.support.waiting import WAIT_S, wait_until


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def test_an_assigned_consumer_finds_offsets_by_time(broker: Any) -> None:
    topic = make_topic(broker.bootstrap, 2, 100)
    both = partitions(topic, 2)
    before = int(time.time() * 1000) - 3_600_000
    with KafkaConsumer(**options(broker.bootstrap, None)) as consumer:
        consumer.assign(both)
        assert consumer.beginning_offsets(both) == dict.fromkeys(both, 0)
        assert consumer.end_offsets(both) == dict.fromkeys(both, 50)
        offsets = consumer.offsets_for_times({both[0]: before, both[1]: 4_000_000_000_000})
        first = offsets[both[0]]
        assert first is not None
        assert first.offset == 0
        assert offsets[both[1]] is None
        assert drain(consumer, 100) == {tp: list(range(50)) for tp in both}
        assert [consumer.position(tp) for tp in both] == [50, 50]
        assert consumer.highwater(both[0]) == 50
        consumer.seek(both[0], 47)
        assert drain(consumer, 3) == {both[0]: [47, 48, 49]}
        consumer.seek_to_beginning(both[1])
        assert drain(consumer, 50) == {both[1]: list(range(50))}
        consumer.seek_to_end()
        assert [consumer.position(tp) for tp in both] == [50, 50]
        assert consumer.poll(300) == {}
        assert topic in consumer.topics()
        assert consumer.partitions_for_topic(topic) == {0, 1}
        assert consumer.partitions_for_topic(unique("none")) == set()
        with pytest.raises(IllegalStateError, match="group_id"):
            consumer.commit()
        with pytest.raises(KafkaTimeoutError, match=topic):
            consumer.end_offsets([TopicPartition(topic, 99)], timeout_ms=300)


def test_latest_reads_only_what_comes_after(broker: Any) -> None:
    topic = make_topic(broker.bootstrap, 1, 10)
    (tp,) = partitions(topic, 1)
    with KafkaConsumer(**options(broker.bootstrap, None, auto_offset_reset="latest")) as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == 10
        produce(broker.bootstrap, topic, 1, 5, start=10)
        assert drain(consumer, 5) == {tp: [10, 11, 12, 13, 14]}


@contextlib.contextmanager
def without_a_position(bootstrap: str) -> Iterator[tuple[KafkaConsumer, TopicPartition, TopicPartition]]:
    """A consumer without a reset policy, a partition that has no position, and one at its start; each has 10
    records."""
    tp, other = partitions(make_topic(bootstrap, 2, 20), 2)
    with KafkaConsumer(**options(bootstrap, unique("g"), auto_offset_reset="none")) as consumer:
        consumer.assign([tp, other])
        consumer.seek(other, 0)
        yield consumer, tp, other


def test_without_a_reset_policy_each_poll_asks_for_a_seek(broker: Any) -> None:
    with without_a_position(broker.bootstrap) as (consumer, tp, other):
        for _ in range(3):
            with pytest.raises(NoOffsetForPartitionError, match=tp.topic):
                consumer.poll(30_000)
        consumer.seek(tp, 8)
        assert drain(consumer, 12) == {tp: [8, 9], other: list(range(10))}
        for _ in range(2):
            consumer.seek(tp, 5_000)
            for _ in range(3):
                with pytest.raises(OffsetOutOfRangeNoResetError, match="5000"):
                    consumer.poll(30_000)
        consumer.pause(tp)
        produce(broker.bootstrap, tp.topic, 2, 2, start=10)
        assert drain(consumer, 1) == {other: [10]}
        consumer.resume(tp)
        with pytest.raises(OffsetOutOfRangeNoResetError, match="5000"):
            consumer.poll(30_000)
        consumer.seek(tp, 10)
        assert drain(consumer, 1) == {tp: [10]}


def test_a_paused_partition_without_a_position_is_told_once(broker: Any) -> None:
    with without_a_position(broker.bootstrap) as (consumer, tp, other):
        consumer.pause(tp, other)
        with pytest.raises(NoOffsetForPartitionError, match=tp.topic):
            consumer.poll(30_000)
        consumer.resume(other)
        assert drain(consumer, 10) == {other: list(range(10))}


def test_a_member_whose_position_nobody_sets_still_rebalances(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2, 20), unique("g")
    with (
        KafkaConsumer(topic, **options(broker.bootstrap, group, auto_offset_reset="none")) as consumer,
        KafkaConsumer(topic, **options(broker.bootstrap, group)) as second,
    ):

        def shared() -> bool:
            with contextlib.suppress(NoOffsetForPartitionError):
                consumer.poll(100)
            second.poll(100)
            return len(consumer.assignment()) == len(second.assignment()) == 1

        wait_until(shared, "each has one")


def test_fetches_ahead_while_the_application_works_and_not_beyond_the_bounds(broker: Any) -> None:
    topic = make_topic(broker.bootstrap, 4)
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(4_000):
        producer.send(topic, b"x" * 1_000, partition=number % 4)
    producer.flush(timeout=WAIT_S)
    producer.close()
    more = {"max_partition_fetch_bytes": 100_000, "fetch_max_bytes": 300_000, "max_poll_records": 10}
    with KafkaConsumer(**options(broker.bootstrap, None, **more)) as consumer:
        consumer.assign(partitions(topic, 4))
        count = sum(map(len, wait_until(lambda: consumer.poll(100), "the first records").values()))
        buffer = consumer._core.buffer
        wait_until(lambda: buffer.total_bytes >= 300_000 - 16_384, "fetched ahead, without a poll")
        while count < 4_000:
            count += sum(map(len, consumer.poll_columns(1_000).values()))
            # One answer may go over by a batch for each partition, as Kafka's limits do.
            assert buffer.total_bytes < 300_000 + 4 * 100_000


def test_each_record_once_and_in_order_in_every_view(broker: Any) -> None:
    topic = make_topic(broker.bootstrap, 3, 3_000)
    expected = {tp: list(range(1_000)) for tp in partitions(topic, 3)}
    with KafkaConsumer(**options(broker.bootstrap, None, max_poll_records=77)) as consumer:
        consumer.assign(partitions(topic, 3))
        assert drain(consumer, 3_000) == expected
        consumer.seek_to_beginning()
        values: dict[TopicPartition, list[int]] = {}
        while sum(map(len, values.values())) < 3_000:
            for row in consumer.poll_arrow(1_000).to_pylist():
                tp = TopicPartition(row["topic"], row["partition"])
                values.setdefault(tp, []).append(int(row["value"]))
        assert values == expected
        consumer.seek_to_beginning()
        offsets: dict[TopicPartition, list[int]] = {}
        while sum(map(len, offsets.values())) < 3_000:
            for tp, rows in consumer.poll_columns(1_000, max_records=50).items():
                assert len(rows) <= 50
                offsets.setdefault(tp, []).extend(rows.int64_column("offset").cast("B").cast("q"))
        assert offsets == expected


def test_iteration_moves_the_position_record_by_record(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 1, 20), unique("g")
    (tp,) = partitions(topic, 1)
    more = {"consumer_timeout_ms": 6_000, "value_deserializer": lambda data: int(data) * 2}
    with KafkaConsumer(**options(broker.bootstrap, group, **more)) as consumer:
        consumer.assign([tp])
        for record in consumer:
            if record.offset == 6:
                assert record.value == 12
                consumer.commit()
                break
        assert consumer.committed(tp) == 7
        assert [record.offset for record in consumer] == list(range(7, 20))
        assert consumer.position(tp) == 20


def test_auto_commit_covers_what_was_polled_before(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 1, 20), unique("g")
    (tp,) = partitions(topic, 1)
    more = {"enable_auto_commit": True, "auto_commit_interval_ms": 50, "max_poll_records": 5}
    consumer = KafkaConsumer(topic, **options(broker.bootstrap, group, **more))
    drain(consumer, 5)
    with KafkaConsumer(**options(broker.bootstrap, group)) as other:
        assert not other.committed(tp)
        # Nothing new is taken, but each poll after the interval stores what was taken before.
        consumer.pause(tp)
        wait_until(lambda: consumer.poll(60) or other.committed(tp) == 5, "the auto-commit")
        consumer.resume(tp)
    drain(consumer, 5)
    consumer.close()
    with KafkaConsumer(**options(broker.bootstrap, group)) as other:
        assert other.committed(tp) == 10


def test_commits_keep_their_metadata_and_their_order(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    partition, other = partitions(topic, 2)
    with KafkaConsumer(**options(broker.bootstrap, group)) as consumer:
        consumer.assign([partition, other])
        consumer.commit({partition: OffsetAndMetadata(3, "at noon"), other: OffsetAndMetadata(4)})
        assert consumer.committed(partition, metadata=True) == OffsetAndMetadata(3, "at noon", -1)
        assert consumer.committed_many([partition, other])[other] == OffsetAndMetadata(4, "", -1)
        with pytest.raises(OffsetMetadataTooLargeError, match=topic):
            consumer.commit({partition: OffsetAndMetadata(5, "x" * 5_000)})
        order: list[int] = []
        for number in range(20):
            consumer.commit_async(
                {partition: OffsetAndMetadata(number)},
                lambda offsets, error: order.append(-1 if error else offsets[partition].offset),
            )
        wait_until(lambda: consumer.poll(50) or len(order) == 20, "the callbacks")
        assert order == list(range(20))
        assert consumer.committed(partition) == 19


def test_one_thread_polls_and_another_wakes_it(broker: Any) -> None:
    topic = make_topic(broker.bootstrap, 1)
    with KafkaConsumer(**options(broker.bootstrap, None)) as consumer:
        consumer.assign(partitions(topic, 1))
        caught: list[BaseException] = []

        def poll() -> None:
            try:
                consumer.poll(40_000)
            except WakeupError as exc:
                caught.append(exc)

        thread = threading.Thread(target=poll)
        thread.start()
        wait_until(consumer._polling.locked, "polling")
        with pytest.raises(IllegalStateError, match="polling"):
            consumer.poll(0)
        consumer.wakeup()
        thread.join(WAIT_S)
        assert len(caught) == 1
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)


# -- brokers that are not there, or not brokers -----------------------------------------------------


def test_no_broker_is_one_error_that_names_the_addresses() -> None:
    address = f"127.0.0.1:{reserve_ports(1)[0]}"
    started = time.monotonic()
    with pytest.raises(NoBrokersAvailable, match=address):
        KafkaConsumer("t", bootstrap_servers=[address], group_id="g", bootstrap_timeout_ms=500)
    assert time.monotonic() - started < 15, "far less than the default"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kafka-consumer")]


def test_a_consumer_outlives_its_broker() -> None:
    from tests.support.devbroker import DevBroker

    with DevBroker() as own:
        topic, group = make_topic(own.bootstrap, 1, 10), unique("g")
        with KafkaConsumer(topic, **options(own.bootstrap, group, request_timeout_ms=2_000)) as consumer:
            drain(consumer, 10)
            consumer.commit()
            own.kill()
            assert consumer.poll(500) == {}
            own.start()
            produce(own.bootstrap, topic, 1, 5, start=10)
            assert drain(consumer, 5) == {TopicPartition(topic, 0): [10, 11, 12, 13, 14]}
            wait_until(lambda: consumer.poll(50) or consumer.membership().state == "stable", "in the group")
            consumer.commit()
            assert consumer.committed(TopicPartition(topic, 0)) == 15


# -- starting ----------------------------------------------------------------------------------------


def test_a_consumer_is_built_from_java_properties(broker: Any) -> None:
    topic = make_topic(broker.bootstrap, 1, 10)
    properties = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": unique("g"),
        "group.instance.id": "i-0",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "max.poll.records": "4",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    }
    with KafkaConsumer.from_properties(properties, topic) as consumer:
        assert sum(map(len, drain(consumer, 10).values())) == 10
        assert consumer.config.max_poll_records == 4
        assert consumer.membership().instance_id == "i-0"
    with pytest.raises(KafkaConfigurationError, match=r"max\.poll\.recods.*max\.poll\.records"):
        KafkaConsumer.from_properties({"max.poll.recods": "1"})


def test_a_join_request_is_sent_at_once(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 1), unique("g")
    same = options(broker.bootstrap, group, group_instance_id="i-0")
    with KafkaConsumer(topic, **same) as consumer:
        wait_until(lambda: consumer.poll(50) or consumer.assignment(), "the first join")
    # A late one proves nothing on a busy machine, an early one does: so there are some attempts.
    gaps: list[float] = []
    while len(gaps) < 30 and min(gaps, default=1.0) >= 0.1:
        started = time.monotonic()
        with KafkaConsumer(topic, **same) as consumer:
            wait_until(lambda: consumer.membership().state in ("assigning", "stable"), "the return")
            gaps.append(time.monotonic() - started)
    assert min(gaps) < 0.1, gaps
