"""What a transactional producer asks of its coordinators.

The first flow (before KIP-890): AddPartitionsToTxn and AddOffsetsToTxn come before the first batch of a
partition and the first offset; EndTxn leaves the epoch as it is. The second, where the feature
``transaction.version`` is 2 or more: the brokers add what a Produce or TxnOffsetCommit names, and the answer
to EndTxn has the id and epoch of the next transaction, in which sequences begin at 0. There, a request of an
ended transaction that comes late is refused. In the first flow an abort therefore renews the epoch.

Every request here may be repeated after a lost answer: with the same id and epoch, EndTxn of the same kind
and InitProducerId give the answer that was lost.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from slackwater.clock import Clock
from slackwater.kafka.errors import (
    AbortableTransactionError,
    BrokerError,
    IllegalArgumentError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortedError,
    for_code,
)
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.connection import api_name
from slackwater.kafka.producer.accumulator import Accumulator
from slackwater.kafka.producer.batch import NO_IDENTITY, ProducerIdAndEpoch
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.producer.sender import Sender
from slackwater.kafka.producer.transactions.states import (
    TransactionEvent,
    TransactionState,
    TransactionStatus,
)
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.offsets import group_by_topic
from slackwater.kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Response

R = TypeVar("R", bound=Response)

_FEATURE = "transaction.version"
_SECOND_FLOW = 2
_ADD_PARTITIONS = 3
"""The last version of AddPartitionsToTxn for clients."""
_END_FIRST, _END_SECOND = 4, 5
_OFFSETS_FIRST, _OFFSETS_SECOND = 4, 5
"""The last versions of EndTxn and TxnOffsetCommit of each flow; TxnOffsetCommit names topics up to there."""
_END_OF_OTHER_MS = 20
"""How long a transaction's end usually takes, after which the next request may succeed (as in Java)."""


class Transactions:
    """The transactions of one producer. All methods but :meth:`begin` wait for brokers, for ``max_block_ms``
    at most: then they raise :class:`KafkaTimeoutError`, and the same call may be repeated."""

    def __init__(
        self,
        state: TransactionStatus,
        cluster: Cluster,
        accumulator: Accumulator,
        sender: Sender,
        config: ProducerConfig,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        assert config.transactional_id is not None
        self.state = state
        self._id = config.transactional_id
        self._cluster, self._accumulator, self._sender = cluster, accumulator, sender
        self._config, self._clock = config, clock
        self._backoff = Backoff(config.retry_backoff_ms, max(1_000, config.retry_backoff_ms), rng)
        self._identity = NO_IDENTITY
        self._level = 0
        """The level of the feature, at the coordinator that has answered last."""
        self._turn = asyncio.Lock()
        sender.add_partitions = self._add_partitions

    # -- the calls ---------------------------------------------------------------------------------

    async def init(self) -> None:
        """Gets an id and an epoch, which fences earlier producers of the id and ends their transaction."""
        async with self._turn:
            self.state.follow(TransactionEvent.INIT)
            await self._init_producer_id(NO_IDENTITY)
            self.state.adds_partitions = self._level < _SECOND_FLOW
            self.state.follow(TransactionEvent.DONE)

    def begin(self) -> None:
        """Starts a transaction; the cluster learns of it later."""
        self.state.follow(TransactionEvent.BEGIN)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """Makes offsets of a group part of the transaction. After any error it has to be aborted."""
        if not isinstance(group, ConsumerGroupMetadata) or not group.group_id:
            raise IllegalArgumentError(f"group_metadata: pass consumer.group_metadata(), not {group!r}")
        async with self._turn:
            await self._resolve()
            self.state.check(TransactionEvent.OFFSETS)
            try:
                await self._send_offsets(offsets, group)
            except BaseException as exc:
                # Whether they are stored may be unknown; and a broker would commit without them.
                error = exc if isinstance(exc, KafkaError) else KafkaError(f"the call was ended: {exc!r}")
                self._sender.transaction_failed(error)
                if isinstance(exc, KafkaError):
                    await self._resolve()
                    self.state.check(TransactionEvent.OFFSETS)
                raise

    async def commit(self) -> None:
        """Waits for all records, and commits them and the offsets."""
        async with self._turn:
            await self._resolve()
            with self._accumulator.lock:
                self.state.follow(TransactionEvent.COMMIT)
            self._accumulator.incomplete()
            await self._sender.drained()
            await self._resolve()
            self.state.check(TransactionEvent.COMMIT)  # a record may have failed
            if self.state.touched:
                try:
                    await self._end(committed=True)
                except AbortableTransactionError as exc:
                    self._sender.transaction_failed(exc)
                    await self._resolve()
                    raise
            self.state.follow(TransactionEvent.DONE)

    async def abort(self) -> None:
        """Discards records and offsets."""
        async with self._turn:
            with self._accumulator.lock:
                self.state.follow(TransactionEvent.ABORT)
            self._sender.discard(TransactionAbortedError("the transaction of the record was aborted"))
            await self._sender.drained()
            if self.state.touched and not self.state.renew:
                try:
                    await self._end(committed=False)
                    self.state.renew = self.state.adds_partitions
                except AbortableTransactionError:
                    self.state.renew = True  # nothing is open, or the epoch is in doubt
            await self._resolve()
            self.state.follow(TransactionEvent.DONE)

    # -- requests ----------------------------------------------------------------------------------

    async def _init_producer_id(self, own: ProducerIdAndEpoch) -> None:
        request = m.InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
            producer_id=own.producer_id,
            producer_epoch=own.epoch,
        )
        answer = await self._ask(request)
        self._adopt(answer.producer_id, answer.producer_epoch)
        self.state.renew = False

    async def _resolve(self) -> None:
        """Renews the epoch if need be. That also says whether another producer has taken over: raises
        :class:`ProducerFencedError` then."""
        if self.state.renew and self.state.state is not TransactionState.FATAL:
            await self._sender.drained()
            await self._init_producer_id(self._identity)

    def _adopt(self, producer_id: int, epoch: int) -> None:
        """Goes on with an id and epoch, which are of no transaction yet."""
        self._identity = ProducerIdAndEpoch(producer_id, epoch)
        self._sender.identify(self._identity)
        self.state.ended()

    async def _end(self, *, committed: bool) -> None:
        first = self.state.adds_partitions
        request = m.EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=committed,
        )
        answer = await self._ask(request, cap=_END_FIRST if first else _END_SECOND)
        if answer.producer_id >= 0:
            self._adopt(answer.producer_id, answer.producer_epoch)
        self.state.ended()

    async def _add_partitions(self) -> None:
        """Tells the coordinator of the partitions that batches wait for. Run by the sender."""
        wanted = sorted(self.state.wanted)
        self.state.touched = True
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnTopic(name=topic, partitions=[tp.partition for tp in tps])
                for topic, tps in itertools.groupby(wanted, lambda tp: tp.topic)
            ],
        )
        try:
            await self._ask(request, cap=_ADD_PARTITIONS)
        except KafkaError as exc:
            self._sender.transaction_failed(exc)
        else:
            self.state.partitions.update(wanted)
            self.state.wanted.difference_update(wanted)

    async def _send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        if not offsets:
            return
        assert group.group_id
        if not group.member_id or group.generation_id < 0:
            raise AbortableTransactionError(
                f"the consumer is not in group {group.group_id!r} at present, so nothing would fence its "
                "offsets: abort the transaction, and poll() to join (assign() does not join)"
            )
        self.state.touched = True
        first = self.state.adds_partitions
        producer_id, epoch = self._identity
        if first:
            adding = m.AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=group.group_id,
            )
            await self._ask(adding)
        request = m.TxnOffsetCommitRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group.group_id,
            generation_id_or_member_epoch=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[
                m.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        m.TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=(at := offsets[TopicPartition(topic, number)]).offset,
                            committed_leader_epoch=at.leader_epoch,
                            committed_metadata=at.metadata,
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in group_by_topic(offsets)
            ],
        )
        await self._ask(request, group=group.group_id, cap=_OFFSETS_FIRST if first else _OFFSETS_SECOND)

    async def _ask(self, request: Request[R], *, group: str | None = None, cap: int | None = None) -> R:
        """Asks the coordinator of the transactional id, or of a group, until it has done what was asked.

        Raises :class:`KafkaTimeoutError`, :class:`AbortableTransactionError` (``renew`` says whether the
        epoch is in doubt), and :class:`FatalTransactionError`, after which the state is FATAL.
        """
        api = type(request)
        deadline = self._clock.mono_ms() + self._config.max_block_ms
        for failures in itertools.count(1):
            error: KafkaError | None
            try:
                limit_ms = max(1, int(deadline - self._clock.mono_ms()))
                answer = await self._ask_once(request, group, cap, limit_ms)
                error = _worst(api, answer, self._id if group is None else group)
                if error is None:
                    return answer
            except KafkaError as exc:
                error = exc
            assert error is not None
            action = _action(api, error)
            if action not in (Action.RETRY, Action.FIND_COORDINATOR):
                raise self._refused(error, action) from error
            if action is Action.FIND_COORDINATOR and group is not None:
                self._cluster.forget_coordinator(group)
            elif action is Action.FIND_COORDINATOR:
                self._cluster.transaction_coordinators.forget(self._id)
            delay = self._backoff.delay_ms(failures)
            if getattr(error, "code", None) == ErrorCode.CONCURRENT_TRANSACTIONS:
                delay = min(delay, _END_OF_OTHER_MS)
            if api is m.AddPartitionsToTxnRequest and not self.state.sending:
                raise error
            if self._clock.mono_ms() + delay > deadline:
                what = f"{api_name(api)} of {self._id!r}"
                raise KafkaTimeoutError(
                    f"{what} did not succeed within max_block_ms ({self._config.max_block_ms} ms): {error}"
                ) from error
            await asyncio.sleep(delay / 1000)
        raise AssertionError("unreachable")

    async def _ask_once(self, request: Request[R], group: str | None, cap: int | None, limit_ms: int) -> R:
        if group is not None:
            node_id = await self._cluster.coordinator(group, limit_ms)
        else:
            node_id = await self._cluster.transaction_coordinators.wait_for(self._id, limit_ms)
        connection = await self._cluster.connection(node_id)
        answer = await connection.request(request, version_cap=cap)
        self._level = connection.features.get(_FEATURE, 0)
        return answer

    def _refused(self, error: KafkaError, action: Action) -> KafkaError:
        if action is Action.ABORT or action is Action.ASK_EPOCH:
            code = getattr(error, "code", None)
            self.state.renew |= action is Action.ASK_EPOCH or code == ErrorCode.INVALID_TXN_STATE
            return AbortableTransactionError(f"the transaction has to be aborted: {error}")
        if getattr(error, "code", None) == ErrorCode.INVALID_PRODUCER_EPOCH:
            error = for_code(ErrorCode.PRODUCER_FENCED, str(error))
        fatal = self.state.die(error)
        self._sender.fail_all(fatal)
        return fatal


def _worst(api: type[Request[Any]], answer: Any, about: str) -> BrokerError | None:
    """The error of an answer: of several the one that cannot be repeated."""
    worst: BrokerError | None = None
    for code, where in _codes(answer):
        if code:
            error = for_code(code, f"of {where or repr(about)}", api=api_name(api))
            if worst is None or _action(api, error) not in (Action.RETRY, Action.FIND_COORDINATOR):
                worst = error
    return worst


def _codes(answer: Any) -> Iterable[tuple[int, str]]:
    if isinstance(answer, m.AddPartitionsToTxnResponse):
        for topic in answer.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                yield result.partition_error_code, f"{topic.name}-{result.partition_index}"
    elif isinstance(answer, m.TxnOffsetCommitResponse):
        for committed in answer.topics:
            for partition in committed.partitions:
                yield partition.error_code, f"{committed.name}-{partition.partition_index}"
    else:
        yield answer.error_code, ""


def _action(api: type[Request[Any]], error: KafkaError) -> Action:
    if isinstance(error, BrokerError):
        return action_for(api, error.code)
    return Action.FIND_COORDINATOR if error.retriable else Action.FATAL
