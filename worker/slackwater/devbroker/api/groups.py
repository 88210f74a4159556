"""Connects the group coordinator to the broker: requests, timers, and simulated coordinator moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from slackwater.devbroker.group import FileGroupStore, GroupConfig, GroupCoordinator, GroupStoreError
from slackwater.devbroker.network.connection import Exchange
from slackwater.devbroker.options import BrokerOptions
from slackwater.devbroker.storage.topics import TopicStore
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request

log = logging.getLogger(__name__)

_GROUP_KEY = 0
_TRANSACTION_KEY = 1


class CoordinatorHost:
    """Runs one coordinator for all groups, stored in ``path``. Raises StoreError if that cannot be read."""

    def __init__(
        self,
        path: Path,
        options: BrokerOptions,
        topics: TopicStore,
        make_uuid: Callable[[], UUID],
        now_ms: Callable[[], float],
    ) -> None:
        self._options = options
        self._now_ms = now_ms
        self._timer: asyncio.TimerHandle | None = None
        self._reload: asyncio.TimerHandle | None = None
        self._store = FileGroupStore(path)
        if self._store.truncated_bytes:
            log.warning(
                "%s: the last %d bytes were damaged and have been cut off", path, self._store.truncated_bytes
            )
        self.coordinator = GroupCoordinator(
            GroupConfig(
                initial_rebalance_delay_ms=options.group_initial_rebalance_delay_ms,
                min_session_timeout_ms=options.group_min_session_timeout_ms,
                max_session_timeout_ms=options.group_max_session_timeout_ms,
                max_size=options.group_max_size,
                max_offset_metadata_chars=options.offset_metadata_max_bytes,
                consumer_session_timeout_ms=options.group_consumer_session_timeout_ms,
                consumer_heartbeat_interval_ms=options.group_consumer_heartbeat_interval_ms,
                consumer_assignment_interval_ms=options.group_consumer_assignment_interval_ms,
            ),
            self._store,
            lambda prefix: f"{prefix}-{make_uuid()}",
            topics,
        )
        self.available = False

    def load(self) -> None:
        """Loads the stored groups and starts serving them."""
        self._reload = None
        self.coordinator.start_loading()
        self.coordinator.load(self._now_ms())
        self.available = True
        self._arm()

    def move(self, down_ms: float) -> None:
        """Unloads the coordinator, as when its broker stops, and loads it again after ``down_ms``.

        Parked requests and all requests meanwhile get NOT_COORDINATOR; FindCoordinator answers
        COORDINATOR_NOT_AVAILABLE. With 0 it is loaded again before the next request.
        """
        self._cancel()
        self.available = False
        self.coordinator.unload()
        if down_ms > 0:
            self._reload = asyncio.get_running_loop().call_later(down_ms / 1000, self.load)
        else:
            self.load()

    def close(self) -> None:
        """Answers parked requests with NOT_COORDINATOR and closes the store."""
        self._cancel()
        self.available = False
        self.coordinator.unload()
        self._store.close()

    def topic_deleted(self, name: str) -> None:
        """Deletes the committed offsets of a deleted topic."""
        try:
            self.coordinator.topics_deleted([name])
        except GroupStoreError as exc:
            log.error("cannot delete the committed offsets of topic %s: %s", name, exc)

    def handle(self, exchange: Exchange, request: Request[Any]) -> None:
        """Passes a request to the coordinator, which answers at once or later."""
        self.coordinator.handle(
            request,
            version=exchange.header.api_version,
            client_id=exchange.header.client_id,
            client_host=exchange.client_host,
            now_ms=self._now_ms(),
            reply=exchange.reply,
        )
        self._arm()

    def find(self, exchange: Exchange, request: m.FindCoordinatorRequest, address: tuple[str, int]) -> None:
        """Answers FindCoordinator with this broker for every group; one or several keys (KIP-699)."""
        error, message = self._find_error(exchange, request.key_type)
        host, port = ("", -1) if error else address
        node_id = -1 if error else self._options.node_id
        if exchange.header.api_version < 4:
            exchange.reply(
                m.FindCoordinatorResponse(
                    error_code=int(error), error_message=message, node_id=node_id, host=host, port=port
                )
            )
            return
        coordinators = [
            m.FindCoordinatorResponseCoordinator(
                key=key, node_id=node_id, host=host, port=port, error_code=int(error), error_message=message
            )
            for key in request.coordinator_keys
        ]
        exchange.reply(m.FindCoordinatorResponse(coordinators=coordinators))

    def _find_error(self, exchange: Exchange, key_type: int) -> tuple[ErrorCode, str | None]:
        if key_type == _TRANSACTION_KEY:
            log.warning(
                "%s asked for a transaction coordinator; transactions are not supported", exchange.peer
            )
        if key_type != _GROUP_KEY:
            return ErrorCode.INVALID_REQUEST, "this broker coordinates consumer groups only"
        if not self.available:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator has been moved away by a test"
        return ErrorCode.NONE, None

    def _arm(self) -> None:
        """Fires the timers that are due and schedules itself for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = self._now_ms()
        deadline_ms = self.coordinator.poll(now_ms)
        if deadline_ms is not None:
            delay_s = max(0.0, deadline_ms - now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._arm)

    def _cancel(self) -> None:
        for timer in (self._timer, self._reload):
            if timer is not None:
                timer.cancel()
        self._timer = self._reload = None
