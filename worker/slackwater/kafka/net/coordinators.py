"""Coordinators of groups and of transactions: looked up by FindCoordinator and cached until a caller reports
them as moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum

from slackwater.kafka.errors import BrokerError, KafkaError, KafkaTimeoutError, for_code
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.connection import ByVersion
from slackwater.kafka.protocol.actions import Action, action_for
from slackwater.kafka.protocol.metadata import Broker, ClusterMetadata
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode


class KeyType(IntEnum):
    """What a coordinator is asked for, by FindCoordinator's numbers."""

    GROUP = 0
    TRANSACTION = 1

    def __str__(self) -> str:
        return "group" if self is KeyType.GROUP else "transactional id"


Ask = Callable[[ByVersion[m.FindCoordinatorResponse]], Awaitable[m.FindCoordinatorResponse]]
"""Asks any broker."""

_BATCHED = 4
"""FindCoordinator takes several keys from this version on (KIP-699)."""


class Coordinators:
    """A cache of coordinators. Their addresses go to ``metadata``; ``backoff`` paces repeated lookups."""

    def __init__(
        self, ask: Ask, metadata: ClusterMetadata, backoff: Backoff, key_type: KeyType = KeyType.GROUP
    ) -> None:
        self._ask, self._metadata, self._backoff, self._key_type = ask, metadata, backoff, key_type
        self._known: dict[str, int] = {}

    async def wait_for(self, group: str, limit_ms: int) -> int:
        """The node id of a group's coordinator; asks again while there is none yet, for ``limit_ms``.

        Raises the last error then (always a retriable one), and at once an error that retrying does not end.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_ms / 1000
        failures = 0
        while True:
            result = (await self.find([group]))[group]
            if isinstance(result, int):
                return result
            failures += 1
            delay = self._backoff.delay_ms(failures) / 1000
            if not _worth_repeating(result):
                raise result
            if loop.time() + delay > deadline:
                if result.retriable:
                    raise result
                # Not retriable in Java, but here the condition may end by itself: the caller may retry.
                raise KafkaTimeoutError(f"no coordinator within {limit_ms} ms: {result}") from result
            await asyncio.sleep(delay)

    async def find(self, groups: Sequence[str]) -> dict[str, int | KafkaError]:
        """For each group its coordinator's node id, or why there is none. Asks once for those not known."""
        missing = [group for group in dict.fromkeys(groups) if group not in self._known]
        errors = await self._look_up(missing) if missing else {}
        return {group: errors.get(group) or self._known[group] for group in groups}

    async def ask_again(self, group: str, ask: Ask) -> int | KafkaError:
        """Asks by ``ask``, also where one is known; that stays if the answer is an error."""
        errors = await self._look_up([group], ask)
        return errors.get(group) or self._known[group]

    def forget(self, group: str) -> None:
        """Removes a coordinator that has moved or cannot be reached."""
        self._known.pop(group, None)

    def clear(self) -> None:
        """Removes all coordinators."""
        self._known.clear()

    async def _look_up(self, groups: list[str], ask: Ask | None = None) -> dict[str, KafkaError]:
        errors: dict[str, KafkaError] = {}
        # The first answer shows whether the broker takes several keys; only an old one needs more requests.
        waiting = list(groups)
        while waiting:
            asked = list(waiting)
            try:
                response = await (ask or self._ask)(_request(asked, self._key_type))
            except KafkaError as exc:
                return {**errors, **dict.fromkeys(waiting, exc)}
            coordinators = response.coordinators or [_as_batched(response, asked[0])]
            answered = {coordinator.key for coordinator in coordinators}
            waiting = [group for group in waiting if group not in answered and response.coordinators == []]
            for coordinator in coordinators:
                if coordinator.error_code:
                    errors[coordinator.key] = for_code(
                        coordinator.error_code,
                        f"of {self._key_type} {coordinator.key!r}",
                        api="FindCoordinator",
                    )
                else:
                    self._metadata.learn_broker(
                        Broker(coordinator.node_id, coordinator.host, coordinator.port)
                    )
                    self._known[coordinator.key] = coordinator.node_id
            for group in asked:
                if response.coordinators and group not in answered:
                    errors[group] = for_code(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        f"of {self._key_type} {group!r}",
                        api="FindCoordinator",
                    )
        return errors


def _as_batched(response: m.FindCoordinatorResponse, group: str) -> m.FindCoordinatorResponseCoordinator:
    return m.FindCoordinatorResponseCoordinator(
        key=group,
        node_id=response.node_id,
        host=response.host,
        port=response.port,
        error_code=response.error_code,
        error_message=response.error_message,
    )


def _request(groups: list[str], key_type: KeyType) -> ByVersion[m.FindCoordinatorResponse]:
    def make(version: int) -> m.FindCoordinatorRequest:
        if version >= _BATCHED:
            return m.FindCoordinatorRequest(coordinator_keys=groups, key_type=key_type)
        return m.FindCoordinatorRequest(key=groups[0], key_type=key_type)

    return ByVersion(m.FindCoordinatorRequest, make)


def _worth_repeating(error: KafkaError) -> bool:
    if isinstance(error, BrokerError):
        return action_for(m.FindCoordinatorRequest, error.code) is Action.RETRY
    return error.retriable
