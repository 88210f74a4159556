"""A group's offsets at the coordinator: commits, in order for each partition, and committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar
from uuid import UUID

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import (
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    TopicRecreatedError,
    for_code,
)
from slackwater.kafka.net import ByVersion, Cluster
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.consumer_membership.member import ConsumerMembership
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.requests import Lane, MemberIdentity
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.subscription import PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.primitives import ZERO_UUID
from slackwater.kafka.wire.schema import Request, Response

R = TypeVar("R", bound=Response)
Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Committed = Mapping[TopicPartition, tuple[OffsetAndMetadata | None, UUID]]
"""What is committed, and the id of the topic for which it is; zero: it was asked for by name."""
_NOBODY = MemberIdentity(-1, "", 0)
"""Who a commit outside of group management speaks for."""


class _OutOfTimeError(KafkaError):
    """No time is left for another try; the cause is what the last one met."""


class _MovedOnError(Exception):
    """The member has joined again since the request was made, so the request must not be sent."""


class GroupOffsets:
    """Commits and looks up offsets with the group's coordinator, on the client's loop.

    ``touch``: has the membership polled. ``changed``: a future that is done when the membership has moved.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: Subscription,
        membership: Membership | ConsumerMembership,
        backoff: Backoff,
        *,
        now_ms: Callable[[], int],
        touch: Callable[[], None],
        changed: Callable[[], asyncio.Future[None]],
    ) -> None:
        self.group_id = membership.config.group_id
        self.membership, self.now_ms, self._touch, self._changed = membership, now_ms, touch, changed
        self._cluster, self._config, self._subscription = cluster, config, subscription
        self._backoff = backoff
        self._order = CommitOrder()

    # -- asking the coordinator ------------------------------------------------------------------

    async def _coordinate(self, request: Request[R] | ByVersion[R], deadline_ms: int, cap: int | None) -> R:
        """Sends to the coordinator once, within the deadline; a lost connection forgets the coordinator."""
        left = deadline_ms - self.now_ms()
        if left <= 0:
            raise KafkaTimeoutError("the coordinator did not answer")
        node = await self._cluster.coordinator(self.group_id, left)
        timeout_ms = max(1, min(self._config.request_timeout_ms, deadline_ms - self.now_ms()))
        try:
            response = await self._cluster.send(node, request, timeout_ms=timeout_ms, version_cap=cap)
        except KafkaError as exc:
            if exc.retriable:
                self._forget_coordinator()
            raise
        # The connection itself holds back what comes next (KIP-219); heartbeats wait for their turn, too.
        api = request.api if isinstance(request, ByVersion) else type(request)
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        self.membership.on_throttle(api, throttle_ms, Lane.COORDINATOR, self.now_ms())
        return response

    def _forget_coordinator(self) -> None:
        self._cluster.forget_coordinator(self.group_id)
        self.membership.coordinator_forgotten()

    async def _pause(self, failures: int, deadline_ms: int, why: KafkaError) -> None:
        """Waits before the next try. Raises :class:`_OutOfTimeError` when no time is left for one."""
        delay = self._backoff.delay_ms(failures)
        if self.now_ms() + delay < deadline_ms:
            await asyncio.sleep(delay / 1000)
            # A busy process sleeps longer than it asked for.
            if self.now_ms() < deadline_ms:
                return
        raise _OutOfTimeError from why

    async def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets; ``None`` where there is none. Raises what is not retriable, or
        :class:`KafkaTimeoutError`."""
        committed = await self.committed_by_topic(partitions, timeout_ms)
        return {tp: at for tp, (at, _) in committed.items()}

    async def committed_by_topic(self, partitions: Collection[TopicPartition], timeout_ms: int) -> Committed:
        """As :meth:`committed`, with the topics' ids. What is committed for a deleted topic is not given for
        another one of its name, if the broker takes ids (OffsetFetch v10, Kafka 4.1)."""
        async with self._within("committed offsets", timeout_ms) as deadline_ms:
            return await self._committed(partitions, deadline_ms)

    @asynccontextmanager
    async def _within(self, what: str, timeout_ms: int) -> AsyncIterator[int]:
        """Bounds a call, and gives its deadline. The timeout that it raises names ``timeout_ms``."""
        deadline_ms = self.now_ms() + timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                yield deadline_ms
        except KafkaError as exc:
            why = exc.__cause__ if isinstance(exc, _OutOfTimeError) else exc
            late = isinstance(exc, KafkaTimeoutError) and self.now_ms() >= deadline_ms
            if not late and why is exc:
                raise
            raise self._timeout(what, timeout_ms, str(why)) from exc
        except TimeoutError:
            raise self._timeout(what, timeout_ms, "the coordinator does not answer") from None

    def _timeout(self, what: str, timeout_ms: int, why: str) -> KafkaTimeoutError:
        return KafkaTimeoutError(f"group {self.group_id!r}: no {what} within {timeout_ms} ms: {why}")

    async def _committed(self, partitions: Collection[TopicPartition], deadline: int) -> Committed:
        committed: dict[TopicPartition, tuple[OffsetAndMetadata | None, UUID]] = {}
        failures = 0
        error: KafkaError | None = None
        while missing := [tp for tp in partitions if tp not in committed]:
            last, error = error, None
            topic_ids = self._current_ids(missing)
            asked, cap = _of_one_kind(missing, topic_ids)
            try:
                request = self._offset_fetch(asked, topic_ids)
                response = await self._coordinate(request, deadline, cap)
            except KafkaError as exc:
                if not exc.retriable:
                    raise
                cut_short = self.now_ms() >= deadline
                if cut_short and last is None:
                    raise
                # What the coordinator said before says more than that the deadline cut the last try short.
                error = last if cut_short else exc
            else:
                group = o.read_offset_fetch(response, topic_ids)
                for tp, at in group.offsets.items():
                    committed[tp] = at, group.topic_ids.get(tp, ZERO_UUID)
                for error_code in dict.fromkeys([group.error_code, *group.errors.values()]):
                    if error_code:
                        error = await self._offset_fetch_error(error_code)
            if error is not None:
                failures += 1
                await self._pause(failures, deadline, error)
        return committed

    def _offset_fetch(
        self, partitions: Collection[TopicPartition], topic_ids: o.TopicIds
    ) -> ByVersion[m.OffsetFetchResponse]:
        return ByVersion(
            m.OffsetFetchRequest,
            lambda version: o.offset_fetch_request(
                self.group_id, partitions, topic_ids, version, self.membership.reader
            ),
        )

    async def _offset_fetch_error(self, code: int) -> KafkaError:
        """The error to retry after; raises one that is fatal."""
        error = for_code(code, f"of group {self.group_id!r}", api="OffsetFetch")
        action = action_for(m.OffsetFetchRequest, code)
        if action is Action.FATAL:
            raise error
        await self._prepare(action)
        return error

    async def _prepare(self, action: Action) -> None:
        """Does what is to be done before the same is asked again."""
        if action is Action.FIND_COORDINATOR:
            self._forget_coordinator()
        elif action is Action.REFRESH_METADATA:
            try:
                await self._cluster.refresh()
            except KafkaError as exc:
                if not exc.retriable:
                    raise
        elif action is Action.LEARN_EPOCH:
            self.membership.beat_at_once(self.now_ms())
            self._touch()

    # -- topics' ids -----------------------------------------------------------------------------

    def _current_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
        """Of the topics that have the names now. Only what is read has its metadata kept up to date."""
        metadata, read = self._cluster.metadata, self._subscription.topics
        known = {tp: metadata.topic_id(tp.topic) for tp in partitions if tp.topic in read}
        return {tp: topic_id for tp, topic_id in known.items() if topic_id != ZERO_UUID}

    def _ids_of(self, offsets: Offsets) -> o.TopicIds:
        """Of the topics that the offsets were reached in, as far as they are known."""
        reached = {tp: self._subscription.topic_id(tp, at.offset) for tp, at in offsets.items()}
        known = {tp: topic_id for tp, topic_id in reached.items() if topic_id != ZERO_UUID}
        return self._current_ids(offsets) | known

    def _of_current_topics(self, offsets: Offsets, topic_ids: o.TopicIds) -> Offsets:
        """Without those of a topic whose name another one has now, as far as this client knows."""
        metadata = self._cluster.metadata
        return {
            tp: at
            for tp, at in offsets.items()
            if (now := metadata.topic_id(tp.topic)) == ZERO_UUID or topic_ids.get(tp, now) == now
        }

    def _recreated(self, offsets: Offsets) -> TopicRecreatedError:
        """The error of offsets that belong to a topic whose name another one has now."""
        error = TopicRecreatedError(
            {tp: at.offset for tp, at in offsets.items()}, dict.fromkeys(offsets, OffsetAndMetadata(0))
        )
        places = ", ".join(f"offset {at.offset} of {tp}" for tp, at in sorted(offsets.items()))
        error.args = (
            f"group {self.group_id!r}: not committed: {places}: the topic was deleted and created again "
            "after it was read. poll() goes to the beginning of the new topic, or, with "
            'auto_offset_reset="none" or lost_position="nearest", raises until seek()',
        )
        return error

    # -- commits ---------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, timeout_ms: int) -> None:
        """Stores offsets; errors that may pass are retried until the time is over.

        While the group rebalances, a cooperative member keeps its partitions, so a commit for those is
        repeated in the new generation. Raises :class:`CommitFailedError` when the group has moved on,
        :class:`RebalanceInProgressError`, :class:`FencedInstanceIdError`, :class:`KafkaTimeoutError`, and
        :class:`TopicRecreatedError` for partitions whose offsets were reached in a topic that another one of
        its name has replaced; the others' are stored.
        """
        number = self._order.begin()
        error: KafkaError | None = KafkaTimeoutError(f"group {self.group_id!r}: the commit was given up")
        try:
            async with self._within("commit", timeout_ms) as deadline_ms:
                await self._commit(offsets, number, deadline_ms)
            error = None
        except KafkaError as exc:
            error = exc
            raise
        finally:
            self._order.end(number, error)

    async def _commit(self, offsets: Offsets, number: int, deadline: int) -> None:
        begun_as, had, failures = self._identity(), self._subscription.partitions, 0
        topic_ids = self._ids_of(offsets)
        while left := self._of_current_topics(self._order.left(offsets, number), topic_ids):
            named, cap = _of_one_kind(left, topic_ids)
            part = {tp: left[tp] for tp in named}
            self._may_commit(part)
            identity = self._identity()
            if identity != begun_as and not self._still_held(part, had):
                raise self._commit_failed()
            request = self._commit_request(part, topic_ids, identity, number)
            began = self.now_ms()
            try:
                response = await self._coordinate(request, deadline, cap)
            except OvertakenError as exc:
                await self._order.follow(exc.number, deadline - self.now_ms())
                continue
            except _MovedOnError:
                continue
            except KafkaError as exc:
                if not exc.retriable or self.now_ms() >= deadline:
                    raise
                failures += 1
                await self._pause(failures, deadline, exc)
                continue
            self.membership.stats.committed(self.now_ms() - began, self.now_ms())
            errors = o.commit_errors(response, topic_ids)
            # Each partition has an outcome of its own: what is stored need not be sent again.
            self._order.stored(part.keys() - errors.keys(), number)
            if not errors:
                self.membership.commit_accepted(self.now_ms())
                continue
            failures += 1
            await self._mend(part, errors, identity, failures, deadline)
        if recreated := self._order.left(offsets, number):
            raise self._recreated(recreated)

    def _identity(self) -> MemberIdentity:
        return self.membership.identity if self._subscription.by_group else _NOBODY

    def _still_held(self, offsets: Offsets, had: Mapping[TopicPartition, PartitionState]) -> bool:
        """Whether a commit may be repeated after another Join: none of its partitions was given up since.

        The broker looks at the member and the generation's number only, so it would take an offset of a
        partition that has another owner by now. ``had``: the assignment when the commit was begun; a
        partition that went and came back has a new state.
        """
        has = self._subscription.partitions
        return all(tp in had and has.get(tp) is had[tp] for tp in offsets)

    def _may_commit(self, offsets: Offsets) -> None:
        member = self.membership
        if not self._subscription.by_group:
            return
        if member.state is State.DEAD and member.error is not None:
            raise member.error
        if not member.in_group:
            raise self._commit_failed()
        if lost := member.lost & offsets.keys():
            names = ", ".join(map(str, sorted(lost)))
            raise CommitFailedError(
                f"group {self.group_id!r}: it missed a rebalance, so {names} may have other owners, "
                "whose offsets these would overwrite. The next poll() tells the listener that they are lost."
            )

    def _commit_request(
        self, offsets: Offsets, topic_ids: o.TopicIds, identity: MemberIdentity, number: int
    ) -> ByVersion[m.OffsetCommitResponse]:
        """The request; it is built when it is written, which is when its place among others is known, and
        whether the member is still who it was when it began to look for the coordinator."""
        instance = self._config.group_instance_id if self._subscription.by_group else None

        def make(version: int) -> m.OffsetCommitRequest:
            if self._identity() != identity:
                raise _MovedOnError
            self._order.sending(offsets, number)
            return o.commit_request(
                self.group_id,
                offsets,
                topic_ids,
                version,
                generation=identity.generation,
                member_id=identity.member_id,
                instance_id=instance,
            )

        return ByVersion(m.OffsetCommitRequest, make)

    async def _mend(
        self,
        offsets: Offsets,
        errors: dict[TopicPartition, int],
        identity: MemberIdentity,
        failures: int,
        deadline: int,
    ) -> None:
        """Returns when the commit should be repeated; raises when it should not."""
        code = next(iter(errors.values()))
        action = action_for(m.OffsetCommitRequest, code)
        refused = ", ".join(str(tp) for tp, refusal in sorted(errors.items()) if refusal == code)
        error = for_code(code, f"of {refused} in group {self.group_id!r}", api="OffsetCommit")
        member = self.membership
        if action in (Action.RETRY, Action.FIND_COORDINATOR, Action.REFRESH_METADATA, Action.LEARN_EPOCH):
            await self._prepare(action)
            await self._pause(failures, deadline, error)
            return
        if not self._subscription.by_group:
            raise (
                CommitFailedError(
                    f"group {self.group_id!r} has members, so with assign() nothing can be committed: {error}"
                )
                if action is Action.COMMIT_FAILED
                else error
            )
        kept = member.cooperative and all(tp in self._subscription.partitions for tp in offsets)
        if action in (Action.REJOIN_KEEPING_ID, Action.COMMIT_FAILED) and kept and member.in_group:
            if member.identity != identity:
                return
            if action is Action.REJOIN_KEEPING_ID:
                member.beat_at_once(self.now_ms())
                self._touch()
            if action is Action.REJOIN_KEEPING_ID or member.join_is_under_way:
                in_vain = error if action is Action.REJOIN_KEEPING_ID else self._commit_failed()
                await self._next_generation(identity, deadline, in_vain)
                return
        member.on_commit_error(code, identity, self.now_ms())
        self._touch()
        if action is Action.FENCED:
            raise member.error or error
        if action is Action.REJOIN_KEEPING_ID:
            raise RebalanceInProgressError(
                f"group {self.group_id!r}: call poll() to take part, then commit again"
            )
        if action is Action.COMMIT_FAILED:
            raise self._commit_failed() from error
        raise error

    def _commit_failed(self) -> CommitFailedError:
        """The error of a commit, with the reason why this member is out of the group, if that is known."""
        why = self.membership.diagnostics.why_out
        if not why:
            return CommitFailedError()
        return CommitFailedError(
            f"group {self.group_id!r}: the offsets were not committed: {why}. Records since the last commit "
            "will be delivered again to the partitions' owner; this member takes part again at the next "
            "poll()."
        )

    async def _next_generation(self, identity: MemberIdentity, deadline: int, error: KafkaError) -> None:
        """Waits until this member has synced, is out of the group, or the time is over."""
        member = self.membership
        waits = (State.JOINING, State.SYNCING, State.PREPARING, State.STABLE)
        member_was = member.state
        # A heartbeat detects the rebalance; do not wait for it longer than a back-off.
        settled_at = self.now_ms() + self._config.retry_backoff_max_ms
        while member.in_group and member.state in waits:
            now = self.now_ms()
            if member.state is State.STABLE and (
                member.identity != identity or member_was is not State.STABLE or now >= settled_at
            ):
                return
            left = deadline - now
            if left <= 0:
                raise error
            limit = min(left, settled_at - now) if member.state is State.STABLE else left
            try:
                async with asyncio.timeout(limit / 1000):
                    await asyncio.shield(self._changed())
            except TimeoutError:
                if member.state is State.STABLE:
                    return


def _of_one_kind(
    partitions: Collection[TopicPartition], topic_ids: o.TopicIds
) -> tuple[Collection[TopicPartition], int | None]:
    """What one request can name, and up to which version: all by id, or else by name."""
    named = [tp for tp in partitions if tp in topic_ids]
    return (named, None) if named else (partitions, o.LAST_BY_NAME)


class OvertakenError(Exception):
    """A later commit (``number``) of a partition was sent before this one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class CommitOrder:
    """Keeps commits of a partition in order while several are under way and each may be repeated.

    An answer can get lost after the broker has stored the offset. So it is not always known whether a later
    commit was stored, and an earlier one that is repeated after it could set the offset back: therefore a
    commit is never sent after a later one of the same partition.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._sent: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        self._under_way: dict[int, asyncio.Future[KafkaError | None]] = {}

    def begin(self) -> int:
        """The number of a new commit."""
        number = next(self._numbers)
        self._under_way[number] = asyncio.get_running_loop().create_future()
        return number

    def end(self, number: int, error: KafkaError | None) -> None:
        """A commit is over: stored (``None``), or failed."""
        self._under_way.pop(number).set_result(error)

    def sending(self, partitions: Iterable[TopicPartition], number: int) -> None:
        """To be called when a commit is written. Raises :class:`OvertakenError`: then it must not be."""
        partitions = list(partitions)
        latest = max(self._sent.get(tp, -1) for tp in partitions)
        if latest > number:
            raise OvertakenError(latest)
        self._sent.update(dict.fromkeys(partitions, number))

    def stored(self, partitions: Iterable[TopicPartition], number: int) -> None:
        """A commit was accepted."""
        self._stored.update(dict.fromkeys(partitions, number))

    def left(self, offsets: Offsets, number: int) -> Offsets:
        """Without the partitions of which a later commit was stored: those are done."""
        return {tp: at for tp, at in offsets.items() if self._stored.get(tp, -1) < number}

    async def follow(self, later: int, timeout_ms: int) -> None:
        """Waits for the outcome of a later commit: where that one fails, so has the earlier one.

        Raises what it failed with, or :class:`KafkaTimeoutError`.
        """
        outcome = self._under_way.get(later)
        error: KafkaError | None = KafkaTimeoutError(
            "a later commit of the same partitions was not answered; whether it is stored is not known"
        )
        if outcome is not None:
            await asyncio.wait([outcome], timeout=max(timeout_ms, 0) / 1000)
            error = outcome.result() if outcome.done() else error
        if error is not None:
            raise error
