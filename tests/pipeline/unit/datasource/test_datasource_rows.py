"""Rows of a query: the columns that were asked for, in Spark's types, and decoded values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from slackwater.kafka.records import BatchBuilder, RecordColumns, concat, decode
from slackwater.pipeline.datasource import rows
from slackwater.pipeline.datasource.options import OptionError
from slackwater.pipeline.datasource.schema import arrow_schema, check_schema, spark_schema
from slackwater.pipeline.datasource.values import decoded_type, opened_decoder
from slackwater.runtime.config.value_config import ValueConfig
from tests.pipeline.unit.datasource.fakes import ORDERS

_, TP = ORDERS
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
LOG_APPEND_TIME = 8


def columns(
    *values: bytes | None, base: int = 0, headers: bool = False, appended: bool = False
) -> RecordColumns:
    builder = BatchBuilder("none", 1_000_000)
    for number, value in enumerate(values, base):
        own = [("h", b"%d" % number), ("n", None)] if headers and number % 2 else []
        assert builder.append(1_500 + number, b"k" if number % 2 else None, value, own)
    data = bytearray(builder.build(base_offset=base))
    if appended:  # the bit that a broker sets in the batch's attributes
        data[22] |= LOG_APPEND_TIME
    return decode(data, fetch_offset=base, check_crc=False)


def made(given: RecordColumns, names: tuple[str, ...] = ALL, **decoded: ValueConfig) -> list[dict[str, Any]]:
    types = {column: decoded_type(column, config) for column, config in decoded.items()}
    schema = arrow_schema(spark_schema(names, types))
    decoders = {column: opened_decoder(column, config, schema) for column, config in decoded.items()}
    table = pa.Table.from_batches(rows.batches(given, TP, schema, decoders), schema)
    return table.to_pylist()  # type: ignore[no-any-return]


def test_each_column_is_that_of_sparks_kafka_source() -> None:
    schema = spark_schema(ALL, {})
    assert schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = made(columns(b"a", None, headers=True))
    assert first == {
        "key": None,
        "value": b"a",
        "topic": "orders",
        "partition": 1,
        "offset": 0,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        "timestampType": 0,
        "headers": None,
    }
    assert second["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert (second["key"], second["value"], second["offset"]) == (b"k", None, 1)


def test_the_kind_of_a_time_may_change_within_a_piece() -> None:
    both = concat([columns(b"a", b"b"), columns(b"c", base=2, appended=True)])
    assert [row["timestampType"] for row in made(both)] == [0, 0, 1]
    assert [row["timestampType"] for row in made(both.slice(1, 2))] == [0]


def test_only_the_columns_that_were_asked_for_in_their_order() -> None:
    assert made(columns(b"a"), ("offset", "value")) == [{"offset": 0, "value": b"a"}]
    assert list(made(columns(b"a"), ("offset", "value"))[0]) == ["offset", "value"]


def test_large_pieces_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BATCH_BYTES", 10_000)
    given = columns(*[b"x" * 900] * 50)
    made_batches = list(rows.batches(given, TP, arrow_schema(spark_schema(("value",), {})), {}))
    assert sum(batch.num_rows for batch in made_batches) == 50
    assert 5 <= len(made_batches) <= 6
    assert all(batch.num_rows for batch in made_batches)


def test_what_arrow_cannot_hold_in_one_batch_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows.column

    def limited(given: RecordColumns, *place: Any) -> pa.Array:
        if len(given) > 3:
            raise OverflowError
        return whole(given, *place)

    monkeypatch.setattr(rows, "column", limited)
    assert [row["offset"] for row in made(columns(*[b"x"] * 10))] == list(range(10))


def test_decoded_values_and_their_errors() -> None:
    value = ValueConfig("json", schema="n INT, tags ARRAY<STRING>, at TIMESTAMP, m MAP<STRING, BIGINT>")
    full = b'{"n": 1, "tags": ["a", null], "at": "1970-01-01T00:00:02Z", "m": {"k": 2}}'
    first, second, third = made(columns(full, None, b'{"n": "x"}'), ("offset", "value"), value=value)
    assert first["value"]["at"] == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert (first["value"]["n"], first["value"]["tags"], first["value"]["m"]) == (1, ["a", None], [("k", 2)])
    assert (first["_error"], second) == (None, {"offset": 1, "value": None, "_error": None})
    assert third["value"] is None
    assert third["_error"] == "JSON value: field n: must be a whole number, not text"
    key = ValueConfig("json", schema="id INT")
    _, keyed, both = made(columns(full, None, b"x"), ("key", "offset", "value"), key=key, value=value)
    assert keyed["_error"] == "JSON key: is not JSON at byte 0: Expecting value"
    assert both == {
        "key": None,
        "offset": 2,
        "value": None,
        "_error": "JSON value: is not JSON at byte 0: Expecting value",
    }


def test_a_schema_that_cannot_be_used_names_the_option() -> None:
    with pytest.raises(OptionError, match='"value.schema" cannot be used: at position 3: .*INTT'):
        decoded_type("value", ValueConfig("json", schema="n INTT"))
    with pytest.raises(OptionError, match='"key.schema" cannot be used: at position 3: .*INTT'):
        decoded_type("key", ValueConfig("json", schema="n INTT"))


def test_a_schema_that_has_changed_since_the_planning() -> None:
    kind = decoded_type("value", ValueConfig("json", schema="n INT"))
    planned = arrow_schema(spark_schema(("value",), {"value": kind}))
    with pytest.raises(OptionError, match="latest schema has changed since the query was planned"):
        opened_decoder("value", ValueConfig("json", schema="n INT, m INT"), planned)


def test_a_schema_of_the_users_is_refused() -> None:
    own = spark_schema(("key", "offset"), {})
    check_schema(spark_schema(("key", "offset"), {}), own)
    with pytest.raises(OptionError, match=r'"schema" cannot be set: the schema is struct<key:binary,offset:'):
        check_schema(spark_schema(("key",), {}), own)
