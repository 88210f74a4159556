"""Values of several kinds: by subjects of their own, and by one subject's union."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from slackwater import columns
from slackwater.pipeline.values import ValueDecoder, decode, make_decoder
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.errors import ConfigError
from tests.support.registry import RegistryServer, registry

ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "int"}]}
PARCEL = {"type": "record", "name": "shop.Parcel", "fields": [{"name": "id", "type": "string"}]}
GROWN = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "x", "type": "int"}]}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry() as running:
        yield running


def written(schema_id: int, schema: Any, row: Any) -> bytes:
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), row)
    return b"\0" + schema_id.to_bytes(4, "big") + output.getvalue()


def made(server: RegistryServer, format_: str = "avro", **of: Any) -> ValueDecoder:
    config = ValueConfig(format_, registry=RegistryConfig((server.url,), **of))
    return make_decoder(config, timeout_ms=2_000, start_timeout_ms=2_000)


def decoded(decoder: ValueDecoder, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    array, rejected = decode(decoder, "value", pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == decoder.type
    return array.to_pylist(), rejected


def test_each_value_is_of_the_kind_whose_subject_has_its_record(server: RegistryServer) -> None:
    order = server.register("orders", json.dumps(ORDER))
    parcel = server.register("parcels", json.dumps(PARCEL))
    other = server.register("o", json.dumps(OTHER))
    plain = server.register("p", '"string"')
    text = server.register("j", "{}", "JSON")
    decoder = made(server, subjects={"order": "orders", "parcel": "parcels"})
    rows, rejected = decoded(
        decoder,
        written(parcel, PARCEL, {"id": "p1"}),
        written(order, ORDER, {"id": 1}),
        None,
        written(other, OTHER, {"x": 1}),
        written(order, ORDER, {"id": 2}),
        written(order, ORDER, {"id": 2}) + b"\0",
        written(plain, "string", "x"),
        b"\0\0",
        b"\0\0\0\0\x63",
        written(text, "string", "x"),
    )
    first, second = {"order": {"id": 1}, "parcel": None}, {"order": {"id": 2}, "parcel": None}
    assert rows == [{"order": None, "parcel": {"id": "p1"}}, first, None, None, second, *[None] * 5]
    assert {at: reason.removeprefix("Avro value: ") for at, reason in rejected.items()} == {
        3: "is Other, and the kinds are shop.Order, shop.Parcel",
        5: "at byte 6: 1 bytes follow the record",
        6: "is no record, and the kinds are shop.Order, shop.Parcel",
        7: "has 2 bytes, and the wire format of the schema registry begins with 5",
        8: "the schema registry does not know the schema id 99",
        9: f"schema id {text} cannot be used: it is of type JSON, not AVRO",
    }
    grown = server.register("orders", json.dumps(GROWN))
    rows, rejected = decoded(decoder, written(grown, GROWN, {"id": 3, "note": "x"}))
    assert (rows, rejected) == ([{"order": {"id": 3, "note": "x"}, "parcel": None}], {})
    assert decoded(decoder) == ([], {})
    decoder.close()


def test_a_subjects_union_has_a_kind_for_each_record(server: RegistryServer) -> None:
    nested = {**PARCEL, "fields": [*PARCEL["fields"], {"name": "order", "type": ["null", "shop.Order"]}]}
    union = [ORDER, "null", nested]
    both = server.register("events", json.dumps(union))
    alone = server.register("orders", json.dumps(ORDER))
    decoder = made(server, subject="events")
    assert [field.name for field in decoder.type] == ["Order", "Parcel"]
    parcel = {"id": "p", "order": {"id": 4}}
    rows, rejected = decoded(
        decoder,
        written(both, union, ("shop.Order", {"id": 1})),
        written(both, union, ("shop.Parcel", parcel)),
        written(both, union, None),
        written(alone, ORDER, {"id": 2}),
        b"\0" + both.to_bytes(4, "big") + b"\x10",
        b"\0" + both.to_bytes(4, "big"),
    )
    order, second = {"Order": {"id": 1}, "Parcel": None}, {"Order": {"id": 2}, "Parcel": None}
    assert rows == [order, {"Order": None, "Parcel": parcel}, None, second, None, None]
    assert sorted(rejected) == [2, 4, 5]


def test_debezium_has_a_kind_for_each_table(server: RegistryServer) -> None:
    def envelope(table: str) -> dict[str, Any]:
        row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
        source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
        fields = {"before": ["null", row], "after": ["null", "Value"], "source": source, "op": "string"}
        of = [{"name": name, "type": kind} for name, kind in fields.items()]
        return {"type": "record", "name": "Envelope", "namespace": f"shop.public.{table}", "fields": of}

    schemas = {table: envelope(table) for table in ("orders", "people")}
    ids = {table: server.register(f"{table}-value", json.dumps(schema)) for table, schema in schemas.items()}
    decoder = made(server, "debezium", subjects={table: f"{table}-value" for table in schemas})
    change = {"before": {"id": 7}, "after": None, "source": {"lsn": 1}, "op": "d"}
    values = pa.array([written(ids["people"], schemas["people"], change), None], pa.binary())
    array, rejected = decode(decoder, "value", values)
    assert (array.to_pylist(), rejected) == (
        [{"orders": None, "people": {"id": 7, "_op": "delete"}}, None],
        {},
    )
    batch = pa.table(
        {"topic": ["a"] * 2, "partition": [0] * 2, "offset": [0, 1], "key": [b""] * 2, "value": array}
    )
    assert columns.changes(batch).column_names == ["topic", "partition", "offset", "orders", "people"]
    assert columns.changes(batch)["offset"].to_pylist() == [0]


@pytest.mark.parametrize(
    ("of", "field", "said"),
    [
        (
            {"subjects": {"a": "orders", "b": "orders"}},
            "value.registry.subjects[b]",
            "shop.Order, which a has",
        ),
        ({"subjects": {"a": "broken"}}, "value.registry.subjects[a]", "cannot be used"),
        ({"subjects": {"a": "events"}}, "value.registry.subjects[a]", "is no record"),
        ({"subjects": {"a": "empty"}}, "value.registry.subjects[a]", "has no fields"),
        ({"subject": "twins"}, "value.registry.subject", "two records Order"),
    ],
)
def test_kinds_that_cannot_be_told_are_named(
    server: RegistryServer, of: dict[str, Any], field: str, said: str
) -> None:
    server.register("orders", json.dumps(ORDER))
    server.register("events", json.dumps([ORDER, PARCEL]))
    server.register("twins", json.dumps([ORDER, {**ORDER, "namespace": "b"}]))
    server.register("broken", "{")
    server.register("empty", json.dumps({**ORDER, "fields": []}))
    with pytest.raises(ConfigError, match=said) as caught:
        made(server, **of)
    assert caught.value.field == field


def test_a_kind_whose_subject_comes_later_is_decoded_from_then_on(server: RegistryServer) -> None:
    """As of a table without changes yet. Until then there is no column of it."""
    decoder = made(server, subjects={"order": "orders", "parcel": "parcels"})
    assert decoded(decoder, None) == ([None], {}), "none of them is there"
    parcel = server.register("parcels", json.dumps(PARCEL))
    value = written(parcel, PARCEL, {"id": "p"})
    assert decoded(decoder, value) == ([{"parcel": {"id": "p"}}], {})
    order = server.register("orders", json.dumps(ORDER))
    rows, rejected = decoded(decoder, value, written(order, ORDER, {"id": 1}))
    assert rejected == {}
    assert rows == [{"order": None, "parcel": {"id": "p"}}, {"order": {"id": 1}, "parcel": None}]
    before = len(server.requests)
    other = server.register("o", json.dumps(OTHER))
    missing = made(server, subjects={"parcel": "parcels", "none": "none"})
    for _ in range(3):
        assert list(decoded(missing, written(other, OTHER, {"x": 1}))[1]) == [0]
    asked = server.requests[before:].count("/subjects/none/versions/latest")
    assert asked == 2, "at the start, and for the first value that is of no kind"
