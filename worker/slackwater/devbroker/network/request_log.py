"""A log of the requests the broker received, for tests of clients. Off by default."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from slackwater.devbroker.faults.rules import items
from slackwater.kafka.wire.frame import RequestHeader
from slackwater.kafka.wire.schema import Request

_PLAIN = (str, int, bool, type(None))


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request. ``number`` counts up, ``at_ms`` is the broker's monotonic clock, ``peer`` the client's
    ``host:port``. ``fields``: the request's plain fields, such as ``member_id`` or ``session_epoch``.
    ``about``: (group, topic, partition) of each item in it. ``fault``: the id of the rule that matched it.
    """

    number: int
    at_ms: float
    api: str
    version: int
    client_id: str | None
    peer: str
    fields: dict[str, Any]
    about: tuple[tuple[str | None, str | None, int | None], ...]
    fault: int | None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


class RequestLog:
    """The last requests, oldest first. ``name_of`` tells a topic's name by its id."""

    def __init__(self, now_ms: Callable[[], float], name_of: Callable[[UUID], str | None]) -> None:
        self._now_ms = now_ms
        self._name_of = name_of
        self._numbers = itertools.count(1)
        self._entries: deque[LoggedRequest] = deque(maxlen=0)
        self.watchers: list[Callable[[LoggedRequest], None]] = []
        """Called on the broker's loop with each request, before it is handled."""

    def keep(self, count: int) -> None:
        """Keeps the last ``count`` requests from now on; 0 keeps none. Earlier ones are dropped."""
        self._entries = deque(maxlen=count)

    @property
    def on(self) -> bool:
        """Whether requests are kept or watched."""
        return bool(self._entries.maxlen or self.watchers)

    @property
    def entries(self) -> list[LoggedRequest]:
        """The kept requests, oldest first."""
        return list(self._entries)

    def add(
        self, api: str, header: RequestHeader, peer: str, request: Request[Any], fault: int | None
    ) -> None:
        """Logs a request. Only plain values are kept, since its bytes are valid only while it is handled."""
        fields = {name: value for name, value in vars(request).items() if isinstance(value, _PLAIN)}
        about = tuple(
            (group, self._name_of(topic) if isinstance(topic, UUID) else topic, partition)
            for group, topic, partition in items(request)
        )
        number, at_ms = next(self._numbers), self._now_ms()
        entry = LoggedRequest(
            number, at_ms, api, header.api_version, header.client_id, peer, fields, about, fault
        )
        self._entries.append(entry)
        for watcher in self.watchers:
            watcher(entry)
