"""Transactions at a broker that answers as a test says: both flows, lost answers, each error's kind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from slackwater.kafka.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    IllegalArgumentError,
    IllegalStateError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    NotEnoughReplicasError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionAbortedError,
)
from slackwater.kafka.producer import AsyncProducer, ProducerConfig
from slackwater.kafka.protocol.actions import TABLE, Action
from slackwater.kafka.records import BatchHeader, iter_batches
from slackwater.kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.wire.scripted import Peer, all_versions, scripted_broker

TP = TopicPartition("t", 0)
OFFSETS = {TP: OffsetAndMetadata(7)}
MEMBER = ConsumerGroupMetadata("g", 3, "m", "i")
FIRST, SECOND = 1, 2
BOTH = pytest.mark.parametrize("flow", [FIRST, SECOND])


class Coordinator:
    """A broker with topic ``t`` that coordinates everything. ``script``: by API what the next requests are
    answered: an error code, or ``None``: hang up after the request was done."""

    def __init__(self, flow: int) -> None:
        self.port, self.flow = 0, flow
        self.epoch = 0
        self.lacks = -1
        """The key of an API that it does not have."""
        self.script: dict[str, list[int | None]] = {}
        self.asked: list[tuple[str, Any, int]] = []
        """API, request and version of all but Metadata and FindCoordinator."""
        self.batches: list[BatchHeader] = []
        self.answers_produce = asyncio.Event()
        """Until it is set, a Produce has no answer."""
        self.answers_produce.set()

    @property
    def apis(self) -> list[str]:
        return [api for api, _, _ in self.asked]

    def requests(self, api: str) -> list[Any]:
        return [body for name, body, _ in self.asked if name == api]

    async def serve(self, peer: Peer) -> None:
        header, _ = await peer.receive()
        versions = all_versions()
        feature = m.ApiVersionsResponseFinalizedFeatureKey(
            name="transaction.version", max_version_level=self.flow, min_version_level=self.flow
        )
        versions.finalized_features = [feature]
        versions.api_keys = [api for api in versions.api_keys if api.api_key != self.lacks]
        await peer.answer(header, versions)
        while True:
            header, body = await peer.receive()
            api = type(body).__name__.removesuffix("Request")
            if api not in ("Metadata", "FindCoordinator"):
                self.asked.append((api, body, header.api_version))
            answers = self.script.get(api)
            code = answers.pop(0) if answers else 0
            answer = self.answer(body, code or 0)
            if code is None:
                return
            if api == "Produce":
                await self.answers_produce.wait()
            await peer.answer(header, answer)

    def answer(self, body: Any, code: int) -> Any:
        if isinstance(body, m.MetadataRequest):
            partition = m.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=3)
            topic = m.MetadataResponseTopic(name="t", topic_id=UUID(int=7), partitions=[partition])
            broker = m.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
            return m.MetadataResponse(brokers=[broker], topics=[topic])
        if isinstance(body, m.FindCoordinatorRequest):
            found = [
                m.FindCoordinatorResponseCoordinator(
                    key=key, node_id=1, host="127.0.0.1", port=self.port, error_code=code
                )
                for key in body.coordinator_keys
            ]
            return m.FindCoordinatorResponse(coordinators=found)
        if isinstance(body, m.InitProducerIdRequest):
            if not code:
                self.epoch = max(self.epoch, body.producer_epoch + 1)
            return m.InitProducerIdResponse(error_code=code, producer_id=9, producer_epoch=self.epoch)
        if isinstance(body, m.ProduceRequest):
            return self.stored(body, code)
        if isinstance(body, m.AddPartitionsToTxnRequest):
            result = m.AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)
            named = m.AddPartitionsToTxnTopicResult(name="t", results_by_partition=[result])
            return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[named])
        if isinstance(body, m.AddOffsetsToTxnRequest):
            return m.AddOffsetsToTxnResponse(error_code=code)
        if isinstance(body, m.TxnOffsetCommitRequest):
            stored = m.TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
            return m.TxnOffsetCommitResponse(
                topics=[m.TxnOffsetCommitResponseTopic(name="t", partitions=[stored])]
            )
        assert isinstance(body, m.EndTxnRequest)
        if self.flow == FIRST or code:
            return m.EndTxnResponse(error_code=code)
        self.epoch = body.producer_epoch + 1
        return m.EndTxnResponse(producer_id=9, producer_epoch=self.epoch)

    def stored(self, body: m.ProduceRequest, code: int) -> m.ProduceResponse:
        (topic,) = body.topic_data
        self.batches += iter_batches(bytes(topic.partition_data[0].records or b""))
        answer = m.ProduceResponsePartition(error_code=code, base_offset=50)
        return m.ProduceResponse(
            responses=[
                m.ProduceResponseTopic(name="t", topic_id=topic.topic_id, partition_responses=[answer])
            ]
        )


@contextlib.asynccontextmanager
async def transactional(
    flow: int = SECOND, *, init: bool = True, lacks: int = -1, **options: Any
) -> AsyncIterator[tuple[AsyncProducer, Coordinator]]:
    broker = Coordinator(flow)
    broker.lacks = lacks
    async with scripted_broker(broker.serve) as port:
        broker.port = port
        options = {"linger_ms": 0, "retry_backoff_ms": 2, "reconnect_backoff_ms": 2} | options
        producer = AsyncProducer(
            bootstrap_servers=f"127.0.0.1:{port}", transactional_id="x", rng=random.Random(1), **options
        )
        async with producer:
            if init:
                await producer.init_transactions()
            broker.asked.clear()
            yield producer, broker


async def transform(producer: AsyncProducer) -> None:
    """A transaction of a record and an offset."""
    async with producer.transaction():
        await producer.send("t", b"x")
        await producer.send_offsets_to_transaction(OFFSETS, MEMBER)


async def fail_inside(producer: AsyncProducer) -> None:
    async with producer.transaction():
        await producer.send_and_wait("t", b"x")
        raise ZeroDivisionError


async def test_the_second_flow_adds_nothing_and_takes_the_next_epoch_from_the_end() -> None:
    async with transactional(SECOND) as (producer, broker):
        for _ in range(2):
            async with producer.transaction():
                await producer.send_and_wait("t", b"x")
                await producer.send_offsets_to_transaction(OFFSETS, MEMBER)
    assert broker.apis == ["Produce", "TxnOffsetCommit", "EndTxn"] * 2
    assert [version for api, _, version in broker.asked if api in ("EndTxn", "TxnOffsetCommit")] == [5] * 4
    assert [(b.producer_epoch, b.base_sequence) for b in broker.batches] == [(0, 0), (1, 0)]
    assert all(b.transactional and b.producer_id == 9 for b in broker.batches)
    assert broker.requests("Produce")[0].transactional_id == "x"


async def test_the_first_flow_adds_and_goes_on_with_its_epoch_and_sequence() -> None:
    async with transactional(FIRST) as (producer, broker):
        for _ in range(2):
            async with producer.transaction():
                await producer.send_and_wait("t", b"x")
                await producer.send_and_wait("t", b"y")
                await producer.send_offsets_to_transaction(OFFSETS, MEMBER)
    once = ["AddPartitionsToTxn", "Produce", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
    assert broker.apis == once * 2
    versions = {api: version for api, _, version in broker.asked}
    assert (versions["Produce"], versions["EndTxn"], versions["TxnOffsetCommit"]) == (11, 4, 4)
    assert [(b.producer_epoch, b.base_sequence) for b in broker.batches] == [(0, 0), (0, 1), (0, 2), (0, 3)]


async def test_offsets_carry_the_member_and_its_generation() -> None:
    async with transactional() as (producer, broker), producer.transaction():
        await producer.send_offsets_to_transaction(OFFSETS, MEMBER)
    (sent,) = broker.requests("TxnOffsetCommit")
    who = (sent.group_id, sent.generation_id_or_member_epoch, sent.member_id, sent.group_instance_id)
    assert who == ("g", 3, "m", "i")
    assert sent.topics[0].partitions[0].committed_offset == 7


async def test_offsets_of_no_member_are_refused() -> None:
    async with transactional() as (producer, broker):
        await producer.begin_transaction()
        with pytest.raises(IllegalArgumentError, match="group_metadata"):
            await producer.send_offsets_to_transaction(OFFSETS, "g")  # type: ignore[arg-type]
        with pytest.raises(AbortableTransactionError, match="not in group 'g'"):
            await producer.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("g"))
        await producer.abort_transaction()
    assert broker.apis == []


@BOTH
async def test_an_empty_transaction_ends_without_a_request(flow: int) -> None:
    async with transactional(flow) as (producer, broker):
        async with producer.transaction():
            pass
        await producer.begin_transaction()
        await producer.abort_transaction()
    assert broker.apis == []


@BOTH
async def test_an_abort_discards_what_waits_and_goes_on_in_a_new_epoch(flow: int) -> None:
    async with transactional(flow, linger_ms=10_000) as (producer, broker):
        await producer.begin_transaction()
        await producer.send("t", b"stored")
        await producer.flush()
        waiting = await producer.send("t", b"waits")
        await producer.abort_transaction()
        assert isinstance(waiting.exception(), TransactionAbortedError)
        async with producer.transaction():
            await producer.send("t", b"next")
    assert [request.committed for request in broker.requests("EndTxn")] == [False, True]
    assert [(b.producer_epoch, b.base_sequence) for b in broker.batches] == [(0, 0), (1, 0)]


async def test_an_abort_waits_for_what_is_in_flight_and_sends_it_no_more() -> None:
    async with transactional() as (producer, broker):
        broker.answers_produce.clear()
        broker.script = {"Produce": [E.NOT_ENOUGH_REPLICAS]}
        await producer.begin_transaction()
        sent = await producer.send("t", b"x")
        while not broker.batches:
            await asyncio.sleep(0)
        aborting = asyncio.create_task(producer.abort_transaction())
        await asyncio.sleep(0)
        assert broker.requests("EndTxn") == []
        broker.answers_produce.set()
        await aborting
        assert isinstance(sent.exception(), NotEnoughReplicasError), "it has waited for the delivery timeout"
    assert broker.apis == ["Produce", "EndTxn"]


async def test_an_error_in_the_block_aborts() -> None:
    async with transactional() as (producer, broker):
        with pytest.raises(ZeroDivisionError):
            await fail_inside(producer)
        await producer.begin_transaction()
    assert [request.committed for request in broker.requests("EndTxn")] == [False]


async def test_close_aborts_an_open_transaction() -> None:
    async with transactional() as (producer, broker):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"x")
        await producer.close()
    assert [request.committed for request in broker.requests("EndTxn")] == [False]


async def test_send_needs_a_transaction_and_says_so() -> None:
    async with transactional(init=False) as (producer, _):
        with pytest.raises(IllegalStateError, match=r"init_transactions\(\) first"):
            await producer.send("t", b"x")
        await producer.init_transactions()
        with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) first"):
            await producer.send("t", b"x")


async def test_calls_without_a_transactional_id_say_what_to_set() -> None:
    broker = Coordinator(SECOND)
    async with scripted_broker(broker.serve) as port:
        broker.port = port
        async with AsyncProducer(bootstrap_servers=f"127.0.0.1:{port}") as producer:
            with pytest.raises(IllegalStateError, match="set transactional_id"):
                await producer.init_transactions()


# -- errors ----------------------------------------------------------------------------------------

_TXN_APIS = (
    m.AddPartitionsToTxnRequest, m.AddOffsetsToTxnRequest, m.TxnOffsetCommitRequest, m.EndTxnRequest,
)  # fmt: skip


def _kinds() -> list[Any]:
    """Each row of the table of actions for the APIs of transactions."""
    return [
        pytest.param(api.__name__.removesuffix("Request"), code, action, id=f"{api.__name__}-{code.name}")
        for api in _TXN_APIS
        for code, action in TABLE[api].items()
    ]


@pytest.mark.parametrize(("api", "code", "action"), _kinds())
async def test_each_error_is_repeated_aborted_or_fatal(api: str, code: E, action: Action) -> None:
    """Retriable ones are not seen; after an abortable one the same producer commits; nothing follows a
    fatal one."""
    async with transactional(FIRST) as (producer, broker):
        broker.script = {api: [code]}
        try:
            await transform(producer)
            raised: KafkaError | None = None
        except KafkaError as exc:
            raised = exc
        if action in (Action.RETRY, Action.FIND_COORDINATOR):
            assert raised is None
            assert broker.apis.count(api) == 2
        elif action is Action.FATAL:
            assert isinstance(raised, FatalTransactionError)
            with pytest.raises(FatalTransactionError):
                await producer.begin_transaction()
            return
        else:
            assert isinstance(raised, AbortableTransactionError)
            assert True not in [r.committed for r in broker.requests("EndTxn")] or api == "EndTxn"
        async with producer.transaction():
            await producer.send_and_wait("t", b"again")
        assert broker.requests("EndTxn")[-1].committed


@pytest.mark.parametrize("code", [E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED])
@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
async def test_a_stale_epoch_is_asked_about_before_it_is_fatal(api: str, code: E) -> None:
    async with transactional() as (producer, broker):
        broker.script = {api: [code], "InitProducerId": [E.PRODUCER_FENCED]}
        with pytest.raises(ProducerFencedError):
            await transform(producer)
        (asked,) = broker.requests("InitProducerId")
        assert (asked.producer_id, asked.producer_epoch) == (9, 0)
        with pytest.raises(ProducerFencedError):
            await producer.begin_transaction()


@pytest.mark.parametrize(
    "code",
    [E.MESSAGE_TOO_LARGE, E.TOPIC_AUTHORIZATION_FAILED, E.OUT_OF_ORDER_SEQUENCE_NUMBER,
     E.UNKNOWN_PRODUCER_ID, E.INVALID_TXN_STATE, E.TRANSACTION_ABORTABLE],
)  # fmt: skip
async def test_a_record_that_fails_fails_its_transaction(code: E) -> None:
    async with transactional() as (producer, broker):
        broker.script = {"Produce": [code]}
        await producer.begin_transaction()
        sent = await producer.send("t", b"x")
        await producer.flush()
        assert isinstance(sent.exception(), KafkaError)
        with pytest.raises(AbortableTransactionError):
            await producer.send("t", b"y")
        with pytest.raises(AbortableTransactionError) as raised:
            await producer.commit_transaction()
        assert raised.value.__cause__ is sent.exception()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"z")
    assert [request.committed for request in broker.requests("EndTxn")] == [False, True]


async def test_waiting_records_fail_with_the_first_one() -> None:
    async with transactional(linger_ms=10_000) as (producer, broker):
        broker.script = {"Produce": [E.TOPIC_AUTHORIZATION_FAILED]}
        await producer.begin_transaction()
        first = await producer.send("t", b"x")
        flushing = await producer.send("t", b"y")
        with pytest.raises(AbortableTransactionError):
            await producer.commit_transaction()
        assert isinstance(first.exception(), TopicAuthorizationFailedError)
        assert flushing.exception() is not None
    assert len(broker.requests("Produce")) == 1


@BOTH
@pytest.mark.parametrize("committed", [True, False])
async def test_a_lost_answer_of_the_end_is_asked_for_again(flow: int, committed: bool) -> None:
    async with transactional(flow) as (producer, broker):
        broker.script = {"EndTxn": [None]}
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"x")
        await (producer.commit_transaction() if committed else producer.abort_transaction())
        first, again = broker.requests("EndTxn")
        assert (first.producer_epoch, first.committed) == (again.producer_epoch, committed)
        async with producer.transaction():
            await producer.send("t", b"y")
    assert len(broker.requests("EndTxn")) == 3


async def test_a_lost_answer_of_init_is_asked_for_again() -> None:
    async with transactional(init=False) as (producer, broker):
        broker.script = {"InitProducerId": [None, E.CONCURRENT_TRANSACTIONS]}
        await producer.init_transactions()
        assert broker.apis == ["InitProducerId"] * 3


async def test_a_commit_that_times_out_is_called_again_and_not_aborted() -> None:
    async with transactional(max_block_ms=1) as (producer, broker):
        broker.script = {"EndTxn": [E.COORDINATOR_LOAD_IN_PROGRESS]}
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"x")
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction()
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\), which has not succeeded"):
            await producer.abort_transaction()
        await producer.commit_transaction()
    assert [request.committed for request in broker.requests("EndTxn")] == [True, True]


async def test_a_timed_out_offset_commit_is_never_committed() -> None:
    async with transactional(max_block_ms=1) as (producer, broker):
        broker.script = {"TxnOffsetCommit": [E.COORDINATOR_LOAD_IN_PROGRESS]}
        await producer.begin_transaction()
        with pytest.raises(AbortableTransactionError):
            await producer.send_offsets_to_transaction(OFFSETS, MEMBER)
        with pytest.raises(AbortableTransactionError):
            await producer.commit_transaction()
        await producer.abort_transaction()
    assert [request.committed for request in broker.requests("EndTxn")] == [False]


async def test_a_large_batch_is_sent_in_two_of_the_same_epoch() -> None:
    async with transactional(linger_ms=10_000) as (producer, broker):
        broker.script = {"Produce": [E.MESSAGE_TOO_LARGE]}
        async with producer.transaction():
            for value in (b"a", b"b"):
                await producer.send("t", value)
    numbers = [(b.producer_epoch, b.base_sequence) for b in broker.batches]
    assert numbers == [(0, 0), (0, 0), (0, 1)]
    assert [request.committed for request in broker.requests("EndTxn")] == [True]


async def test_no_right_to_the_id_is_fatal() -> None:
    async with transactional(init=False) as (producer, broker):
        broker.script = {"InitProducerId": [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]}
        with pytest.raises(FatalTransactionError, match="Write on the TransactionalId"):
            await producer.init_transactions()


async def test_a_broker_without_transactions_is_named() -> None:
    async with transactional(init=False, lacks=m.InitProducerIdRequest.api_key) as (producer, _):
        with pytest.raises(FatalTransactionError, match=r"127\.0\.0\.1:\d+ does not support InitProducerId"):
            await producer.init_transactions()


async def test_an_id_whose_epochs_are_used_up_goes_on_with_the_next() -> None:
    async with transactional() as (producer, broker):
        ends = [(9, 32767), (10, 0)]

        def answer(body: Any, code: int, real: Any = broker.answer) -> Any:
            if not isinstance(body, m.EndTxnRequest):
                return real(body, code)
            producer_id, epoch = ends.pop(0)
            return m.EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)

        broker.answer = answer  # type: ignore[method-assign]
        for _ in range(2):
            async with producer.transaction():
                await producer.send("t", b"x")
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"y")
        ends.append((10, 1))
    assert [(b.producer_id, b.producer_epoch) for b in broker.batches] == [(9, 0), (9, 32767), (10, 0)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks": 1}, "transactions need acks"),
        ({"enable_idempotence": False}, "transactions need acks"),
        ({"transactional_id": ""}, "write a name"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms=0"),
    ],
)
def test_options_that_exclude_transactions(options: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        ProducerConfig.from_keywords({"transactional_id": "x"} | options)
