"""The options of the data source and their checks. The names are those of Spark's own Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from slackwater.fields import FieldError
from slackwater.kafka.errors import IllegalArgumentError
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.runtime.config.value_config import read_value

if TYPE_CHECKING:
    from slackwater.runtime.config.value_config import ValueConfig

EARLIEST, LATEST = -2, -1
"""Offsets that stand for a partition's ends, in JSON and in Kafka's ListOffsets."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
CLIENT_PREFIX = "kafka."
DECODED = ("value", "key")
"""The columns that can be decoded; the names of their options begin with theirs."""
BESIDE_TOPICS, OFFSETS_VERSION = "#", 2
"""The JSON of offsets has its version and the topics' ids under this key, which is no topic's name. JSON
without it is that of version 1, and of Spark's own Kafka source."""
_CLIENT_ID = "slackwater-spark"
_SERVERS = "bootstrap.servers"


class OptionError(ValueError):
    """An option that cannot be used. The message names it, and has no secret."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f'option "{name}" {problem}')


@dataclass(frozen=True)
class Topics:
    """What is read; exactly one of the three is set. ``pattern``: of whole names."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class Position:
    """Where to begin or to end. ``option`` has set it.

    One of these is set. ``end``: :data:`EARLIEST` or :data:`LATEST`. ``group``: where this group has
    committed. ``offsets``: of each partition; :data:`EARLIEST` and :data:`LATEST` are possible.
    ``time_ms``: the first record of this time or later; ``times_ms``: that of each partition.
    ``topic_ids``: of the topics that ``offsets`` belong to, as far as they are known.
    """

    option: str
    end: int | None = None
    group: str | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """Checked options.

    ``properties``: of the client, by Java's names. ``start``, ``end``: None: not set. ``columns``: which are
    read, in this order. ``later_than_all``: what a start by time does in a partition without such a record,
    ``error`` or ``latest``. ``max_trigger_delay_ms``: how long a batch with fewer records than
    ``min_offsets_per_trigger`` waits for more. ``silence_ms``: how long a task waits for a record that should
    be there.
    """

    properties: Mapping[str, str] = field(repr=False)
    topics: Topics
    columns: tuple[str, ...]
    start: Position | None = None
    end: Position | None = None
    later_than_all: str = "error"
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    commit_group: str | None = None
    silence_ms: int = 120_000
    decoded: tuple[tuple[str, ValueConfig], ...] = ()
    """The columns that are decoded, each with how."""

    def for_batch(self) -> SourceOptions:
        """These options for a query that is no stream. Raises OptionError."""
        if self.start is not None and self.start.end == LATEST:
            raise OptionError("startingOffsets", "must not be latest in a batch query: nothing would be read")
        if self.commit_group is not None:
            raise OptionError("commitGroup", "is for streams; remove it from the batch query")
        for name, number in (
            ("maxOffsetsPerTrigger", self.max_offsets_per_trigger),
            ("minOffsetsPerTrigger", self.min_offsets_per_trigger),
        ):
            if number is not None:
                raise OptionError(name, "is for streams; remove it from the batch query")
        return self

    def for_stream(self) -> SourceOptions:
        """These options for a stream. Raises OptionError."""
        if self.end is not None:
            raise OptionError(self.end.option, "is for batch queries; a stream has no end. Remove it")
        return self


_TIMES = ("startingTimestamp", "startingOffsetsByTimestamp", "endingTimestamp", "endingOffsetsByTimestamp")
_KNOWN = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", *_TIMES,
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "minPartitions", "includeHeaders", "columns", "groupId", "commitGroup",
    "kafkaConsumer.pollTimeoutMs",
)  # fmt: skip
_REFUSED = {
    "path": "cannot be used: topics are named by subscribe, subscribePattern or assign",
    "maxRecordsPerPartition": "is not supported; remove it, and set minPartitions",
    "groupIdPrefix": "cannot be used: no group is joined. Remove it",
    "fetchOffset.numRetries": "is not supported; remove it, and set kafka.request.timeout.ms",
    "fetchOffset.retryIntervalMs": "is not supported; remove it, and set kafka.retry.backoff.ms",
    "kafka.group.id": "cannot be used: no group is joined. Remove it; commitGroup commits a stream's offsets",
    "kafka.auto.offset.reset": "cannot be used; set startingOffsets",
    "kafka.enable.auto.commit": "cannot be used; commitGroup commits a stream's offsets",
    **dict.fromkeys(
        ("kafka.key.deserializer", "kafka.value.deserializer", "kafka.interceptor.classes"),
        "cannot be used: keys and values are bytes. Remove it; value.format decodes values",
    ),
}
"""Options of Spark's own Kafka source that are not supported here, or that it refuses, too."""
_VALUE_KEYS = (
    "format", "schema", "schemaFile", "readerSchema", "message", "timestampUnit", "source", "registry.url",
    "registry.subject", "registry.version", "registry.usernameFile", "registry.passwordFile",
    "registry.caFile", "registry.certFile", "registry.keyFile", "registry.timeoutMs",
)  # fmt: skip


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Reads ``options``, whose names may be in any case. Raises OptionError.

    What is for streams or for batch queries alone is checked by the result's methods.
    """
    given = {name.lower(): value for name, value in options.items()}
    _check_names(given)
    text = {name: given[name.lower()] for name in _KNOWN if name.lower() in given}
    properties = {
        name.removeprefix(CLIENT_PREFIX): value
        for name, value in given.items()
        if name.startswith(CLIENT_PREFIX)
    }
    if not properties.get(_SERVERS, "").strip():
        raise OptionError(CLIENT_PREFIX + _SERVERS, "is missing; set it to the brokers' HOST:PORT")
    properties.setdefault("client.id", _CLIENT_ID)
    decoded = {name: config for name in DECODED if (config := _decoded(given, name)) is not None}
    strategy = text.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError("startingOffsetsByTimestampStrategy", f"must be error or latest, not {strategy!r}")
    start = _position(text, "starting")
    end = _position(text, "ending")
    if "groupId" in text and not any(place and place.group for place in (start, end)):
        raise OptionError("groupId", "is for startingOffsets=group and endingOffsets=group; remove it")
    most, least = _number(text, "maxOffsetsPerTrigger"), _number(text, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            "minOffsetsPerTrigger", f"is {least}, more than maxOffsetsPerTrigger ({most}); lower it"
        )
    if least is None and "maxTriggerDelay" in text:
        raise OptionError("maxTriggerDelay", "needs minOffsetsPerTrigger; set that, too, or remove it")
    return SourceOptions(
        properties=properties,
        topics=_topics(text),
        columns=_columns(text, decoded),
        start=start,
        end=end,
        later_than_all=strategy,
        fail_on_data_loss=_boolean(text, "failOnDataLoss", default=True),
        min_partitions=_number(text, "minPartitions") or 1,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(text, "maxTriggerDelay", default="15m"),
        commit_group=_group(text, "commitGroup"),
        silence_ms=_number(text, "kafkaConsumer.pollTimeoutMs") or 120_000,
        decoded=tuple(decoded.items()),
    )


def _check_names(given: Mapping[str, str]) -> None:
    refused = {name.lower(): name for name in _REFUSED}
    of_columns = (f"{column}.{key}" for column in DECODED for key in _VALUE_KEYS)
    known = {name.lower(): name for name in (*_KNOWN, *of_columns)}
    for name in given:
        if name in refused:
            raise OptionError(refused[name], _REFUSED[refused[name]])
        if name in known or name.startswith(CLIENT_PREFIX):
            continue
        near = get_close_matches(name, [*known, CLIENT_PREFIX + _SERVERS], n=1, cutoff=0.6)
        hint = f"; did you mean {known.get(near[0], near[0])}?" if near else ""
        raise OptionError(name, f"does not exist{hint}")


def _topics(text: Mapping[str, str]) -> Topics:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in text]
    if len(ways) != 1:
        problem = f"cannot be combined with {ways[1]}" if ways else "is missing"
        raise OptionError(
            ways[0] if ways else "subscribe", f"{problem}; set one of subscribe, subscribePattern and assign"
        )
    (way,) = ways
    if way == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text[way].split(",") if name.strip()))
        if not names:
            raise OptionError(way, "names no topic; separate several with commas")
        return Topics(names=names)
    if way == "subscribePattern":
        whole = f"(?:{text[way]})\\Z"
        try:
            TopicPattern(text[way])
            TopicPattern(whole)
        except IllegalArgumentError as exc:
            raise OptionError(way, f"cannot be used: {exc}") from None
        return Topics(pattern=whole)
    return Topics(assigned=_assigned(text[way]))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = '{"orders": [0, 1]}'
    numbers = _json(text, "assign", example)
    chosen = []
    for topic, partitions in numbers.items():
        if not isinstance(partitions, list) or not all(_is_number(number) for number in partitions):
            raise OptionError("assign", f"must list partition numbers for topic {topic}, as in {example}")
        chosen += [TopicPartition(topic, number) for number in sorted(set(partitions))]
    if not chosen:
        raise OptionError("assign", f"names no partition; write it as in {example}")
    return tuple(chosen)


def _position(text: Mapping[str, str], which: str) -> Position | None:
    """The first of ``...Timestamp``, ``...OffsetsByTimestamp`` and ``...Offsets`` that is set."""
    by_time, by_times, by_offset = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    if by_time in text:
        return Position(by_time, time_ms=_number(text, by_time, least=0))
    if by_times in text:
        times = _json(text[by_times], by_times, _PLACES)
        return Position(by_times, times_ms=_by_partition(times, by_times, 0))
    if by_offset not in text:
        return None
    given = text[by_offset].strip()
    word = given.lower()
    if word == "group":
        group = _group(text, "groupId")
        if group is None:
            raise OptionError("groupId", f"is missing; {by_offset}=group needs it")
        return Position(by_offset, group=group)
    if word == "latest":
        return Position(by_offset, end=LATEST)
    if word == "earliest":
        if which == "ending":
            raise OptionError(by_offset, "must not be earliest: nothing would be read")
        return Position(by_offset, end=EARLIEST)
    if not given.startswith("{"):
        words = "earliest, latest, group" if which == "starting" else "latest, group"
        raise OptionError(by_offset, f"must be {words} or JSON with offsets, not {given!r}")
    least = EARLIEST if which == "starting" else LATEST
    document = _json(given, by_offset, _PLACES)
    ids = take_topic_ids(document, by_offset)
    return Position(by_offset, offsets=_by_partition(document, by_offset, least), topic_ids=ids)


def take_topic_ids(document: dict[str, Any], option: str) -> dict[str, str]:
    """The ids of the topics in the JSON of offsets; what is left of ``document`` are the offsets by topic.

    Raises OptionError, which names ``option``, for JSON of a later version.
    """
    beside = document.pop(BESIDE_TOPICS, None)
    if beside is None:
        return {}
    ids = beside.get("topicIds") if isinstance(beside, dict) else None
    if not isinstance(ids, dict) or beside.get("version") != OFFSETS_VERSION:
        raise OptionError(
            option,
            f"has offsets whose {BESIDE_TOPICS!r} is {json.dumps(beside)[:200]}, not of version "
            f"{OFFSETS_VERSION}; use the version of slackwater that has written them, or a later one",
        )
    return ids


_PLACES = '{"orders": {"0": 23, "1": 42}}'


def _by_partition(document: Mapping[str, Any], option: str, least: int) -> dict[TopicPartition, int]:
    places: dict[TopicPartition, int] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise OptionError(option, f"must have partitions for topic {topic}, as in {_PLACES}")
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit()) or not _is_number(number, least):
                raise OptionError(
                    option,
                    f"must have numbers from {least} for the partitions of {topic}, as in {_PLACES}; "
                    f"partition {partition!r} has {number!r}",
                )
            places[TopicPartition(topic, int(partition))] = number
    return places


def _json(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as exc:
        raise OptionError(option, f"is not JSON ({exc}); write it as in {example}") from None
    if not isinstance(document, dict):
        raise OptionError(option, f"must be an object, as in {example}")
    return document


def _is_number(number: object, least: int = 0) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number < 2**63


def _columns(text: Mapping[str, str], decoded: Collection[str]) -> tuple[str, ...]:
    headers = _boolean(text, "includeHeaders", default=False)
    if "columns" not in text:
        return COLUMNS if headers else COLUMNS[:-1]
    by_lower = {name.lower(): name for name in COLUMNS}
    names = []
    for given in filter(None, (name.strip() for name in text["columns"].split(","))):
        name = by_lower.get(given.lower())
        if name is None:
            raise OptionError("columns", f"must be of {', '.join(COLUMNS)}; {given!r} is none of them")
        if name in names:
            raise OptionError("columns", f"names {name} twice")
        names.append(name)
    if not names:
        raise OptionError("columns", f"names no column; choose from {', '.join(COLUMNS)}")
    if headers and "headers" not in names:
        raise OptionError("includeHeaders", "is true, but columns has no headers; add it there")
    for name in decoded:
        if name not in names:
            raise OptionError(f"{name}.format", f"is set, but columns has no {name}; add it there")
    return tuple(names)


def _decoded(given: Mapping[str, str], column: str) -> ValueConfig | None:
    section: dict[str, Any] = {}
    for key in _VALUE_KEYS:
        text: Any = given.get(f"{column}.{key}".lower())
        if text is None:
            continue
        if key.endswith("timeoutMs"):
            text = _number({f"{column}.{key}": text}, f"{column}.{key}")
        outer, _, inner = key.rpartition(".")
        (section.setdefault(outer, {}) if outer else section)[inner] = text
    if not section:
        return None
    try:
        return read_value(section, column)
    except FieldError as fault:
        raise OptionError(fault.path, fault.problem) from None


def _number(text: Mapping[str, str], name: str, least: int = 1) -> int | None:
    if name not in text:
        return None
    given = text[name].strip()
    if not (given.isascii() and given.isdigit() and least <= int(given[:20]) < 2**63):
        raise OptionError(name, f"must be a whole number from {least}, not {text[name]!r}")
    return int(given)


_MICROSECONDS = {
    "us": 1,
    "": 1_000,
    "ms": 1_000,
    "s": 10**6,
    "m": 60 * 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
}
"""Of the units that Spark's options of time have (``JavaUtils.timeStringAs``)."""


def _duration_ms(text: Mapping[str, str], name: str, *, default: str) -> int:
    given = text.get(name, default)
    parts = re.fullmatch(r"([0-9]{1,12})([a-z]*)", given.strip().lower())
    if parts is None or parts[2] not in _MICROSECONDS:
        raise OptionError(
            name, f"must be a time such as 500ms, 30s, 15m or 1h (without a unit: ms), not {given!r}"
        )
    return int(parts[1]) * _MICROSECONDS[parts[2]] // 1_000


def _boolean(text: Mapping[str, str], name: str, *, default: bool) -> bool:
    given = text.get(name, str(default)).strip().lower()
    if given not in ("true", "false"):
        raise OptionError(name, f"must be true or false, not {text[name]!r}")
    return given == "true"


def _group(text: Mapping[str, str], name: str) -> str | None:
    if name in text and not text[name].strip():
        raise OptionError(name, "must not be empty")
    return text.get(name)
