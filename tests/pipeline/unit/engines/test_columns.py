"""The rows of a pipeline without a handler."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater import columns
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError, HandlerError
from slackwater.testing import record, run

VALUE = {"format": "json", "schema": "name STRING, city STRING"}
KEY = {"format": "json", "schema": "id BIGINT, city STRING"}


def made(
    handler: Any, *contents: tuple[Any, Any], value: Any = VALUE, key: Any = KEY
) -> list[dict[str, Any]]:
    records = [record(content, key=of_key) for of_key, content in contents]
    result: list[dict[str, Any]] = run(handler, records, "arrow", value=value, key=key).to_pylist()
    return [{name: item for name, item in row.items() if name not in columns.PLACE} for row in result]


def test_the_fields_of_key_and_value_are_the_row() -> None:
    given = ({"id": 7, "city": "Bonn"}, {"name": "Ann", "city": "Ulm"})
    assert made(columns.rows, given, ({"id": 8, "city": "Bonn"}, None), (None, {"name": "Bo"})) == [
        {"id": 7, "city": "Ulm", "name": "Ann"},
        {"id": 8, "city": "Bonn", "name": None},
        {"id": None, "city": None, "name": "Bo"},
    ]
    assert made(columns.rows, (b"bytes", {"name": "Ann"}), key=None) == [{"name": "Ann", "city": None}]


def test_a_record_without_a_value_deletes_its_key() -> None:
    assert made(columns.changes, ({"id": 7}, {"name": "Ann"}), ({"id": 7}, None)) == [
        {"id": 7, "city": None, "name": "Ann", "_op": "upsert"},
        {"id": 7, "city": None, "name": None, "_op": "delete"},
    ]


@pytest.mark.parametrize(
    ("value", "key", "said"),
    [
        (None, KEY, "the value is binary: set spec.pipeline.value"),
        ({"format": "json", "schema": "offset INT"}, None, "the value has a field offset"),
        (VALUE, {"format": "json", "schema": "topic STRING"}, "the key has a field topic"),
    ],
)
def test_what_makes_no_row_is_said_before_the_first_record(value: Any, key: Any, said: str) -> None:
    with pytest.raises(HandlerError, match=said):
        made(columns.rows, (None, None), value=value, key=key)


@pytest.mark.parametrize(
    ("given", "handler"),
    [
        ({}, "slackwater.columns:rows"),
        (
            {"sink": {"format": "delta", "path": "/x", "mode": "upsert", "key": ["id"]}},
            "slackwater.columns:rows",
        ),
        (
            {"sink": {"format": "delta", "path": "/x", "mode": "changes", "key": ["id"]}},
            "slackwater.columns:changes",
        ),
        ({"handler": "a:b", "engine": "python", "value": None}, "a:b"),
        ({"engine": "python"}, None),
        ({"value": None}, None),
    ],
)
def test_the_handler_of_a_pipeline_without_one(given: dict[str, Any], handler: str | None) -> None:
    sink = {"format": "parquet", "path": "/x"}
    document = {
        "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "engine": "arrow", "value": VALUE,
        "sink": sink, **given,
    }  # fmt: skip
    document = {name: item for name, item in document.items() if item is not None}
    if handler is None:
        with pytest.raises(ConfigError) as error:
            parse(document)
        assert error.value.field == "handler"
    else:
        assert parse(document).handler == handler
