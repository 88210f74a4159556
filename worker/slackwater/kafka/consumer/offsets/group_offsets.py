"""A group's offsets at the coordinator: commits, in order for each partition, and committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import (
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    for_code,
)
from slackwater.kafka.net import ByVersion, Cluster
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.requests import Identity, Lane
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.subscription import PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import Request, Response

R = TypeVar("R", bound=Response)
Offsets = Mapping[TopicPartition, OffsetAndMetadata]
_NOBODY = Identity(-1, "", 0)
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
        membership: Membership,
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

    async def _coordinate(self, request: Request[R] | ByVersion[R], deadline_ms: int, cap: int) -> R:
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

    async def _committed(
        self, partitions: Collection[TopicPartition], deadline: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        committed: dict[TopicPartition, OffsetAndMetadata | None] = {}
        failures = 0
        error: KafkaError | None = None
        while missing := [tp for tp in partitions if tp not in committed]:
            last, error = error, None
            try:
                request = self._offset_fetch(missing)
                response = await self._coordinate(request, deadline, o.FETCH_VERSION_CAP)
            except KafkaError as exc:
                if not exc.retriable:
                    raise
                cut_short = self.now_ms() >= deadline
                if cut_short and last is None:
                    raise
                # What the coordinator said before says more than that the deadline cut the last try short.
                error = last if cut_short else exc
            else:
                code, offsets, errors = o.read_offset_fetch(response)
                committed.update(offsets)
                for error_code in [code, *errors.values()]:
                    if error_code:
                        error = self._offset_fetch_error(error_code)
            if error is not None:
                failures += 1
                await self._pause(failures, deadline, error)
        return committed

    def _offset_fetch(self, partitions: list[TopicPartition]) -> ByVersion[m.OffsetFetchResponse]:
        return ByVersion(
            m.OffsetFetchRequest,
            lambda version: o.offset_fetch_request(self.group_id, partitions, version),
        )

    def _offset_fetch_error(self, code: int) -> KafkaError:
        """The error to retry after; raises one that is fatal."""
        error = for_code(code, f"of group {self.group_id!r}", api="OffsetFetch")
        action = action_for(m.OffsetFetchRequest, code)
        if action is Action.FATAL:
            raise error
        if action is Action.FIND_COORDINATOR:
            self._forget_coordinator()
        return error

    # -- commits ---------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, timeout_ms: int) -> None:
        """Stores offsets; errors that may pass are retried until the time is over.

        While the group rebalances, a cooperative member keeps its partitions, so a commit for those is
        repeated in the new generation. Raises :class:`CommitFailedError` when the group has moved on,
        :class:`RebalanceInProgressError`, :class:`FencedInstanceIdError`, :class:`KafkaTimeoutError`.
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
        while offsets := self._order.left(offsets, number):
            self._may_commit(offsets)
            identity = self._identity()
            if identity != begun_as and not self._still_held(offsets, had):
                raise self._commit_failed()
            request = self._commit_request(offsets, identity, number)
            began = self.now_ms()
            try:
                response = await self._coordinate(request, deadline, o.COMMIT_VERSION_CAP)
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
            errors = o.commit_errors(response)
            # Each partition has an outcome of its own: what is stored need not be sent again.
            self._order.stored(offsets.keys() - errors.keys(), number)
            if not errors:
                self.membership.commit_accepted(self.now_ms())
                return
            failures += 1
            await self._mend(offsets, errors, identity, failures, deadline)

    def _identity(self) -> Identity:
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
        self, offsets: Offsets, identity: Identity, number: int
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
                generation=identity.generation,
                member_id=identity.member_id,
                instance_id=instance,
            )

        return ByVersion(m.OffsetCommitRequest, make)

    async def _mend(
        self,
        offsets: Offsets,
        errors: dict[TopicPartition, int],
        identity: Identity,
        failures: int,
        deadline: int,
    ) -> None:
        """Returns when the commit should be repeated; raises when it should not."""
        code = next(iter(errors.values()))
        action = action_for(m.OffsetCommitRequest, code)
        refused = ", ".join(str(tp) for tp, refusal in sorted(errors.items()) if refusal == code)
        error = for_code(code, f"of {refused} in group {self.group_id!r}", api="OffsetCommit")
        member = self.membership
        if action in (Action.RETRY, Action.FIND_COORDINATOR, Action.REFRESH_METADATA):
            if action is Action.FIND_COORDINATOR:
                self._forget_coordinator()
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
                member.commit_refused_by_rebalance(self.now_ms())
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

    async def _next_generation(self, identity: Identity, deadline: int, error: KafkaError) -> None:
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
