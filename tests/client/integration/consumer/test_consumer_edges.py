"""The client at its edges: what is raised, what a dropped consumer does, and which time limit is reported."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slackwater.kafka import (
    AsyncConsumer,
    IllegalStateError,
    KafkaAdmin,
    KafkaConsumer,
    KafkaProducer,
    KafkaTimeoutError,
    TopicPartition,
)
from slackwater.kafka.errors import InconsistentGroupProtocolError
from tests.client.integration.groups.consumer_harness import (
    drain,
    make_topic,
    options,
    produce,
    unique,
)
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.rawclient import Member

UNCLOSED = "was dropped without close"


def members(bootstrap: str, group: str) -> int:
    with KafkaAdmin(bootstrap_servers=bootstrap) as admin:
        return len(admin.describe_groups([group])[group].members)


def owned_thread(client: Any) -> threading.Thread:
    """The thread of a client's event loop."""
    thread: threading.Thread = client._thread._thread
    return thread


# -- errors ----------------------------------------------------------------------------------------------


def test_a_group_of_another_protocol_type_is_reported(broker: Any) -> None:
    group, topic = unique("connect"), make_topic(broker.bootstrap, 1)
    with Member(broker.bootstrap, group, "worker-0") as worker:
        request = worker.join_request()
        request.protocol_type = "connect"
        worker.main.send(request, worker.join_version)
        assert worker.receive_join().error_code == 0
        with (
            KafkaConsumer(topic, **options(broker.bootstrap, group)) as consumer,
            pytest.raises(InconsistentGroupProtocolError, match="protocol type 'connect'"),
        ):
            consumer.poll(60_000)


def test_offsets_that_are_no_mapping_are_a_type_error(devbroker: Any) -> None:
    tp = TopicPartition(make_topic(devbroker.bootstrap, 1), 0)
    with KafkaConsumer(**options(devbroker.bootstrap, unique("g"))) as consumer:
        consumer.assign([tp])
        for call in (consumer.commit, consumer.commit_async, consumer.offsets_for_times):
            with pytest.raises(TypeError, match=r"must be a mapping \{TopicPartition"):
                call([tp])  # type: ignore[arg-type]


# -- close, and what was not closed ----------------------------------------------------------------------


class Closes:
    """A listener that ends its consumer when it is told that the partitions go."""

    def __init__(self, end: Callable[[], Any]) -> None:
        self._end = end
        self.revocations = 0

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        pass

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        self.revocations += 1
        return self._end()


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
@pytest.mark.parametrize("inside", ["close", "unsubscribe"])
def test_a_listener_may_end_the_consumer_that_is_ending(devbroker: Any, call: str, inside: str) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 1)
    consumer = KafkaConsumer(**options(devbroker.bootstrap, unique("g")))
    listener = Closes(lambda: getattr(consumer, inside)())
    consumer.subscribe([topic], listener=listener)
    drain(consumer, 1)
    getattr(consumer, call)()
    assert listener.revocations == 1
    consumer.close()
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
@pytest.mark.parametrize("inside", ["close", "unsubscribe"])
async def test_a_coroutine_listener_may_end_the_consumer_that_is_ending(
    devbroker: Any, call: str, inside: str
) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 1)
    consumer = AsyncConsumer(**options(devbroker.bootstrap, unique("g")))
    await consumer.start()
    listener = Closes(lambda: getattr(consumer, inside)())
    consumer.subscribe([topic], listener=listener)
    while not await consumer.poll(500):
        pass
    await getattr(consumer, call)()
    assert listener.revocations == 1
    await consumer.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await consumer.poll(0)


@pytest.mark.parametrize(("instance_id", "remaining"), [(None, 0), ("i-0", 1)], ids=["dynamic", "static"])
def test_a_consumer_that_is_dropped_warns_and_ends(
    broker: Any, instance_id: str | None, remaining: int
) -> None:
    """A dynamic member leaves its group; a static one stays a member and sends no more heartbeats."""
    topic, group = make_topic(broker.bootstrap, 1, 1), unique("g")
    more = {"group_instance_id": instance_id, "session_timeout_ms": 1_800_000}
    consumer = KafkaConsumer(topic, **options(broker.bootstrap, group, **more))
    drain(consumer, 1)
    thread = owned_thread(consumer)
    assert members(broker.bootstrap, group) == 1
    with pytest.warns(ResourceWarning, match=UNCLOSED):  # noqa: PT031
        del consumer
        gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert members(broker.bootstrap, group) == remaining


class Refers:
    """What an application gives its client, and what refers to that."""

    client: Any = None

    def on_consume(self, records: Any) -> Any:
        return records

    def on_commit(self, offsets: Any) -> None:
        pass

    def on_partitions_assigned(self, partitions: Any) -> None:
        pass

    on_partitions_revoked = on_partitions_assigned

    def on_send(self, record: Any) -> Any:
        return record

    def same(self, value: Any) -> Any:
        return value

    def told(self, *outcome: Any) -> None:
        pass

    def first(self, key: bytes, partitions: Any, available: Any) -> int:
        return int(partitions[0])


OPTIONS: dict[str, Callable[[Refers], dict[str, Any]]] = {
    "interceptor": lambda own: {"interceptor_classes": [own]},
    "deserializer": lambda own: {"key_deserializer": own.same, "value_deserializer": own.same},
    "callback": lambda own: {"default_offset_commit_callback": own.told},
    "listener": lambda own: {},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_dropped_consumer_is_collected_though_its_options_refer_to_it(devbroker: Any, option: str) -> None:
    topic, own = make_topic(devbroker.bootstrap, 1, 1), Refers()
    consumer = KafkaConsumer(**options(devbroker.bootstrap, unique("g"), **OPTIONS[option](own)))
    own.client = consumer
    consumer.subscribe([topic], listener=own if option == "listener" else None)
    drain(consumer, 1)
    consumer.commit_async().wait(WAIT_S)
    consumer.poll(0)
    with pytest.warns(ResourceWarning, match=UNCLOSED):  # noqa: PT031
        del consumer, own
        gc.collect()


def test_a_dropped_producer_is_collected_though_its_options_refer_to_it(devbroker: Any) -> None:
    own = Refers()
    producer = KafkaProducer(
        bootstrap_servers=devbroker.bootstrap,
        value_serializer=own.same,
        partitioner=own.first,
        interceptor_classes=[own],
    )
    own.client = producer
    producer.send(make_topic(devbroker.bootstrap, 1), b"x").add_callback(own.told).get(WAIT_S)
    with pytest.warns(ResourceWarning, match=UNCLOSED):  # noqa: PT031
        del producer, own
        gc.collect()


async def test_an_async_consumer_that_is_dropped_leaves_its_group(devbroker: Any) -> None:
    topic, group = make_topic(devbroker.bootstrap, 1, 1), unique("g")
    consumer = AsyncConsumer(topic, **options(devbroker.bootstrap, group, session_timeout_ms=1_800_000))
    await consumer.start()
    while not await consumer.poll(500):
        pass
    with pytest.warns(ResourceWarning, match=UNCLOSED):  # noqa: PT031
        del consumer
        gc.collect()
    deadline = time.monotonic() + WAIT_S
    while await asyncio.to_thread(members, devbroker.bootstrap, group):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("client", [KafkaProducer, KafkaAdmin])
def test_other_clients_that_are_dropped_warn_and_end_their_threads(devbroker: Any, client: Any) -> None:
    made = client(bootstrap_servers=devbroker.bootstrap)
    thread = owned_thread(made)
    with pytest.warns(ResourceWarning, match=UNCLOSED):  # noqa: PT031
        del made
        gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


# -- time limits -----------------------------------------------------------------------------------------


PATIENT = {
    "request_timeout_ms": 600_000,
    "socket_connection_setup_timeout_ms": 600_000,
    "connections_max_idle_ms": 6_000_000,
    "default_api_timeout_ms": 600_000,
}
"""Only the time that a call is given ends it."""


@pytest.fixture(scope="module")
def hung() -> Iterator[tuple[KafkaConsumer, TopicPartition, TopicPartition]]:
    """A consumer whose only broker does not answer any more, and a partition that it has not read."""
    with DevBroker({"group.initial.rebalance.delay.ms": "50"}) as own:
        topic = make_topic(own.bootstrap, 2, 2)
        known, unknown = (TopicPartition(topic, number) for number in range(2))
        consumer = KafkaConsumer(**options(own.bootstrap, unique("g"), **PATIENT))
        consumer.assign([known])
        drain(consumer, 1)
        consumer.commit()
        pid = own.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield consumer, known, unknown
        finally:
            os.kill(pid, signal.SIGCONT)
            consumer.close(autocommit=False)


CALLS: dict[str, Callable[[KafkaConsumer, TopicPartition, TopicPartition], Any]] = {
    "commit": lambda consumer, known, unknown: consumer.commit(timeout_ms=1_234),
    "committed": lambda consumer, known, unknown: consumer.committed(known, timeout_ms=1_234),
    "topics": lambda consumer, known, unknown: consumer.topics(timeout_ms=1_234),
    "partitions_for_topic": lambda consumer, known, unknown: consumer.partitions_for_topic(
        "another", timeout_ms=1_234
    ),
    "end_offsets": lambda consumer, known, unknown: consumer.end_offsets([unknown], timeout_ms=1_234),
    "beginning_offsets": lambda consumer, known, unknown: consumer.beginning_offsets(
        [known], timeout_ms=1_234
    ),
    "offsets_for_times": lambda consumer, known, unknown: consumer.offsets_for_times(
        {known: 5}, timeout_ms=1_234
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_broker_that_does_not_answer_ends_a_call_with_the_time_that_was_given(
    hung: tuple[KafkaConsumer, TopicPartition, TopicPartition], call: str
) -> None:
    with pytest.raises(KafkaTimeoutError) as caught:
        CALLS[call](*hung)
    first = re.search(r"within ([0-9]+) ms", str(caught.value))
    assert first is not None, str(caught.value)
    assert first[1] == "1234", str(caught.value)


class Interrupted:
    """A listener, in whose call the broker hangs and somebody presses Ctrl-C."""

    def __init__(self, pid: int, kind: type[BaseException]) -> None:
        self.pid, self.kind = pid, kind

    def on_partitions_assigned(self, partitions: Any) -> None:
        pass

    def on_partitions_revoked(self, partitions: Any) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        raise self.kind


@pytest.mark.parametrize("face", [KafkaConsumer, AsyncConsumer])
async def test_an_interrupted_close_does_not_wait_for_a_broker(face: Any) -> None:
    """Otherwise it waited for the leave of the group as long as a request may take: ten minutes here."""
    with DevBroker({"group.initial.rebalance.delay.ms": "50"}) as own:
        topic = make_topic(own.bootstrap, 1, 1)
        config = options(own.bootstrap, unique("g"), **PATIENT, enable_auto_commit=False)
        try:
            if face is KafkaConsumer:
                consumer = KafkaConsumer(**config)
                consumer.subscribe([topic], listener=Interrupted(own.pid, KeyboardInterrupt))
                drain(consumer, 1)
                with pytest.raises(KeyboardInterrupt):
                    consumer.close()
            else:
                other = await AsyncConsumer(**config).start()
                other.subscribe([topic], listener=Interrupted(own.pid, asyncio.CancelledError))
                while not await other.poll(500):
                    pass
                with pytest.raises(asyncio.CancelledError):
                    await other.close()
        finally:
            os.kill(own.pid, signal.SIGCONT)


# -- brokers that are away -------------------------------------------------------------------------------


@pytest.mark.long
def test_a_partition_without_a_leader_holds_up_no_other_and_is_read_when_it_has_one(
    kafka3: KafkaCluster,
) -> None:
    topic = make_topic(kafka3.bootstrap, 6, 60)
    partitions = [TopicPartition(topic, number) for number in range(6)]
    with KafkaConsumer(**options(kafka3.bootstrap, None)) as consumer:
        consumer.assign(partitions)
        assert drain(consumer, 60) == {tp: list(range(10)) for tp in partitions}
        leader = consumer._core.cluster.metadata.leader
        node = leader(partitions[0])
        assert node is not None
        without = [tp for tp in partitions if leader(tp) == node]
        others = [tp for tp in partitions if leader(tp) != node]
        assert others
        kafka3.kill(node)
        for tp in partitions:
            consumer.seek(tp, 5)
        assert drain(consumer, 5 * len(others)) == {tp: list(range(5, 10)) for tp in others}
        with pytest.raises(KafkaTimeoutError, match=rf"{without[0]} within 1500 ms"):
            consumer.end_offsets(without[:1], timeout_ms=1_500)
        kafka3.start(node)
        assert drain(consumer, 5 * len(without)) == {tp: list(range(5, 10)) for tp in without}


def test_a_broker_that_hangs_and_goes_on_costs_no_record_and_no_membership() -> None:
    with DevBroker({"group.initial.rebalance.delay.ms": "50"}) as cluster:
        topic = make_topic(cluster.bootstrap, 2, 20)
        more = {"session_timeout_ms": 1_800_000, "request_timeout_ms": 3_000, "group_instance_id": "i-0"}
        with KafkaConsumer(topic, **options(cluster.bootstrap, unique("g"), **more)) as consumer:
            values = drain(consumer, 20)
            generation = consumer.membership().generation
            os.kill(cluster.pid, signal.SIGSTOP)
            try:
                # Longer than a request may take: connections are given up, and made anew.
                with pytest.raises(KafkaTimeoutError):
                    consumer.commit(timeout_ms=4_000)
            finally:
                os.kill(cluster.pid, signal.SIGCONT)
            produce(cluster.bootstrap, topic, 2, 20, start=10)
            for tp, more_values in drain(consumer, 20).items():
                values[tp] += more_values
            assert all(value == list(range(20)) for value in values.values())
            consumer.commit()
            assert consumer.membership().generation == generation


def test_connections_that_a_broker_closes_for_idleness_cost_nothing() -> None:
    with DevBroker({"connections.max.idle.ms": "1000"}) as cluster:
        topic = make_topic(cluster.bootstrap, 1, 10)
        tp = TopicPartition(topic, 0)
        with KafkaConsumer(**options(cluster.bootstrap, None)) as consumer:
            consumer.assign([tp])
            assert drain(consumer, 10) == {tp: list(range(10))}
            consumer.pause(tp)
            slots = consumer._core.cluster._pool._slots

            def closed() -> bool:
                return all(slot.connection is None or slot.connection.closed for slot in slots.values())

            wait_until(closed, "the broker closes what is idle")
            consumer.resume(tp)
            produce(cluster.bootstrap, topic, 1, 10, start=10)
            assert drain(consumer, 10) == {tp: list(range(10, 20))}
