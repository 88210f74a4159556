"""Which format and mode each field of a sink belongs to, in the worker's file; the resource follows from the
same declaration."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.fields import FieldError, parse_object
from slackwater.runtime.config.sink_config import SinkConfig, check_sink

OUTPUTS = {
    "parquet": {"path": "o"}, "delta": {"path": "o"}, "iceberg": {"table": "a.b"},
    "postgres": {"table": "a.b"}, "custom": {"implementation": "a:b"}, "kafka": {"topic": "o"},
    "spark": {"sparkFormat": "orc"},
}  # fmt: skip
"""By format, what it needs."""
WITH_COLUMNS = {"parquet", "delta", "iceberg", "postgres"}
FIELDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "path": ({"path": "o"}, {"parquet", "delta"}),
    "table": ({"table": "a.b"}, {"iceberg", "postgres"}),
    "implementation": ({"implementation": "a:b"}, {"custom"}),
    "topic": ({"topic": "o"}, {"kafka"}),
    "sparkFormat": ({"sparkFormat": "orc"}, {"spark"}),
    "partitionBy": ({"partitionBy": ["a"]}, {"parquet", "delta", "iceberg", "spark"}),
    "newColumns": ({"newColumns": "reject"}, WITH_COLUMNS),
    "schemaChanges": ({"schemaChanges": ["makeOptional"]}, {"iceberg", "postgres"}),
    "schema": ({"schema": "a INT"}, WITH_COLUMNS),
    "mode": ({"mode": "upsert", "key": ["a"]}, {"delta", "iceberg", "postgres"}),
}
"""By field, how it is given, and the formats that it belongs to."""
MERGE = {"mode": "merge", "key": ["k"], "aggregates": {"n": "sum"}}


def check(section: dict[str, Any]) -> None:
    check_sink(parse_object(SinkConfig, section, "sink", in_file=True))


def fault(sink: dict[str, Any]) -> str:
    """The field at fault; "": the section is taken."""
    try:
        check(sink)
    except FieldError as exc:
        return exc.path.removeprefix("sink.")
    return ""


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("format_", OUTPUTS)
def test_a_field_is_refused_with_a_format_that_it_does_not_belong_to(format_: str, field: str) -> None:
    given, formats = FIELDS[field]
    expected = "" if format_ in formats else field
    assert fault({"format": format_, **OUTPUTS[format_], **given}) == expected


@pytest.mark.parametrize("format_", OUTPUTS)
def test_each_format_needs_its_output(format_: str) -> None:
    (needed,) = OUTPUTS[format_]
    assert fault({"format": format_}) == needed


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (MERGE, ""),
        ({"mode": "upsert"}, "key"),
        ({"key": ["k"]}, "key"),
        ({"mode": "merge", "key": ["k"]}, "aggregates"),
        ({"mode": "changes", "key": ["k"], "version": "v"}, ""),
        ({"mode": "upsert", "key": ["k"], "version": "v"}, "version"),
        ({"mode": "changes", "key": ["k"], "version": "k"}, "version"),
        ({"aggregates": {"n": "sum"}}, "aggregates"),
        ({**MERGE, "aggregates": {"k": "sum"}}, "aggregates"),
        ({**MERGE, "aggregates": {"n": "avg"}}, "aggregates"),
        ({**MERGE, "partitionBy": ["d"]}, "partitionBy"),
        ({**MERGE, "schema": "k INT"}, "schema"),
        ({"mode": "replace"}, "mode"),
        ({"targetFileBytes": 2**27}, "targetFileBytes"),
        ({"maxAgeMs": 1_000, "targetFileBytes": 2**27}, ""),
    ],
)
def test_fields_that_depend_on_each_other(given: dict[str, Any], field: str) -> None:
    assert fault({"format": "delta", "path": "o", **given}) == field


@pytest.mark.parametrize(("path", "field"), [("file:///o", "options"), ("s3://lake/o", "")])
def test_options_of_parquet_are_for_an_object_store(path: str, field: str) -> None:
    assert fault({"format": "parquet", "path": path, "options": {"AWS_REGION": "eu"}}) == field


def test_a_fault_says_which_formats_the_field_belongs_to() -> None:
    with pytest.raises(FieldError, match="requires format parquet, delta, iceberg or spark; remove it"):
        check({"format": "kafka", "topic": "o", "partitionBy": ["a"]})
    with pytest.raises(FieldError, match="is required with format kafka; set it"):
        check({"format": "kafka"})
