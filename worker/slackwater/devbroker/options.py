"""The broker's options, with Kafka's names and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

_TRUE = {"true": True, "false": False}


class BrokerOptionError(ValueError):
    """An unknown option or an invalid value."""


def _boolean(text: str) -> bool:
    try:
        return _TRUE[text.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _at_least(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """All options; times in milliseconds and sizes in bytes unless the name says otherwise."""

    node_id: int = 1
    num_partitions: int = 1
    auto_create_topics_enable: bool = True
    log_segment_bytes: int = 1024**3
    log_index_interval_bytes: int = 4096
    message_max_bytes: int = 1048588
    fetch_max_bytes: int = 57671680
    socket_request_max_bytes: int = 100 * 1024**2
    connections_max_idle_ms: int = 600000
    max_incremental_fetch_session_cache_slots: int = 1000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1800000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = 45000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_assignment_interval_ms: int = 1000
    offset_metadata_max_bytes: int = 4096

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> BrokerOptions:
        """Reads options by Kafka's dotted names; raises :class:`BrokerOptionError` for the first bad one."""
        values: dict[str, Any] = {}
        for name, text in settings.items():
            attribute = name.replace(".", "_")
            if attribute not in _PARSERS or "_" in name:
                known = ", ".join(sorted(key.replace("_", ".") for key in _PARSERS))
                raise BrokerOptionError(f"unknown broker option {name!r}; known are {known}")
            try:
                values[attribute] = _PARSERS[attribute](text)
            except ValueError as exc:
                raise BrokerOptionError(f"broker option {name}={text!r}: {exc}") from None
        return cls(**values)

    def settings(self) -> dict[str, str]:
        """All options by their dotted names, as text."""
        values = {field.name.replace("_", "."): getattr(self, field.name) for field in fields(self)}
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in values.items()
        }


_PARSERS: dict[str, Callable[[str], Any]] = {
    "node_id": _at_least(0, 2**31 - 1),
    "num_partitions": _at_least(1, 10_000),
    "auto_create_topics_enable": _boolean,
    "log_segment_bytes": _at_least(14, 2**31 - 1),
    "log_index_interval_bytes": _at_least(0, 2**31 - 1),
    "message_max_bytes": _at_least(0, 2**31 - 1),
    "fetch_max_bytes": _at_least(1024, 2**31 - 1),
    "socket_request_max_bytes": _at_least(1024, 2**31 - 1),
    "connections_max_idle_ms": _at_least(-1),
    "max_incremental_fetch_session_cache_slots": _at_least(0, 2**31 - 1),
    "group_min_session_timeout_ms": _at_least(0, 2**31 - 1),
    "group_max_session_timeout_ms": _at_least(0, 2**31 - 1),
    "group_initial_rebalance_delay_ms": _at_least(0, 2**31 - 1),
    "group_max_size": _at_least(1, 2**31 - 1),
    "group_consumer_session_timeout_ms": _at_least(1, 2**31 - 1),
    "group_consumer_heartbeat_interval_ms": _at_least(1, 2**31 - 1),
    "group_consumer_assignment_interval_ms": _at_least(0, 2**31 - 1),
    "offset_metadata_max_bytes": _at_least(0, 2**31 - 1),
}


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """Splits ``key=value`` texts; raises :class:`BrokerOptionError` for one without ``=``."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BrokerOptionError(f"{pair!r} is not of the form key=value")
        settings[name.strip()] = value.strip()
    return settings
