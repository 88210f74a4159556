"""What the producer makes of a broker's answers, from a broker that answers as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn
from uuid import UUID

import pytest

from slackwater.kafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    SendDeadlineError,
    TopicAuthorizationFailedError,
)
from slackwater.kafka.producer import (
    AsyncProducer,
    KafkaProducer,
    ProducerInterceptor,
    ProducerRecord,
    sender,
)
from slackwater.kafka.records import HEADER_BYTES, BatchHeader, decode, iter_batches, record_size
from slackwater.kafka.serializers import Serializer
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.frame import RequestHeader
from slackwater.kafka.wire.primitives import ZERO_UUID
from tests.support.waiting import WAIT_S
from tests.support.wire.scripted import Peer, scripted_broker

Answer = m.ProduceResponsePartition | None


class OneBroker:
    """Topic ``t`` with one partition. ``script``: what the n-th batch is answered; ``None``: hang up."""

    def __init__(self) -> None:
        self.port = 0
        self.topic_id = UUID(int=7)
        self.versions: dict[str, tuple[int, int]] = {}
        self.script: list[Answer | int] = []
        self.init_error = 0
        self.batches: list[BatchHeader] = []
        self.bytes: list[bytes] = []
        self.topic_ids: list[UUID] = []
        self.asked: Counter[str] = Counter()
        self.silent = False
        self.before_answer: Callable[[], None] = lambda: None

    async def serve(self, peer: Peer) -> None:
        await peer.negotiate(**self.versions)
        while True:
            header, body = await peer.receive()
            self.asked[type(body).__name__.removesuffix("Request")] += 1
            if isinstance(body, m.MetadataRequest):
                await peer.answer(header, self.metadata())
            elif isinstance(body, m.InitProducerIdRequest):
                answer = m.InitProducerIdResponse(error_code=self.init_error, producer_id=99)
                await peer.answer(header, answer)
            elif not await self.produce(peer, header, body):
                return

    def metadata(self) -> m.MetadataResponse:
        partition = m.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=3)
        topic = m.MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=[partition])
        broker = m.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
        return m.MetadataResponse(brokers=[broker], topics=[topic])

    async def produce(self, peer: Peer, header: RequestHeader, body: m.ProduceRequest) -> bool:
        (topic,) = body.topic_data
        (partition,) = topic.partition_data
        data = bytes(partition.records or b"")
        self.bytes.append(data)
        self.batches += iter_batches(data)
        self.topic_ids.append(topic.topic_id)
        if self.silent:
            return True
        self.before_answer()
        answer = self.script.pop(0) if self.script else m.ProduceResponsePartition(base_offset=50)
        if topic.topic_id not in (self.topic_id, ZERO_UUID):
            answer = ErrorCode.UNKNOWN_TOPIC_ID
        if answer is None:
            return False
        if isinstance(answer, int):
            answer = m.ProduceResponsePartition(error_code=answer)
        answered = m.ProduceResponseTopic(name="t", topic_id=topic.topic_id, partition_responses=[answer])
        await peer.answer(header, m.ProduceResponse(responses=[answered]))
        return True


@contextlib.asynccontextmanager
async def producing(
    setup: Callable[[OneBroker], None] = lambda _: None, **options: Any
) -> AsyncIterator[tuple[AsyncProducer, OneBroker]]:
    broker = OneBroker()
    setup(broker)
    async with scripted_broker(broker.serve) as port:
        broker.port = port
        options = {"linger_ms": 0, "retry_backoff_ms": 2, "reconnect_backoff_ms": 2} | options
        producer = AsyncProducer(bootstrap_servers=f"127.0.0.1:{port}", rng=random.Random(1), **options)
        async with producer:
            yield producer, broker


def numbers(broker: OneBroker) -> list[tuple[int, int, int]]:
    return [(b.producer_id, b.producer_epoch, b.base_sequence) for b in broker.batches]


@pytest.mark.parametrize(
    "trouble",
    [
        None,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
async def test_a_retriable_answer_sends_the_same_bytes_again(trouble: int | None) -> None:
    async with producing(lambda b: b.script.extend([trouble, trouble])) as (producer, broker):
        assert (await producer.send_and_wait("t", b"x")).offset == 50
        assert len(broker.bytes) == 3
        assert len(set(broker.bytes)) == 1
        assert numbers(broker)[0] == (99, 0, 0)


async def test_duplicate_sequence_number_is_success_at_an_unknown_offset() -> None:
    async with producing(lambda b: b.script.append(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)) as (producer, _):
        assert (await producer.send_and_wait("t", b"x")).offset == -1


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
async def test_a_broker_that_lost_the_producer_gets_the_next_epoch(code: int) -> None:
    async with producing() as (producer, broker):
        await producer.send_and_wait("t", b"a")
        broker.script = [code]
        await producer.send_and_wait("t", b"b")
        await producer.send_and_wait("t", b"c")
        assert numbers(broker) == [(99, 0, 0), (99, 0, 1), (99, 1, 0), (99, 1, 1)]
        assert broker.asked["InitProducerId"] == 1


async def test_a_final_error_fails_the_batch_with_what_the_broker_said() -> None:
    refusal = m.ProduceResponsePartition(
        error_code=ErrorCode.INVALID_RECORD,
        error_message="one is bad",
        record_errors=[m.ProduceResponseRecordError(batch_index=0, batch_index_error_message="no key")],
    )
    async with producing(lambda b: b.script.append(refusal)) as (producer, broker):
        with pytest.raises(KafkaError, match="t-0: one is bad; record 0: no key: INVALID_RECORD"):
            await producer.send_and_wait("t", b"x")
        assert (await producer.send_and_wait("t", b"y")).offset == 50
        assert numbers(broker) == [(99, 0, 0), (99, 1, 0)]


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_batch_that_is_too_large_is_sent_in_two(code: int, idempotent: bool) -> None:
    options = {"linger_ms": 60_000, "enable_idempotence": idempotent, "compression_type": "lz4"}
    async with producing(lambda b: b.script.append(code), **options) as (producer, broker):
        futures = [await producer.send("t", b"%d" % n, headers=[("h", b"x")]) for n in range(3)]
        await producer.flush()
        assert [(await future).offset for future in futures] == [50, 51, 50]
        whole, *halves = [decode(data, fetch_offset=0).records("t", 0) for data in broker.bytes]
        assert [[record.value for record in half] for half in halves] == [[b"0", b"1"], [b"2"]]
        assert [(r.timestamp, r.headers) for half in halves for r in half] == [
            (r.timestamp, r.headers) for r in whole
        ]
        if idempotent:
            assert numbers(broker) == [(99, 0, 0), (99, 1, 0), (99, 1, 2)]


async def test_a_record_that_is_too_large_fails_alone() -> None:
    refusals = [ErrorCode.MESSAGE_TOO_LARGE] * 3
    async with producing(lambda b: b.script.extend(refusals), linger_ms=60_000) as (producer, _):
        futures = [await producer.send("t", b"%d" % n) for n in range(4)]
        await producer.flush()
        too_large, *others = [future.exception() for future in futures]
        assert isinstance(too_large, MessageSizeTooLargeError)
        assert others == [None, None, None]


async def test_being_fenced_ends_the_producer() -> None:
    async with producing(lambda b: b.script.append(ErrorCode.INVALID_PRODUCER_EPOCH)) as (producer, broker):
        first = await producer.send("t", b"x")
        with pytest.raises(InvalidProducerEpochError):
            await first
        with pytest.raises(InvalidProducerEpochError):
            await producer.send("t", b"y")
        assert len(broker.batches) == 1


async def test_without_a_producer_id_the_error_names_the_way_out() -> None:
    def refuse(broker: OneBroker) -> None:
        broker.init_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    async with producing(refuse) as (producer, _):
        with pytest.raises(ClusterAuthorizationFailedError, match="enable_idempotence=False"):
            await producer.send_and_wait("t", b"x")


async def test_not_idempotent_asks_for_no_producer_id() -> None:
    async with producing(enable_idempotence=False) as (producer, broker):
        await producer.send_and_wait("t", b"x")
        assert numbers(broker) == [(-1, -1, -1)]
        assert broker.asked["InitProducerId"] == 0


async def test_retries_are_bounded_when_asked_for() -> None:
    trouble = [ErrorCode.NOT_ENOUGH_REPLICAS] * 5
    async with producing(lambda b: b.script.extend(trouble), retries=2) as (producer, broker):
        with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
            await producer.send_and_wait("t", b"x")
        assert len(broker.batches) == 3


async def test_a_broker_that_never_answers_ends_in_the_delivery_timeout() -> None:
    def be_silent(broker: OneBroker) -> None:
        broker.silent = True

    async with producing(be_silent, request_timeout_ms=60, delivery_timeout_ms=200) as (producer, broker):
        with pytest.raises(KafkaTimeoutError, match=r"delivery_timeout_ms .* last error: .*within 60 ms"):
            await producer.send_and_wait("t", b"x")
        assert len(broker.batches) >= 2
        broker.silent = False
        assert (await producer.send_and_wait("t", b"y")).offset == 50
        assert broker.batches[-1].producer_epoch == 1, "the first may be stored: its number is not used again"


class HeldClock:
    """A clock that stands still at ``now_ms``, or goes on by ``step_ms`` each time that it is read."""

    def __init__(self, step_ms: float = 0) -> None:
        self.now_ms, self._step_ms = 1_000.0, step_ms

    def wall_ms(self) -> int:
        return 5

    def mono_ms(self) -> float:
        self.now_ms += self._step_ms
        return self.now_ms

    def sleep(self, ms: float) -> None:
        raise AssertionError("the producer waits on its loop only")


async def test_a_record_is_sent_until_its_send_by_ms_and_not_after_it() -> None:
    held = HeldClock()
    async with producing(clock=held) as (producer, broker):
        assert (await producer.send_and_wait("t", b"x", send_by_ms=held.now_ms)).offset == 50
        with pytest.raises(SendDeadlineError, match=r"1 record\(s\) to t-0 .* \(it was never sent\)"):
            await producer.send_and_wait("t", b"y", send_by_ms=held.now_ms - 1)
        assert len(broker.batches) == 1
        await producer.send_and_wait("t", b"z")
        assert numbers(broker)[-1] == (99, 1, 0), "its number may not be used again"


async def test_records_that_share_a_batch_share_the_earliest_send_by_ms() -> None:
    held = HeldClock()
    async with producing(clock=held, linger_ms=10) as (producer, broker):
        sent = [
            await producer.send("t", b"x", send_by_ms=at) for at in (None, held.now_ms + 5, held.now_ms + 20)
        ]
        held.now_ms += 10
        await producer.flush()
        assert [type(future.exception()) for future in sent] == [SendDeadlineError] * 3
        assert broker.batches == []


async def test_a_record_is_not_sent_again_after_its_send_by_ms() -> None:
    held = HeldClock(step_ms=1)

    def fail_once(broker: OneBroker) -> None:
        broker.script = [ErrorCode.NOT_ENOUGH_REPLICAS]
        broker.before_answer = held_past

    def held_past() -> None:
        held.now_ms += 1_000

    async with producing(fail_once, clock=held) as (producer, broker):
        with pytest.raises(
            SendDeadlineError, match=r"1 attempt\(s\) before may have stored it; last error: .*REPLICAS"
        ):
            await producer.send_and_wait("t", b"x", send_by_ms=held.now_ms + 500)
        assert len(broker.batches) == 1


async def test_a_topic_made_anew_is_found_by_its_new_id() -> None:
    async with producing() as (producer, broker):
        await producer.send_and_wait("t", b"a")
        broker.topic_id = UUID(int=8)
        await producer.send_and_wait("t", b"b")
        # A retry may go out before the metadata is there; then it is refused with the former id once more.
        assert broker.topic_ids[:2] == [UUID(int=7), UUID(int=7)]
        assert broker.topic_ids[-1] == UUID(int=8)
        assert set(broker.topic_ids) == {UUID(int=7), UUID(int=8)}


async def test_an_older_broker_is_told_the_name() -> None:
    def older(broker: OneBroker) -> None:
        broker.versions = {"Produce": (3, 8), "Metadata": (0, 9), "InitProducerId": (0, 2)}

    async with producing(older) as (producer, _):
        assert (await producer.send_and_wait("t", b"a")).offset == 50


async def test_an_answer_that_leaves_the_partition_out_is_a_retry() -> None:
    async with producing(lambda b: b.script.append(m.ProduceResponsePartition(index=5))) as (
        producer,
        broker,
    ):
        assert (await producer.send_and_wait("t", b"a")).offset == 50
        assert len(broker.batches) == 2


async def test_close_gives_up_what_does_not_go_out_in_time() -> None:
    def be_silent(broker: OneBroker) -> None:
        broker.silent = True

    async with producing(be_silent) as (producer, _):
        future = await producer.send("t", b"x")
        with pytest.raises(KafkaTimeoutError, match=r"1 record\(s\)"):
            await producer.flush(0.05)
        await producer.close(0.05)
        with pytest.raises(KafkaError, match="closed before"):
            await future


async def test_a_topic_one_may_not_write_to() -> None:
    async with producing(lambda b: b.script.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)) as (producer, _):
        with pytest.raises(TopicAuthorizationFailedError, match="t-0"):
            await producer.send_and_wait("t", b"x")


async def test_senders_wait_for_room_and_go_on() -> None:
    options: dict[str, Any] = {"buffer_memory": 3_000, "batch_size": 1_000}
    async with producing(**options) as (producer, _):
        futures = [await producer.send("t", bytes(300)) for _ in range(50)]
        assert len(await asyncio.gather(*futures)) == 50


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), asyncio.CancelledError()])
async def test_a_callback_that_raises_stops_nobody(error: BaseException) -> None:
    def fails(_: Any) -> None:
        raise error

    async with producing() as (_, broker):
        producer = await asyncio.to_thread(KafkaProducer, bootstrap_servers=f"127.0.0.1:{broker.port}")
        outcomes: list[Any] = []
        first = await asyncio.to_thread(producer.send, "t", b"a")
        first.add_callback(fails).add_both(outcomes.append)
        await asyncio.to_thread(producer.flush, WAIT_S)
        second = await asyncio.to_thread(producer.send, "t", b"b")
        await asyncio.to_thread(producer.close, WAIT_S)
        assert second.succeeded()
    assert [outcome.offset for outcome in outcomes] == [50]


@pytest.mark.parametrize("broken", ["action_for", "ProducerIdAndEpoch"])
async def test_an_answer_that_cannot_be_handled_fails_the_records_at_once(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(*_: Any) -> NoReturn:
        raise RuntimeError("broken")

    monkeypatch.setattr(sender, broken, fails)
    async with producing(lambda b: b.script.append(ErrorCode.INVALID_RECORD)) as (producer, _):
        sent = await producer.send("t", b"x")
        await asyncio.wait([sent], timeout=WAIT_S)
        assert "RuntimeError('broken')" in str(sent.exception())


async def test_what_fails_again_and_again_is_said_once_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "slackwater.kafka")
    async with producing(lambda b: b.script.extend([None] * 5)) as (producer, _):
        await producer.send_and_wait("t", b"x")
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("sending to t-0")]
    assert len(lines) == 2
    assert lines[1].startswith("sending to t-0 works again, after 5 failures")


# -- interceptors ------------------------------------------------------------------------------------------


class Watches(ProducerInterceptor):
    """Appends to values, and keeps what it is told."""

    def __init__(self, mark: bytes) -> None:
        self.mark = mark
        self.told: list[Any] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=record.value + self.mark)

    def on_acknowledgement(self, metadata: Any, exception: Any) -> None:
        self.told.append((metadata.topic, metadata.offset, type(exception)))

    def close(self) -> None:
        self.told.append("closed")


class Raises:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ValueError("not today")

    def on_acknowledgement(self, metadata: Any, exception: Any) -> None:
        raise SystemExit(1)

    close = on_acknowledgement


class Forgets:
    def on_send(self, record: ProducerRecord) -> None:
        """Returns nothing, which is no record."""


async def test_interceptors_change_records_and_are_told_whatever_the_others_raise() -> None:
    first, second = Watches(b"1"), Watches(b"2")
    chain = [first, Raises(), Forgets(), second]
    async with producing(interceptor_classes=chain) as (producer, broker):
        assert (await producer.send_and_wait("t", b"x")).offset == 50
        broker.script.append(ErrorCode.INVALID_RECORD)
        with pytest.raises(KafkaError):
            await producer.send_and_wait("t", b"x")
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send("t", bytes(2_000_000))
    (value,) = [record.value for record in decode(broker.bytes[0], fetch_offset=0).records("t", 0)]
    assert bytes(value or b"") == b"x12"
    told = [("t", 50, type(None)), ("t", -1, InvalidRecordError), ("t", -1, MessageSizeTooLargeError)]
    assert first.told == second.told == [*told, "closed"]


async def test_a_producer_for_threads_has_interceptors() -> None:
    watches = Watches(b"1")
    async with producing() as (_, broker):
        producer = await asyncio.to_thread(
            KafkaProducer, bootstrap_servers=f"127.0.0.1:{broker.port}", interceptor_classes=[watches]
        )
        await asyncio.to_thread(producer.send, "t", b"x")
        await asyncio.to_thread(producer.close, WAIT_S)
    assert watches.told == [("t", 50, type(None)), "closed"]


class Notes(Serializer):
    """Notes what it sees, and fails at its end."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
        self.seen.append((topic, headers))
        return None if data is None else bytes(data)

    def close(self) -> None:
        self.seen.append("closed")
        raise RuntimeError("not today")


async def test_serializers_see_topic_and_headers_and_are_closed_whatever_the_others_raise() -> None:
    key, value = Notes(), Notes()
    with pytest.raises(RuntimeError, match="not today"):
        async with producing(key_serializer=key, value_serializer=value) as (producer, _):
            await producer.send_and_wait("t", b"x", headers=[("h", b"1")])
    assert key.seen == value.seen == [("t", [("h", b"1")]), "closed"]


# -- metrics -----------------------------------------------------------------------------------------------


async def test_metrics_have_the_names_of_javas_producer() -> None:
    script = [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        m.ProduceResponsePartition(base_offset=50),
        ErrorCode.INVALID_RECORD,
    ]
    async with producing(lambda b: b.script.extend(script)) as (producer, broker):
        await producer.send_and_wait("t", b"x")
        with pytest.raises(KafkaError):
            await producer.send_and_wait("t", b"x")
        figures = producer.metrics()
        raw = producer.metrics(raw=True)
    overall, topic = figures["producer-metrics"], figures["producer-topic-metrics.topic-t"]
    counts = [f"record-{what}-total" for what in ("send", "retry", "error")]
    assert [overall[name] for name in counts] == [topic[name] for name in counts] == [3, 1, 1]
    assert overall["batch-size-avg"] == len(broker.bytes[0])
    assert topic["byte-total"] == sum(map(len, broker.bytes))
    assert overall["records-per-request-avg"] == 1
    assert overall["record-queue-time-avg"] >= 0
    assert overall["request-latency-avg"] > 0
    assert overall["buffer-available-bytes"] == overall["buffer-total-bytes"] == 32 * 1024 * 1024
    assert figures["producer-node-metrics.node-1"]["request-total"] > 0
    (name,) = [name for name in raw if name.name == "batch-size-avg"]
    assert (name.group, name.tags) == ("producer-metrics", {"client-id": "slackwater-producer"})
    assert raw[name].value() == overall["batch-size-avg"]


async def test_metrics_have_the_largest_record_of_a_batch_and_its_compression() -> None:
    """A record's size is the one that max_request_size limits; the ratio leaves the batch's header out."""
    async with producing(linger_ms=60_000, compression_type="gzip") as (producer, broker):
        for size in (10, 1_000, 100):
            await producer.send("t", bytes(size))
        await producer.flush()
        figures = producer.metrics()
    (batch,) = broker.bytes
    body = batch[HEADER_BYTES:]
    overall = figures["producer-metrics"]
    largest = HEADER_BYTES + record_size(None, bytes(1_000), None)
    assert (overall["record-size-max"], overall["record-size-avg"]) == (largest, largest)
    ratio = len(body) / len(gzip.decompress(body))
    topic = figures["producer-topic-metrics.topic-t"]
    assert (overall["compression-rate-avg"], topic["compression-rate"]) == (ratio, ratio)
