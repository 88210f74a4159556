"""A topic as the sink: records of rows, options, and what is refused; the brokers are the dev broker's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from slackwater.kafka.net.security.settings import PLAIN_TEXT
from slackwater.pipeline.sinks.kafka.limits import Limits
from slackwater.pipeline.sinks.kafka.options import connection_of
from slackwater.pipeline.sinks.kafka.records import records_of
from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError
from tests.support.sinks import rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


# ---- records of rows


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2), pa.string(), pa.large_string(),
        pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)  # fmt: skip
def test_keys_and_values_are_bytes_or_text(kind: pa.DataType) -> None:
    base = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = base in (pa.string(), pa.large_string(), pa.string_view())
    column = pa.array(["ab", None] if text else [b"ab", None], base)
    if base is not kind:
        column = column.dictionary_encode().cast(kind)
    assert records_of(pa.table({"key": column, "value": column})) == [(b"ab", b"ab", []), (None, None, [])]


def test_a_column_without_a_type_is_of_nulls() -> None:
    table = pa.table({"key": pa.nulls(2), "value": ["x", "y"], "headers": pa.nulls(2)})
    assert records_of(table) == [(None, b"x", []), (None, b"y", [])]
    assert records_of(pa.table({"value": ["é"]})) == [(None, "é".encode(), [])]


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS,
        pa.large_list(pa.struct([("value", pa.string()), ("key", pa.large_string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=["as the input", "large", "a map"],
)
@pytest.mark.parametrize("sliced", [False, True])
def test_headers_are_a_list_or_a_map(kind: pa.DataType, sliced: bool) -> None:
    """Also of a part of a batch, whose lists do not begin at 0."""
    own: list[list[tuple[str, str | None]] | None] = [
        [("x", "9")],
        [("a", "1"), ("a", None)],
        None,
        [],
        [("b", "")],
    ]
    if pa.types.is_map(kind):
        values: list[Any] = own
    else:
        values = [
            None if headers is None else [{"key": k, "value": v} for k, v in headers] for headers in own
        ]
    table = pa.table({"value": ["v"] * 5, "headers": pa.array(values, kind)})
    expected: list[list[tuple[str, bytes | None]]] = [
        [("x", b"9")], [("a", b"1"), ("a", None)], [], [], [("b", b"")],
    ]  # fmt: skip
    if sliced:
        table, expected = table.slice(1), expected[1:]
    assert [headers for _, _, headers in records_of(table)] == expected
    chunks = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    assert [headers for _, _, headers in records_of(chunks)] == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": ["a"]}, r"must have the column value for format kafka \(it has: key\)"),
        ({"value": [1]}, "the column value of the handler's result is int64, not bytes or text"),
        ({"value": ["a"], "key": [1.5]}, "the column key of the handler's result is double, not bytes or"),
        ({"value": ["a"], "headers": ["a"]}, "the column headers of the handler's result is string, not a"),
        ({"value": ["a"], "headers": [["a"]]}, "the column headers .* is list<item: string>, not a list of"),
        ({"value": ["a"], "headers": [[{"key": "a"}]]}, "the column headers .* not a list of structs with"),
        ({"value": ["a"], "headers": [[{"key": 1, "value": b""}]]}, "the column headers .* not a list of"),
        ({"value": ["a"], "headers": [[{"key": "a", "value": 1}]]}, "the column headers .* is int64, not a"),
    ],
)  # fmt: skip
def test_other_columns_are_the_handlers_fault(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(HandlerError, match=message) as raised:
        records_of(pa.table(columns))
    assert not isinstance(raised.value, RecordsError)


@pytest.mark.parametrize("header", [{"key": None, "value": b""}, None])
def test_a_header_without_a_name_is_the_records_fault(header: dict[str, Any] | None) -> None:
    with pytest.raises(RecordsError, match="a header without a name"):
        records_of(pa.table({"value": ["a"], "headers": pa.array([[header]], HEADERS)}))


def test_a_batch_without_rows_needs_no_columns() -> None:
    assert records_of(pa.table({"a": pa.array([], pa.int64())})) == []


def limits(codec: str = "none", request: int = 10_000, batch: int | None = 300, keys: bool = False) -> Limits:
    return Limits(codec, request, batch, needs_keys=keys)


def test_the_size_of_a_record_is_that_of_its_batch_after_compression() -> None:
    table = rows([7])
    limits().check([(b"k", b"v" * 200, [])], table, "out")
    limits(batch=None).check([(b"k", b"v" * 5000, [])], table, "out")
    limits("lz4").check([(b"k", b"v" * 5000, [])], table, "out")
    message = (
        "^the sink cannot write the row of flights-0 offset 7 to the topic out: 3.. bytes are more than its"
    )
    with pytest.raises(RecordsError, match=message):
        limits().check([(b"k", b"v" * 250, [])], table, "out")
    with pytest.raises(RecordsError, match="larger than max.request.size or buffer.memory .*(10000)"):
        limits("lz4").check([(b"k", b"v" * 10_000, [])], table, "out")


def test_a_compacted_topic_needs_keys() -> None:
    limits(keys=True).check([(b"", b"v", [])], rows([7]), "out")
    with pytest.raises(
        RecordsError, match="offset 7 to the topic out: it has no key, which a compacted topic"
    ):
        limits(keys=True).check([(None, b"v", [])], rows([7]), "out")


# ---- options


def test_options_are_the_groups_unless_they_say_otherwise() -> None:
    own = connection_of({}, "a:1", PLAIN_TEXT)
    assert (own.bootstrap_servers, own.security, own.is_other) == ("a:1", PLAIN_TEXT, False)
    config = own.producer_config()
    assert (config.required_acks, config.enable_idempotence, config.allow_auto_create_topics) == (
        -1,
        True,
        False,
    )
    other = connection_of(
        {
            "bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
            "sasl.username.file": "/u", "sasl.password.file": "/p", "linger.ms": "7",
            "compression.type": "zstd", "max.request.size": "2000",
        },
        "a:1",
        PLAIN_TEXT,
    )  # fmt: skip
    assert (other.bootstrap_servers, other.is_other, other.max_request_bytes) == ("b:1", True, 2000)
    assert (other.security.protocol, other.security.username_file) == ("SASL_SSL", "/u")
    assert other.security.retry_refused, "files are rotated"
    assert (other.producer_config().linger_ms, other.producer_config().codec) == (7, "zstd")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": "1"}, r"^sink\.options\.acks: cannot be set: records are acknowledged by all"),
        ({"enable.idempotence": "false"}, "cannot be set: the producer is idempotent"),
        ({"transactional.id": "x"}, "cannot be set: transactions are not supported"),
        (
            {"linger": "1"},
            r"^sink\.options\.linger: is not an option of this sink; did you mean linger\.ms\?",
        ),
        ({"a": "1"}, "is not an option of this sink; supported are bootstrap.servers, batch.size, "),
        ({"linger.ms": "soon"}, r"^sink\.options\.linger\.ms: must be a whole number, not 'soon'"),
        ({"linger.ms": "-1"}, r"^sink\.options: linger_ms=-1"),
        ({"compression.type": "rar"}, r"^sink\.options: compression_type='rar': write one of"),
        ({"security.protocol": "SASL_SSL"}, r"^sink\.options: .*sasl\.mechanism"),
        ({"ssl.nothing": "x"}, r"^sink\.options: ssl\.nothing is not a connection option"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        connection_of(options, "a:1", PLAIN_TEXT)


# ---- the topic
