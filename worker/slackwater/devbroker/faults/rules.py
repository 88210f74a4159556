"""Fault rules, which tests add.

A rule selects requests and does exactly one thing to them: answer with an error, delay
the request, drop the connection before or after the request was handled, throttle the client, or
move the coordinator. The first rule that matches a request applies, ``times`` times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from slackwater.devbroker.faults import error_responses
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request

ANY_API = "*"
_NEGOTIATION = "ApiVersions"
"""Not matched by ``*``: a client that cannot negotiate versions sends no other request."""
_ACTIONS = ("error", "delay_ms", "drop", "throttle_ms", "move_coordinator")
_FIELDS = ("api", "group", "topic", "partition", "client_id", "instance", "times", *_ACTIONS)
EVERY_PARTITION = -1
"""In :func:`items`: the request concerns all partitions of the topic."""


class FaultError(ValueError):
    """An invalid rule; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One rule.

    ``api`` is Kafka's name (``Fetch``, ``JoinGroup``; ``*``: any but ApiVersions); ``group``, ``topic``,
    ``partition``, ``client_id`` and ``instance`` (a member's group.instance.id) narrow it down where they are
    given, and a request without such a thing does not match then. Metadata with ``partition``: the error is
    that partition's, not the topic's. ``times``: how many requests, ``None`` until it is deleted.
    One of: ``error`` (a code, or its name in :meth:`from_json`), ``delay_ms`` (then it is handled
    as usual), ``drop`` (``before`` or ``after`` it is handled), ``throttle_ms`` (it is handled, and the
    answer says that the client is throttled for so long, KIP-219), ``move_coordinator`` (milliseconds
    that the coordinator is away; the request is handled after it went).
    """

    api: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None
    instance: str | None = None
    times: int | None = 1
    error: ErrorCode | None = None
    delay_ms: int | None = None
    drop: str | None = None
    throttle_ms: int | None = None
    move_coordinator: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in _ACTIONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise FaultError(f"a fault does one of {', '.join(_ACTIONS)}; this one has {given or 'none'}")
        if self.drop not in (None, "before", "after"):
            raise FaultError(
                f"drop is {self.drop!r}; it must be 'before' or 'after' (the request is handled)"
            )
        for name in ("delay_ms", "throttle_ms", "move_coordinator", "partition"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise FaultError(f"{name} is {value}; it must be 0 or more")
        if self.times is not None and self.times < 1:
            raise FaultError(f"times is {self.times}; it must be 1 or more, or null for no end")

    @classmethod
    def from_json(cls, value: Any, known_apis: frozenset[str]) -> Fault:
        """Reads a rule from parsed JSON. Raises :class:`FaultError`."""
        if not isinstance(value, dict):
            raise FaultError("a fault is a JSON object")
        unknown = sorted(set(value) - set(_FIELDS))
        if unknown:
            raise FaultError(f"unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
        api = value.get("api")
        if api != ANY_API and api not in known_apis:
            raise FaultError(f"api is {api!r}; known are {', '.join(sorted(known_apis))} and *")
        for name in ("group", "topic", "client_id", "instance", "drop"):
            _expect(value, name, str)
        for name in ("partition", "times", "delay_ms", "throttle_ms", "move_coordinator"):
            _expect(value, name, int)
        return cls(**{**value, "error": _error_code(value.get("error"))})

    def to_json(self) -> dict[str, Any]:
        """The rule as :meth:`from_json` takes it, without absent fields."""
        values = {name: getattr(self, name) for name in _FIELDS}
        shown = {name: value for name, value in values.items() if value is not None or name == "times"}
        if self.error is not None:
            shown["error"] = self.error.name
        return shown


def _expect(value: dict[str, Any], name: str, kind: type) -> None:
    given = value.get(name)
    if given is not None and (not isinstance(given, kind) or isinstance(given, bool)):
        raise FaultError(f"{name} is {given!r}; it must be {'text' if kind is str else 'a whole number'}")


def _error_code(given: Any) -> ErrorCode | None:
    if given is None:
        return None
    try:
        if isinstance(given, str):
            return ErrorCode[given]
        if isinstance(given, int) and not isinstance(given, bool):
            return ErrorCode(given)
    except (KeyError, ValueError):
        pass
    raise FaultError(f"error is {given!r}; it must be the name or the number of a Kafka error code")


@dataclass(slots=True)
class ActiveFault:
    """An active rule: how often it still applies (``None``: no limit) and how often it has."""

    id: int
    rule: Fault
    left: int | None
    hits: int = 0
    _name_of: Callable[[UUID], str | None] = field(repr=False, default=lambda _: None)

    def to_json(self) -> dict[str, Any]:
        """The rule with its id, ``left`` and ``hits``."""
        return {"id": self.id, **self.rule.to_json(), "left": self.left, "hits": self.hits}

    def matches(self, group: str | None, topic: Any, partition: int | None) -> bool:
        """Whether the rule matches an item of a request (``None``: the item has no such field)."""
        rule = self.rule
        if rule.group is not None and group != rule.group:
            return False
        if rule.topic is not None and rule.topic != (
            self._name_of(topic) if isinstance(topic, UUID) else topic
        ):
            return False
        return rule.partition is None or partition in (rule.partition, EVERY_PARTITION)


class Faults:
    """The active rules, in the order in which they were added.

    ``name_of`` returns a topic's name by its id, for requests that name topics by id.
    """

    def __init__(self, name_of: Callable[[UUID], str | None]) -> None:
        self._name_of = name_of
        self._ids = itertools.count(1)
        self._active: list[ActiveFault] = []
        self._spent: list[ActiveFault] = []

    def __len__(self) -> int:
        return len(self._active)

    def add(self, rule: Fault) -> ActiveFault:
        """Activates a rule, after the others."""
        active = ActiveFault(next(self._ids), rule, rule.times, _name_of=self._name_of)
        self._active.append(active)
        return active

    def remove(self, fault_id: int) -> bool:
        """Removes a rule; whether it was active."""
        kept = [active for active in self._active if active.id != fault_id]
        removed = len(kept) < len(self._active)
        self._active = kept
        return removed

    def clear(self) -> None:
        """Removes all rules, spent ones too."""
        self._active.clear()
        self._spent.clear()

    def to_json(self) -> list[dict[str, Any]]:
        """All rules, active and spent (``left`` 0), by id."""
        both = sorted([*self._active, *self._spent], key=lambda active: active.id)
        return [active.to_json() for active in both]

    def take(self, api: str, client_id: str | None, request: Request[Any]) -> ActiveFault | None:
        """The rule that applies to this request, if any; it counts as applied once more."""
        for active in self._active:
            rule = active.rule
            if rule.api != api and (rule.api != ANY_API or api == _NEGOTIATION):
                continue
            if rule.client_id not in (None, client_id):
                continue
            if rule.instance is not None and rule.instance not in instances(request):
                continue
            if not any(active.matches(*item) for item in items(request)):
                continue
            active.hits += 1
            if active.left is not None:
                active.left -= 1
                if active.left == 0:
                    self._active.remove(active)
                    self._spent.append(active)
            return active
        return None


def items(request: Any) -> list[tuple[str | None, Any, int | None]]:
    """The items of a request as (group, topic name or id, partition); at least one."""
    group = getattr(request, "group_id", None) or getattr(request, "key", None) or None
    groups = getattr(request, "coordinator_keys", None) or getattr(request, "groups_names", None)
    named = getattr(request, "groups", None)
    if groups or named:
        result: list[tuple[str | None, Any, int | None]] = []
        for entry in [*(groups or []), *(named or [])]:
            if isinstance(entry, str):
                result.append((entry, None, None))
            else:
                result += _topic_items(entry.group_id, entry.topics) or [(entry.group_id, None, None)]
        return result
    topics = getattr(request, "topics", None) or getattr(request, "topic_data", None)
    result = _topic_items(group, topics)
    if isinstance(request, m.MetadataRequest):
        result = [(None, topic, EVERY_PARTITION) for _, topic, _ in result]
    result += [(None, name, None) for name in getattr(request, "topic_names", None) or []]
    return result or [(group, None, None)]


def instances(request: Any) -> list[str | None]:
    """The group.instance.ids in a request."""
    members = getattr(request, "members", None) or [request]
    return [getattr(member, "group_instance_id", None) for member in members]


def _topic_items(group: str | None, topics: Any) -> list[tuple[str | None, Any, int | None]]:
    result: list[tuple[str | None, Any, int | None]] = []
    for topic in topics or []:
        key = error_responses.topic_key(topic)
        parts = getattr(topic, "partitions", None) or getattr(topic, "partition_data", None) or []
        numbers = getattr(topic, "partition_indexes", None) or list(
            map(error_responses.partition_index, parts)
        )
        result += [(group, key, number) for number in numbers] or [(group, key, None)]
    return result
