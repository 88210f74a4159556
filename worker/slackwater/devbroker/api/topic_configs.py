"""Topic settings: Kafka's defaults, and validation of the given values.

All of Kafka's usual settings are accepted and reported, so that tools work; only
``max.message.bytes``, ``message.timestamp.type`` and ``segment.bytes`` change what this broker does. Logs
are never cleaned: records that ``cleanup.policy`` and ``retention.*`` would remove stay readable.
``compression.type``, which would change the records themselves, is refused unless it is at its default.
"""

from __future__ import annotations

from slackwater.devbroker.options import BrokerOptions

BOOLEAN, STRING, INT, _SHORT, LONG, DOUBLE, LIST = 1, 2, 3, 4, 5, 6, 7
"""The type codes of DescribeConfigs v3."""

_DEFAULTS: dict[str, tuple[int, str]] = {
    "cleanup.policy": (LIST, "delete"),
    "compression.type": (STRING, "producer"),
    "delete.retention.ms": (LONG, "86400000"),
    "file.delete.delay.ms": (LONG, "60000"),
    "flush.messages": (LONG, "9223372036854775807"),
    "flush.ms": (LONG, "9223372036854775807"),
    "index.interval.bytes": (INT, "4096"),
    "max.compaction.lag.ms": (LONG, "9223372036854775807"),
    "max.message.bytes": (INT, "1048588"),
    "message.timestamp.type": (STRING, "CreateTime"),
    "min.cleanable.dirty.ratio": (DOUBLE, "0.5"),
    "min.compaction.lag.ms": (LONG, "0"),
    "min.insync.replicas": (INT, "1"),
    "preallocate": (BOOLEAN, "false"),
    "retention.bytes": (LONG, "-1"),
    "retention.ms": (LONG, "604800000"),
    "segment.bytes": (INT, "1073741824"),
    "segment.ms": (LONG, "604800000"),
    "unclean.leader.election.enable": (BOOLEAN, "false"),
}
_ONLY_DEFAULT = ("compression.type",)
_LIMITS = {
    "max.message.bytes": (0, 2**31 - 1),
    "segment.bytes": (14, 2**31 - 1),
    "min.insync.replicas": (1, 2**31 - 1),
}
_POLICIES = {"delete", "compact"}
_TIMES = ("CreateTime", "LogAppendTime")


def defaults(options: BrokerOptions) -> dict[str, tuple[int, str]]:
    """Every setting's type code and the value a topic has that does not set it."""
    return {
        **_DEFAULTS,
        "max.message.bytes": (INT, str(options.message_max_bytes)),
        "segment.bytes": (INT, str(options.log_segment_bytes)),
        "index.interval.bytes": (INT, str(options.log_index_interval_bytes)),
    }


def problem_with(name: str, value: str | None) -> str:
    """What is wrong with setting ``name`` to ``value``; the empty text if nothing is."""
    if name not in _DEFAULTS:
        return f"Unknown topic config name: {name}"
    kind, default = _DEFAULTS[name]
    if value is None:
        return f"Null value not supported for topic configs: {name}"
    if name in _ONLY_DEFAULT and value != default:
        return f"{name}={value} is not supported by this broker; leave it at {default}"
    if name == "cleanup.policy" and not set(value.split(",")) <= _POLICIES:
        return f"Invalid value {value} for configuration {name}: must be delete, compact or both"
    if name == "message.timestamp.type" and value not in _TIMES:
        return f"Invalid value {value} for configuration {name}: must be {' or '.join(_TIMES)}"
    if kind == BOOLEAN and value.lower() not in ("true", "false"):
        return f"Invalid value {value} for configuration {name}: Expected value to be either true or false"
    if kind in (INT, LONG, DOUBLE):
        return _problem_with_number(name, kind, value)
    return ""


def _problem_with_number(name: str, kind: int, value: str) -> str:
    low, high = _LIMITS.get(name, (-(2**63), 2**63 - 1))
    try:
        number = float(value) if kind == DOUBLE else int(value)
    except ValueError:
        return f"Invalid value {value} for configuration {name}: Not a number"
    if not low <= number <= high:
        return f"Invalid value {value} for configuration {name}: Value must be between {low} and {high}"
    return ""
