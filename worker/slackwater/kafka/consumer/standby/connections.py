"""A standby: all that a member needs to join is found and connected beforehand, and kept so.

The application does not poll in standby, so this lives on the client's loop as a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from slackwater.kafka.errors import IllegalStateError, KafkaError, for_code
from slackwater.kafka.net import Cluster, Purpose
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.wire import messages as m

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
"""How often the coordinator is asked whether it still is one, over each connection to it. So nobody takes
the connections for unused, and what a takeover would stumble over is seen before."""
_PURPOSES = (Purpose.GROUP, Purpose.GENERAL)


class StandbyConnections:
    """Has metadata of ``topics`` (with a pattern: of all), the group's coordinator and the connections to it.
    Asks for no membership. ``answer_ms``: how long an answer is waited for. ``every_s``: how often it looks.

    ``ready`` is done when all is there for the first time; it fails with the first error that asking again
    does not mend. After that, errors are logged, and asking goes on.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topics: Collection[str],
        backoff: Backoff,
        *,
        answer_ms: int,
        every_s: float = CHECK_EVERY_S,
    ) -> None:
        self._cluster, self._group_id, self._topics = cluster, group_id, topics
        self._backoff, self._answer_ms, self._every_s = backoff, answer_ms, every_s
        self._has_metadata = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_error: KafkaError | None = None
        """Why it is not ready, or not any more."""

    async def run(self) -> None:
        """Until it is cancelled."""
        failures = 0
        try:
            while True:
                try:
                    settled = await self._check()
                except KafkaError as exc:
                    failures += 1
                    if self._failed(exc):
                        return
                    await asyncio.sleep(self._backoff.delay_ms(failures) / 1000)
                    continue
                failures, self.last_error = 0, None
                if settled and not self.ready.done():
                    self.ready.set_result(None)
                await asyncio.sleep(self._every_s if settled else self._backoff.delay_ms(1) / 1000)
        finally:
            if not self.ready.done():
                self.ready.set_exception(IllegalStateError("the standby has ended before it was ready"))
                self.ready.exception()  # read here, since nobody may wait for it any more

    def _failed(self, error: KafkaError) -> bool:
        """Whether that is the end of it."""
        if self.last_error is None or str(self.last_error) != str(error):
            log.warning("group %s: in standby: %s", self._group_id, error)
        self.last_error = error
        if error.retriable or self.ready.done():
            # The coordinator may be another broker by now, which any broker can tell.
            self._cluster.forget_coordinator(self._group_id)
            return False
        self.ready.set_exception(error)
        return True

    async def _check(self) -> bool:
        """Looks once; false where the coordinator has moved, so that there is more to do."""
        if not self._has_metadata:
            await self._cluster.refresh()
            self._check_topics()
            self._has_metadata = True
        node = await self._cluster.coordinator(self._group_id, self._answer_ms)
        for purpose in _PURPOSES:
            connection = await self._cluster.connection(node, purpose)
            now = await self._cluster.confirm_coordinator(self._group_id, connection, self._answer_ms)
            if now != node:
                log.info("group %s: in standby: broker %d coordinates it now", self._group_id, now)
                return False
        return True

    def _check_topics(self) -> None:
        """One that is not there may come; one that may not be read is told at once."""
        for name in sorted(self._topics):
            topic = self._cluster.metadata.topics.get(name)
            code = topic.error_code if topic is not None else 0
            if code and action_for(m.MetadataRequest, code) is Action.FATAL:
                raise for_code(code, f"of topic {name!r}", api="Metadata")
