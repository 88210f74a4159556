"""The worker's page for people, ``GET /``: its assignment, offsets, lag, rebalances and settings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slackwater.fields import camel_case
from slackwater.runtime.telemetry.html import (
    Cell,
    Section,
    Text,
    facts,
    page,
    paragraphs,
    table,
)
from slackwater.times import age, ago, duration, moment

if TYPE_CHECKING:
    from slackwater.runtime.config.worker_config import WorkerConfig

_TONES = {"running": "well", "failed": "bad", "stopped": "dim"}
_KINDS = {
    "joined": "rebalance",
    "follow_up": "second half of a cooperative rebalance",
    "returned": "return without a rebalance",
}
_SECRET = re.compile("secret|password|token|access[.]?key|credential|jaas", re.IGNORECASE)
"""Settings of these names are not shown; the first four as in Spark's ``spark.redaction.regex``."""


def worker_page(status: Mapping[str, Any], config: WorkerConfig, now_ms: int) -> bytes:
    """The page. ``status``: the document of /status. ``now_ms``: wall clock."""
    phase = str(status["phase"])
    since_ms = status["running_since_ms"] or status["waiting_since_ms"]
    lasting = f" for {age(since_ms, now_ms)}" if since_ms else ""
    lead: list[Text | str] = [
        Text(f"{phase}{lasting}", _TONES.get(phase, "busy")),
        f"Consumer group {status['group']}, pod {status['pod']}, {_membership(status)}",
        *([Text(str(status["error"]), "bad")] if status["error"] else []),
    ]
    sections = [
        *_stopped(status, now_ms),
        _records(status, now_ms),
        _partitions(status),
        _rebalances(status, now_ms),
        *_last_restart(status),
        *_last_takeover(status, now_ms),
        *_skipped(status, now_ms),
        facts("Settings in force", dict(_settings(replace(config, properties=config.consumer_properties)))),
        paragraphs("For programs", [Text(path, link=path) for path in ("/status", "/metrics", "/readyz")]),
    ]
    return page(str(status["instance"]), lead, sections, now_ms)


def _membership(status: Mapping[str, Any]) -> str:
    if status["generation"] < 0:
        return "not in the group"
    return f"generation {status['generation']}{', leader' if status['is_leader'] else ''}"


def _records(status: Mapping[str, Any], now_ms: int) -> Section:
    counts, last = status["counts"], status["last_batch"]
    batch: dict[str, Cell] = {"Last batch": Text("none", "dim")}
    if last is not None:
        phases = (f"{phase} {duration(ms)}" for phase, ms in last["ms"].items() if ms >= 1)
        batch = {
            "Last batch": f"{last['records']:,} records, {last['rows']:,} rows, "
            f"{last['dead_letters']:,} dead letters, {ago(last['at_ms'], now_ms)}",
            "Its time by phase": ", ".join(phases) or "less than 1 ms each",
        }
    return facts(
        "Records",
        {
            "Committed a second, in the last minute": f"{status['records_per_second']:,}",
            "Committed since the process began": counts["records"],
            "Dead letters of these": counts["dead_letters"],
            "Calls of the handler that raised": counts["handler_failures"],
            **batch,
        },
    )


def _partitions(status: Mapping[str, Any]) -> Section:
    rows: list[list[Cell]] = []
    for topic, partition in status["assignment"]:
        name = f"{topic}-{partition}"
        start, end = status["in_flight"].get(name, (0, 0))
        rows.append(
            [
                topic,
                partition,
                status["committed"].get(name),
                status["lag"].get(name),
                f"{start:,} to {end - 1:,} ({end - start:,})" if end > start else Text("nothing", "dim"),
            ]
        )
    lags = [lag for lag in status["lag"].values() if lag is not None]
    heading = f"Partitions: {len(rows)}, lag {sum(lags):,}" if lags else f"Partitions: {len(rows)}"
    return table(heading, ("Topic", "Partition", "Committed offset", "Lag", "In flight: offsets"), rows)


def _rebalances(status: Mapping[str, Any], now_ms: int) -> Section:
    last = status["rebalance"]
    rows: list[list[Cell]] = []
    if last is not None and last["ended_ms"] is None:
        rows.append([ago(last["started_ms"], now_ms), None, Text("in progress", "busy"), ""])
    rows += [
        [ago(join["at_ms"], now_ms), join["generation"], _KINDS[join["kind"]], join["reason"]]
        for join in reversed(status["joins"])
    ]
    return table("Rebalances, latest first", ("When", "Generation", "What", "Why this worker joined"), rows)


def _last_restart(status: Mapping[str, Any]) -> Iterator[Section]:
    gap = status["last_gap"]
    if gap is not None:
        pause, session = duration(gap["gap_ms"]), duration(gap["session_timeout_ms"])
        text = f"Longest pause of a partition: {gap['partition']}, {pause}. The session timeout is {session}."
        yield paragraphs("Last restart", [text])


def _last_takeover(status: Mapping[str, Any], now_ms: int) -> Iterator[Section]:
    takeover = status["takeover"]
    if takeover is not None:
        yield facts(
            "Last takeover",
            {name: _moment_or_value(name, value, now_ms) for name, value in takeover.items()},
        )


def _moment_or_value(name: str, value: Any, now_ms: int) -> Cell:
    if isinstance(value, int) and not isinstance(value, bool) and value > now_ms // 2:
        return moment(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return None if value is None else str(value)


def _stopped(status: Mapping[str, Any], now_ms: int) -> Iterator[Section]:
    if status["stopped"]:
        yield table(
            "Partitions that are not read any more",
            ("Partition", "Since", "Reason", "What happened, and what to do"),
            [
                [why["partition"], ago(why["since_ms"], now_ms), Text(why["reason"], "bad"), why["message"]]
                for why in status["stopped"]
            ],
        )


def _skipped(status: Mapping[str, Any], now_ms: int) -> Iterator[Section]:
    if status["skipped"]:
        yield table(
            "Records that Kafka deleted before they were read",
            ("When", "Partition", "From offset", "To offset (not included)", "Cause"),
            [
                [ago(skip["at_ms"], now_ms), skip["partition"], skip["from"], skip["to"], skip["cause"]]
                for skip in reversed(status["skipped"])
            ],
        )


def _settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Cell]]:
    """The fields of a configuration that are set, as its file names them, defaults included; no secrets."""
    for field in dataclasses.fields(config):
        name = prefix + camel_case(field.name)
        value = getattr(config, field.name)
        if not field.repr:
            yield from ((f"{name}.{key}", Text("not shown", "dim")) for key in value)
        elif dataclasses.is_dataclass(value):
            yield from _settings(value, f"{name}.")
        elif isinstance(value, Mapping):
            for key, item in value.items():
                hidden = _SECRET.search(str(key)) is not None
                yield f"{name}.{key}", Text("not shown", "dim") if hidden else str(item)
        elif isinstance(value, tuple) and value:
            yield name, ", ".join(map(str, value))
        elif value not in (None, ""):
            yield name, str(value)
