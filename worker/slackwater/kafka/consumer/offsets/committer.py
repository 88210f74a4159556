"""The commits of a consumer: those that are waited for, those that are not, and auto-commit."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Mapping

from slackwater.kafka.consumer.background import BackgroundTasks
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.coordinator import Group
from slackwater.kafka.consumer.standby.standby import refuse_in_standby
from slackwater.kafka.errors import IllegalStateError, KafkaError
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
NO_GROUP = "this needs a group_id"


class Committer:
    """Commits what the application has consumed. All is called on the loop, unless it says otherwise."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        group: Group | None,
        background: BackgroundTasks,
    ) -> None:
        self._config, self._subscription, self._group = config, subscription, group
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._next_auto_commit = self._loop.time() + config.auto_commit_interval_ms / 1000
        self.on_committed: Callable[[Offsets], None] | None = None
        """Called on the loop with offsets that were stored, by whichever kind of commit."""

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit without offsets stores: the positions."""
        return {tp: OffsetAndMetadata(o, "", e) for tp, (o, e) in self._subscription.consumed().items()}

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, timeout_ms: int
    ) -> None:
        """See :meth:`Group.commit`."""
        if self._group is None:
            raise IllegalStateError(f"commit(): {NO_GROUP}")
        refuse_in_standby(self._subscription, "commit()")
        chosen = self.consumed() if offsets is None else offsets
        await self._group.commit(self._with_epochs(chosen), timeout_ms)
        if self.on_committed is not None and chosen:
            self.on_committed(chosen)

    def _with_epochs(self, offsets: Offsets) -> Offsets:
        """The offsets, each with the leader epoch of the record before it, if only that is known.

        By it, the next owner of the partition finds out whether the log was cut off meanwhile.
        """
        epoch_before = self._subscription.epoch_before
        return {
            tp: at._replace(leader_epoch=epoch_before(tp, at.offset)) if at.leader_epoch < 0 else at
            for tp, at in offsets.items()
        }

    def begin_commit(self, offsets: Offsets) -> concurrent.futures.Future[None]:
        """Starts a commit, in the order of the calls, and gives its outcome: cancelled, if the consumer is
        closed before that is known."""
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

        def done(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                outcome.cancel()
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        work = self.commit(offsets, self._config.default_api_timeout_ms)
        self._background.start(work, "asynchronous commit").add_done_callback(done)
        return outcome

    async def commit_quietly(self, timeout_ms: int) -> None:
        """The commit of auto-commit before partitions go: a failure is logged, not raised."""
        offsets = self.consumed()
        if not offsets or self._group is None:
            return
        if self._subscription.by_group and not self._group.membership.in_group:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.commit(offsets, timeout_ms)
        except (KafkaError, TimeoutError) as exc:
            log.warning("auto-commit failed: %s", exc or f"not answered within {timeout_ms} ms")

    @property
    def auto_commits_now(self) -> bool:
        """Whether there is anything to commit by itself."""
        return self._config.auto_commits and (
            not self._subscription.by_group or (self._group is not None and self._group.membership.in_group)
        )

    def auto_commit_due(self) -> bool:
        """Whether the interval has passed. From any thread."""
        dead = self._group is not None and self._group.membership.state is State.DEAD
        return self._config.auto_commits and not dead and self._loop.time() >= self._next_auto_commit

    def auto_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits in the background what the application had consumed when it polled."""
        self._next_auto_commit = self._loop.time() + self._config.auto_commit_interval_ms / 1000
        if not offsets:
            return

        async def run() -> None:
            try:
                await self.commit(offsets, self._config.default_api_timeout_ms)
            except KafkaError as exc:
                log.warning("auto-commit failed: %s", exc)

        self._background.start(run(), "auto-commit")
