"""Where a backfill writes, and when the group's own rows are in its way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slackwater.backfill.target import check_overlap, config_for, one_table, same_target
from slackwater.handler import OffsetRange
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.sink_config import SinkConfig
from slackwater.runtime.config.worker_config import WorkerConfig, dump, parse
from slackwater.runtime.errors import ConfigError

TP = TopicPartition("orders", 0)
DELTA = {
    "format": "delta",
    "path": "/lake/orders",
    "options": {"region": "eu"},
    "mode": "upsert",
    "key": ["id"],
    "maxAgeMs": 5000,
}


def config(**sink: Any) -> WorkerConfig:
    return parse(
        {
            "groupId": "orders",
            "bootstrapServers": "kafka:9092",
            "topics": ["orders"],
            "handler": "orders:transform",
            "sink": sink or DELTA,
        }
    )


def test_fields_of_the_sink_are_replaced() -> None:
    sink = config_for(config(), sink=["path=/lake/old", "options.region=us", "key=id,day"]).sink
    assert sink == SinkConfig(
        "delta", path="/lake/old", options={"region": "us"}, mode="upsert", key=("id", "day")
    )


def test_without_another_sink_the_rows_do_not_wait() -> None:
    changed = config_for(config(), sink=[], handler="orders:second")
    assert (changed.handler, changed.sink.path, changed.sink.max_age_ms) == (
        "orders:second",
        "/lake/orders",
        0,
    )


def test_another_format_begins_anew() -> None:
    sink = config_for(config(), sink=["format=parquet", "path=/data"]).sink
    assert sink == SinkConfig("parquet", path="/data")


@pytest.mark.parametrize(
    "text", ["sink:\n  format: parquet\n  path: /data\n", "{format: parquet, path: /data}"]
)
def test_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sink.yaml"
    file.write_text(text)
    assert config_for(config(), sink=[str(file)]).sink == SinkConfig("parquet", path="/data")


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        (["pth=/data"], "sink.pth: unknown field"),
        (["format=parquet"], "sink.path: is required"),
        (["maxAgeMs=5"], "--sink maxAgeMs is not for a backfill"),
        (["nothing.yaml"], "nothing.yaml: cannot be read"),
        (["a.yaml", "path=/data"], "--sink a.yaml is a file: give it alone"),
    ],
)
def test_what_is_refused(sink: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_for(config(), sink=sink)


def test_the_same_table_whatever_its_options() -> None:
    live = config().sink
    assert same_target(config_for(config(), sink=["options.region=us"]).sink, live)
    assert not same_target(config_for(config(), sink=["path=/lake/other"]).sink, live)


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        (SinkConfig("parquet", path="/data"), "would be there twice"),
        (SinkConfig("delta", path="/data", mode="upsert", key=("id",)), "would replace the rows of newer"),
        (
            SinkConfig("delta", path="/data", mode="merge", key=("id",), aggregates={"n": "sum", "m": "max"}),
            "would be added up twice",
        ),
    ],
)
def test_an_overlap_is_refused(sink: SinkConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        check_overlap(sink, {TP: OffsetRange(10, 20)}, {TP: 11}, "orders")
    assert "the group orders has written orders-0 to this table up to offset 11" in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "live"),
    [
        ({}, {TP: 10}),
        ({}, {}),
        ({"mode": "merge", "key": ("id",), "aggregates": {"first": "min", "last": "max"}}, {TP: 20}),
    ],
)
def test_no_overlap(mode: dict[str, Any], live: dict[TopicPartition, int]) -> None:
    check_overlap(SinkConfig("delta", path="/data", **mode), {TP: OffsetRange(10, 20)}, live, "orders")


def test_an_empty_range_overlaps_nothing() -> None:
    check_overlap(SinkConfig("parquet", path="/data"), {TP: OffsetRange(5, 5)}, {TP: 10}, "orders")


def test_one_table_of_several_is_chosen() -> None:
    table = {"format": "delta", "path": "/lake/parcels"}
    named = {"format": "delta", "path": "/lake/{kind}", "tables": {}}
    orc = {"format": "spark", "sparkFormat": "orc"}
    routes = [{"when": "a = 1", "sink": each} for each in (table, named, orc)]
    several = parse({**dump(config()), "engine": "spark", "routes": routes})
    alone, path = one_table(several, "0")
    assert (alone.sink.path, alone.sink.options, alone.routes, path) == (
        "/lake/parcels",
        {"region": "eu"},
        (),
        "routes[0].sink",
    )
    assert one_table(several, "default")[0].sink == replace(config().sink, max_age_ms=0)
    for route, field in {
        "": "routes",
        "3": "routes",
        "1": "routes[1].sink.tables",
        "2": "routes[2].sink.format",
    }.items():
        with pytest.raises(ConfigError) as caught:
            one_table(several, route)
        assert caught.value.field == field
    assert one_table(config(), "")[1] == ""
    with pytest.raises(ConfigError, match="choose it with --route, one of default"):
        one_table(config(), "0")
