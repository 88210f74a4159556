"""Which sink a backfill writes to, and whether the live group's rows are in its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from slackwater.runtime.config.pipeline_config import sinks_of
from slackwater.runtime.config.sink_config import name_of, place_of
from slackwater.runtime.config.worker_config import dump, parse
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.handler import OffsetRange
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.config.sink_config import SinkConfig
    from slackwater.runtime.config.worker_config import WorkerConfig

_LISTS = ("partitionBy", "key")
_IDEMPOTENT = ("min", "max")
DEFAULT_ROUTE = "default"
"""In place of a route's number: the sink for rows that no route takes."""


def one_table(config: WorkerConfig, route: str) -> tuple[WorkerConfig, str]:
    """A group's configuration with one of its tables alone, and the section that the table has; "": the group
    has one table.

    Args:
        config: the group's.
        route: the number of a route, or :data:`DEFAULT_ROUTE`; "": the group has no routes.

    Raises:
        ConfigError: there is no such route, none was given of several, or rows name the table.
    """
    sinks = sinks_of(config)
    given = {DEFAULT_ROUTE: "sink"} | {
        f"{number}": f"routes[{number}].sink" for number in range(len(sinks) - 1)
    }
    if (route or DEFAULT_ROUTE) not in given or (config.routes and not route):
        tables = ", ".join(f"{name} ({name_of(sinks[path])})" for name, path in given.items())
        raise ConfigError(
            f"a backfill writes one table: choose it with --route, one of {tables}", field="routes"
        )
    path = given[route or DEFAULT_ROUTE]
    if sinks[path].tables is not None:
        raise ConfigError(
            "rows name their tables, whose marks are not known before: give the backfill a configuration "
            "without it",
            field=f"{path}.tables",
        )
    if config.routes and sinks[path].format == "spark":
        raise ConfigError(
            "executors write format spark, and know no routes: give the backfill a configuration without "
            "them",
            field=f"{path}.format",
        )
    alone = replace(config, sink=replace(sinks[path], max_age_ms=0), routes=())
    return alone, path if config.routes else ""


def config_for(config: WorkerConfig, *, sink: list[str], handler: str = "") -> WorkerConfig:
    """``config`` with another sink and handler.

    Args:
        config: the group's configuration, with one table.
        sink: a YAML file with a ``sink`` section, or ``KEY=VALUE``s which replace fields of the group's sink.
        handler: ``module:function``; "": the group's.

    Raises:
        ConfigError: the new configuration is not valid.
    """
    document = dump(config)
    if handler:
        document["handler"] = handler
    if sink:
        document["sink"] = _section(document["sink"], sink)
    changed = parse(document, "--sink" if sink else "")
    # A backfill chooses the size of its batches itself.
    return replace(changed, sink=replace(changed.sink, max_age_ms=0))


def _section(given: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    files = [text for text in texts if "=" not in text]
    if files and len(texts) > 1:
        raise ConfigError(f"--sink {files[0]} is a file: give it alone, or KEY=VALUE as often as is needed")
    if files:
        return _of_file(Path(files[0]))
    pairs = [text.partition("=")[::2] for text in texts]
    changes = {name.strip(): _value(name.strip(), text) for name, text in pairs}
    kept = dict(given)
    if changes.get("format", given["format"]) != given["format"]:
        kept = {}
    for name, value in changes.items():
        outer, _, inner = name.partition(".")
        if inner:
            kept[outer] = {**kept.get(outer, {}), inner: value}
        else:
            kept[name] = value
    kept.pop("maxAgeMs", None)
    kept.pop("targetFileBytes", None)
    return kept


def _value(name: str, text: str) -> Any:
    if name in _LISTS:
        return [item.strip() for item in text.split(",") if item.strip()]
    if name in ("maxAgeMs", "targetFileBytes"):
        raise ConfigError(f"--sink {name} is not for a backfill; --batch-rows limits what a commit has")
    return text


def _of_file(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror or exc}", file=str(file)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(f"is no YAML: {' '.join(str(exc).split())}", file=str(file)) from None
    section = document.get("sink", document) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(
            "has no sink: write its fields, such as format and path, as in spec.sink", file=str(file)
        )
    return section


def same_target(first: SinkConfig, second: SinkConfig) -> bool:
    """Whether both write to the same table. Options are not compared: they may lead elsewhere, or only log in
    differently."""
    return place_of(first) == place_of(second)


def check_overlap(
    sink: SinkConfig,
    ranges: Mapping[TopicPartition, OffsetRange],
    live: Mapping[TopicPartition, int],
    group_id: str,
) -> None:
    """Raises ConfigError if the live group has written to the table, and may have rows of ``ranges``.

    ``live``: by partition, up to where the live group has written; those that it has not are left out. Since
    it is not known where the group has begun, all before counts.
    """
    if sink.mode == "merge" and all(function in _IDEMPOTENT for function in sink.aggregates.values()):
        return
    both = [tp for tp, span in sorted(ranges.items()) if span.start < min(span.end, live.get(tp, 0))]
    if not both:
        return
    tp = both[0]
    what = {
        "append": "its rows of these records would be there twice",
        "upsert": "older records would replace the rows of newer ones",
        "changes": "older records would bring back rows that newer ones have deleted",
        "merge": "records would be added up twice",
    }[sink.mode]
    raise ConfigError(
        f"the group {group_id} has written {tp} to this table up to offset {live[tp]}, and the backfill "
        f"begins at {ranges[tp].start}: {what}. Write to another table (--sink), end at the "
        "offset where the group began, or remove the group's rows with slackwater rewind. "
        "--allow-overlap writes all the same"
    )
