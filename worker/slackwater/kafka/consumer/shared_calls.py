"""The non-blocking calls that both consumer classes share."""

from __future__ import annotations

import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal, TypeVar, overload
from uuid import UUID

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.core import ConsumerCore
from slackwater.kafka.consumer.interceptors import ConsumerInterceptors
from slackwater.kafka.consumer.iteration import RecordIterator, Records, Stuck, all_records
from slackwater.kafka.consumer.listener import callback_for, check_listener
from slackwater.kafka.consumer.lookups import api_timeout_ms
from slackwater.kafka.consumer.offsets.committer import CommitFuture, CommitQueue, Offsets, check_offsets
from slackwater.kafka.errors import IllegalStateError
from slackwater.kafka.metrics.raw import KafkaMetric, MetricName
from slackwater.kafka.net.security.connect import kept_by_client
from slackwater.kafka.net.threads import MADE_BEFORE_FORK, tell_of_fork
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST, FetchState
from slackwater.kafka.records import RecordColumns
from slackwater.kafka.serializers import closing
from slackwater.kafka.structs import (
    ConsumerGroupMetadata,
    MembershipSnapshot,
    MemberState,
    OffsetAndMetadata,
    SkippedRecords,
    SubscriptionPattern,
    TopicPartition,
    check_partitions,
)
from slackwater.kafka.wire.primitives import ZERO_UUID

T = TypeVar("T")

INTERRUPTED_S = 1.0
"""How long ``close()`` goes on trying to leave the group once it is interrupted."""


class ConsumerBase(ABC):
    """The non-blocking calls of :class:`KafkaConsumer` and :class:`AsyncConsumer`."""

    config: ConsumerConfig

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config.loaded()
        self._opened: ConsumerCore | None = None
        self._of_parent: ConsumerCore | None = None
        """The core, in a process that was forked afterwards."""
        self._listener: Any = None
        self._iterator = RecordIterator()
        self._stuck = Stuck()
        self._commits = CommitQueue()
        self._interceptors = ConsumerInterceptors(self.config.interceptor_classes, self.config)

    @property
    def _core(self) -> ConsumerCore:
        if self._opened is None:
            raise IllegalStateError("call start() first" if self._of_parent is None else MADE_BEFORE_FORK)
        return self._opened

    def forked(self) -> None:
        """Called in a process that was forked: every call raises; closing does nothing."""
        self._opened, self._of_parent = None, self._opened

    def _new_core(self, on_news: Callable[[], None]) -> ConsumerCore:
        """A core on the running loop, without what is the application's and may refer to this client."""
        config = replace(
            self.config,
            security=kept_by_client(self.config.security),
            key_deserializer=None,
            value_deserializer=None,
            interceptor_classes=(),
            default_offset_commit_callback=None,
        )
        return ConsumerCore(config, on_news)

    @abstractmethod
    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function on the client's loop."""

    @abstractmethod
    def _nudge(self) -> None:
        """Has a waiting ``poll()`` look again."""

    def _attach(self, core: ConsumerCore) -> None:
        self._opened = core
        tell_of_fork(self)
        if self._interceptors:
            # Not a strong one: the client's loop would keep a consumer that is dropped without close().
            tell = weakref.WeakMethod(self._was_committed)

            def was_committed(offsets: Offsets) -> None:
                if (method := tell()) is not None:
                    method(offsets)

            core.committer.on_committed = was_committed

    def _was_committed(self, offsets: Offsets) -> None:
        self._commits.tell(lambda: self._interceptors.on_commit(offsets))
        self._nudge()

    def _closing_extensions(self) -> ExitStack:
        return closing(self.config.value_deserializer, self.config.key_deserializer, self._interceptors)

    def _timeout(self, timeout_ms: float | None) -> int:
        return api_timeout_ms(self.config, timeout_ms)

    # -- what to read ----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | re.Pattern[str] | SubscriptionPattern | None = None,
        listener: Any = None,
    ) -> None:
        """Reads these topics, or those that ``pattern`` matches from their names' beginning; a
        :class:`SubscriptionPattern` is matched by the broker, by the consumer protocol.

        With a ``group_id`` as a member of the group, and joining starts at once; without one, all
        partitions of the topics (as kafka-python does; Java refuses that). ``listener``: a
        :class:`ConsumerRebalanceListener`. Replaces what was subscribed to before. Raises
        :class:`IllegalStateError` after :meth:`assign`, or when a pattern replaces topics or the other way
        round, ValueError for neither or both.
        """
        names = [topics] if isinstance(topics, str) else list(topics or ())
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe() takes either topics or a pattern; unsubscribe() reads nothing")
        check_listener(listener)
        self._give_back()
        self._call(self._core.subscribe, names, pattern)
        self._listener = listener

    async def _standby(
        self,
        topics: Iterable[str],
        pattern: str | re.Pattern[str] | None,
        listener: Any,
        timeout_ms: float | None,
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics or ())
        if bool(names) == (pattern is not None):
            raise ValueError("stand_by() takes either topics or a pattern")
        check_listener(listener)
        self._iterator.clear()
        await self._core.stand_by(names, pattern, self._timeout(timeout_ms))
        self._listener = listener

    def prefetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Only in standby: fetches these partitions ahead from these offsets, as far as the limits of what
        waits here allow, and hands them over to nobody. Returns at once.

        All of them at a time: what is not named is dropped. Called again with higher offsets it drops what
        lies below them, and keeps the rest. Partitions of topics that are not stood by for are passed over. A
        partition that cannot be fetched (from there) is left out until the next call. Raises
        :class:`IllegalStateError` outside of a standby; TypeError, ValueError for what are no offsets.
        """
        wanted = {tp: at.offset for tp, at in check_offsets(offsets, "fetch").items()}
        self._call(self._core.prefetch, wanted)

    def replace_member(self, member_id: str, epoch: int | None) -> None:
        """The next join, by :meth:`subscribe` or :meth:`take_over`, is in the place of the process that is
        the member with this ``group_instance_id`` now, alive or dead: it is fenced.

        ``member_id``: its id, and ``epoch``: the group's, as ``describe_groups()`` of an admin client shows
        them. By the consumer protocol (KIP-848) the broker refuses to let a second process join
        (UNRELEASED_INSTANCE_ID) while the first one's session lives; by the classic protocol it does not, and
        this call changes nothing. Raises :class:`IllegalStateError` without a ``group_instance_id``.
        """
        self._call(self._core.replace_member, member_id, epoch)

    def take_over(self, offsets: Offsets, generation: int | None = None) -> None:
        """Ends the standby: joins the group under the ``group_instance_id``. Returns at once; the following
        polls bring the rest. After this it is an ordinary consumer that is subscribed.

        By the classic protocol the broker fences whoever was that member (KIP-345); by the consumer protocol
        where :meth:`replace_member` has named it.

        A partition that is then assigned, and is in ``offsets``, starts there, with what was prefetched from
        there on, and asks nobody. ``offsets`` may be empty, and must be final: where the member that is taken
        over has stopped. They hold for the first assignment, if it is of this ``generation``; without one, if
        the join was no rebalance. Otherwise another member may have read on from there, and the committed
        offsets are asked for as always, as for partitions that are not named. Raises
        :class:`IllegalStateError` outside of a standby; TypeError, ValueError for what are no offsets.
        """
        self._call(self._core.take_over, check_offsets(offsets, "start from"), generation)

    def subscription(self) -> set[str] | None:
        """The topics subscribed to (by now, with a pattern), or ``None``."""
        subscription = self._core.subscription
        return set(subscription.topics) if subscription.by_group else None

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer has."""
        return set(self._core.subscription.partitions)

    def _assign(self, partitions: Collection[TopicPartition]) -> None:
        self._give_back()
        self._call(self._core.assign, partitions)

    def _final_call(self) -> Callable[[], Any] | None:
        notice = self._core.final_notice()
        return None if notice is None else callback_for(self._listener, notice)

    # -- positions -------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Reads on from ``offset``; an :class:`OffsetAndMetadata` may bring the leader epoch.

        Raises :class:`PartitionNotAssignedError`, ValueError for what is no offset.
        """
        (tp,) = check_partitions([partition])
        try:
            place = check_offsets({tp: offset}, "seek")[tp]
        except TypeError as exc:
            raise ValueError(f"{offset!r} is no offset to seek: {exc}") from None
        self._iterator.clear_partition(tp)
        self._call(self._seek, tp, place.offset, place.leader_epoch)

    def _seek(self, tp: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        topic_id = self._core.cluster.metadata.topic_id(tp.topic)
        self._core.subscription.seek(tp, offset, leader_epoch, topic_id)
        self._core.jumped()

    def _give_back(self) -> None:
        """Ends an iteration that was broken off: what it has not given is read again."""
        if self._opened is not None:
            self._iterator.give_back(self._core.subscription, self._go_back)

    def _go_back(self, tp: TopicPartition, offset: int) -> None:
        """Sets the position to a record that was polled and not given."""
        if tp in self._core.subscription.partitions:
            self._call(self._seek, tp, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Reads on from the first record; without partitions: of all. Raises
        :class:`PartitionNotAssignedError` for one that this consumer does not have, or if it has none."""
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Reads on from the next record to come; as :meth:`seek_to_beginning`."""
        self._reset(partitions, LATEST)

    def _reset(self, partitions: Collection[TopicPartition], timestamp: int) -> None:
        self._call(self._core.reset, check_partitions(partitions), timestamp)
        for tp in partitions or self._core.subscription.partitions:
            self._iterator.clear_partition(tp)

    def skipped_records(self) -> list[SkippedRecords]:
        """What was skipped since the last call because the log begins behind it, oldest first: with
        ``lost_position="nearest"`` only. What follows a skip is never polled before the skip is here."""
        queue, skipped = self._core.positions.lost.skipped, []
        while queue:
            skipped.append(queue.popleft())
        return skipped

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of the topic that the position of a partition belongs to (KIP-516): of the one that is read,
        or, before that, of the one that has its name. ``None``: the brokers have none (Metadata below v10),
        or the topic is not known yet. Sends nothing."""
        check_partitions([partition])
        topic_id = self._core.subscription.get(partition).topic_id
        if topic_id == ZERO_UUID:
            topic_id = self._core.cluster.metadata.topic_id(partition.topic)
        return None if topic_id == ZERO_UUID else topic_id

    def cluster_id(self) -> str:
        """The id of the Kafka cluster, as the brokers report it. "" before they have answered, and where they
        report none. Sends nothing."""
        return self._core.cluster.metadata.cluster_id or ""

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as of its last fetch, or ``None`` before the first. Sends nothing."""
        check_partitions([partition])
        return self._core.subscription.get(partition).highwater

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many offsets the position is behind the end that can be read (with ``read_committed``: of
        what is stable), as of the last fetch; ``None`` while one of them is not known, and before the first
        fetch since the assignment: what was prefetched may have ended earlier. Sends nothing."""
        check_partitions([partition])
        state = self._core.subscription.get(partition)
        end = state.last_stable_offset if self.config.read_committed else state.highwater
        if end is None or state.position is None or not state.fetched:
            return None
        return max(0, end - state.position)

    def position_confirmed(self, partition: TopicPartition) -> bool:
        """Whether the position is known and, where it has a leader epoch, confirmed by the leader (KIP-320).
        Sends nothing."""
        check_partitions([partition])
        return self._core.subscription.get(partition).state is FetchState.FETCHING

    def pause(self, *partitions: TopicPartition) -> None:
        """Has :meth:`poll` give nothing of these, until :meth:`resume`. What was fetched is kept; a partition
        that is assigned again is not paused. Raises :class:`PartitionNotAssignedError`."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undoes :meth:`pause`."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: tuple[TopicPartition, ...], paused: bool) -> None:
        assigned = self._core.subscription
        # Who polls often asks for it each time, and a call of the loop costs as much as a poll.
        if any(assigned.get(tp).paused is not paused for tp in check_partitions(partitions)):
            self._call(self._core.pause, partitions, paused)
            self._nudge()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, state in self._core.subscription.partitions.items() if state.paused}

    # -- the group -------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The name under which brokers know this client."""
        return self.config.client_id

    def membership(self) -> MembershipSnapshot:
        """The membership as this member knows it. Sends nothing; from any thread."""
        return self._core.membership()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """What fences this member's commits (KIP-447), and how far it is. Sends nothing; from any thread."""
        snapshot = self._core.membership()
        if snapshot.state == State.STABLE.value:
            state = MemberState.STABLE
        elif snapshot.state in (State.OUT.value, State.DEAD.value):
            state = MemberState.UNJOINED
        else:
            state = MemberState.REBALANCING
        return ConsumerGroupMetadata(
            self.config.group_id,
            snapshot.generation,
            snapshot.member_id,
            self.config.group_instance_id,
            state,
        )

    @overload
    def metrics(self, raw: Literal[False] = False) -> dict[str, dict[str, float]]: ...

    @overload
    def metrics(self, raw: Literal[True]) -> dict[MetricName, KafkaMetric]: ...

    def metrics(self, raw: bool = False) -> dict[str, dict[str, float]] | dict[MetricName, KafkaMetric]:
        """Every sensor as ``{group: {name: value}}`` (kafka-python's shape) under the names of Java's
        consumer; ``consumer.metrics`` documents them and lists those that are left out. Sends nothing; from
        any thread. With ``raw`` as ``{MetricName: KafkaMetric}``, whose ``value()`` is what holds then."""
        if raw:
            return self._core.metrics.raw(self.config.client_id)
        return self._core.metrics.values()

    def enforce_rebalance(self, reason: str | None = None) -> None:
        """Joins the group again, which causes a rebalance (KIP-568); returns at once.

        ``reason`` goes to the broker's log (KIP-800). Raises :class:`IllegalStateError` without a group_id.
        """
        self._call(self._core.enforce_rebalance, reason or "the application asked for it")

    def expect_rebalance(self) -> None:
        """Members are about to join or to leave the group: by the consumer protocol (KIP-848) this one sends
        its heartbeats 200 ms apart for some seconds, in whose answers it hears of it. By the classic protocol
        it does nothing. Raises :class:`IllegalStateError` without a group_id."""
        self._call(self._core.expect_rebalance)

    def bootstrap_connected(self) -> bool:
        """Whether a broker has been found."""
        return bool(self._core.cluster.metadata.brokers)

    # -- commits and polls -----------------------------------------------------------------------

    def commit_async(
        self, offsets: Offsets | None = None, callback: Callable[[Offsets, Any], Any] | None = None
    ) -> CommitFuture:
        """Starts a commit. ``callback(offsets, error or None)`` runs inside ``poll()`` (or ``commit()``,
        ``close()``), in the order of the commits; without one: ``default_offset_commit_callback``."""
        if self.config.group_id is None:
            raise IllegalStateError("commit_async(): this needs a group_id")
        chosen = check_offsets(offsets) if offsets is not None else self._core.committer.consumed()
        commit = CommitFuture(self._call(self._core.committer.begin_commit, chosen), chosen)
        self._commits.add(commit, callback or self.config.default_offset_commit_callback)
        commit.add_both(lambda _: self._nudge())
        return commit

    def _most_records(self, timeout_ms: float, max_records: int | None) -> int:
        """How many records a poll may give. Raises TypeError, ValueError for what cannot be."""
        limit = self.config.max_poll_records if max_records is None else max_records
        if not isinstance(limit, int):
            raise TypeError(f"max_records must be an integer, not {limit!r}")
        if limit < 0:
            raise ValueError(f"max_records must not be negative, but is {limit}")
        if not timeout_ms >= 0:  # nor NaN
            raise ValueError(f"timeout_ms must not be negative, but is {timeout_ms}")
        return limit

    # -- what a poll gave ------------------------------------------------------------------------

    def _to_records(self, columns: dict[TopicPartition, RecordColumns]) -> Records:
        """The rows as records. What failed is raised here if there is nothing else, else by the next poll."""
        records, failures = all_records(columns, self.config, self._go_back)
        if failures:
            self._stuck.at(failures[0], self._core.subscription)
            if not records:
                raise failures[0]
        return self._interceptors.on_consume(records)
