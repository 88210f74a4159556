"""The format ``debezium``: changes of the rows of a database, as Debezium's connectors write them in JSON.

A value is an envelope: ``op`` (c, r and u: the row is there now; d: it is gone), ``after``, ``before`` and
``source``, with or without Kafka Connect's schema around it (``schemas.enable``). A key is the columns of the
primary key. Seen with Debezium 3.6's connector for PostgreSQL.

Connect's schema says how a column is encoded. Without it a date is days since 1970, a ``TIMESTAMP`` text, a
``TIMESTAMP_NTZ`` a number of the unit that the configuration names, and a decimal the bytes of its digits.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.pipeline.values import ddl
from slackwater.pipeline.values.json import JsonDecoder
from slackwater.pipeline.values.json_rows import DAYS, UNSCALED, encoded, nested_beyond
from slackwater.pipeline.values.settings import schema_text
from slackwater.pipeline.values.types import nullable
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.runtime.config.value_config import ValueConfig

OP = "_op"
"""The field that says what became of the row: ``upsert`` or ``delete``."""
_OPS = ("c", "r", "u", "d")
_UNAVAILABLE = (b"__debezium_unavailable_value", b"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1Z")
"""What stands for a column that the source did not send, as text and as bytes in base64."""
_NOT_SENT = (
    "Debezium value: a column is not in the change (__debezium_unavailable_value), as a large one of "
    "PostgreSQL that has not changed: set REPLICA IDENTITY FULL for the table"
)
_SCHEMA, _PAYLOAD = b'{"schema":', b',"payload":'
_MOST_SCHEMAS, _MOST_BYTES = 100, 1 << 20
"""That are kept, and how large each may be."""
_SCALE = re.compile(r"-?\d{1,3}", re.ASCII)
_UNITS = {
    "io.debezium.time.Timestamp": "milliseconds",
    "io.debezium.time.MicroTimestamp": "microseconds",
    "io.debezium.time.NanoTimestamp": "nanoseconds",
    "org.apache.kafka.connect.data.Timestamp": "milliseconds",
}
_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def debezium_decoder(config: ValueConfig, column: str) -> DebeziumDecoder:
    """The decoder of values, or of keys (``column``). Raises ConfigError for a schema that cannot be used."""
    text, field = schema_text(config)
    try:
        row = ddl.parse(text)
    except ddl.SchemaTextError as exc:
        raise ConfigError(str(exc), field=field) from None
    try:
        source = ddl.parse(config.source) if config.source else pa.struct([])
    except ddl.SchemaTextError as exc:
        raise ConfigError(str(exc), field="value.source") from None
    names = [field.name for field in (*row, *([] if column == "key" else _own(source)))]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"would give the handler two fields {twice[0]}: leave one out", field=field)
    return DebeziumDecoder(row, source, config.timestamp_unit, is_key=column == "key")


class DebeziumDecoder:
    """Decodes envelopes as structs with the fields of ``row``, then ``_op``, then those of ``source``, each
    with an underscore before its name; keys as ``row`` alone.

    ``unit``: what a number in a ``TIMESTAMP_NTZ`` counts, where no schema says it; None: it is rejected.
    """

    def __init__(
        self, row: pa.StructType, source: pa.StructType, unit: str | None, *, is_key: bool = False
    ) -> None:
        self._row, self._source, self._unit, self._is_key = row, source, unit, is_key
        self.type: pa.StructType = nullable(pa.struct([*row, *([] if is_key else _own(source))]))
        self._plain = self._decoder({})
        self._by_schema: OrderedDict[bytes, JsonDecoder] = OrderedDict()
        """By the bytes before the payload."""

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        rejected: dict[int, str] = {}
        groups: dict[int, tuple[JsonDecoder, list[int], list[bytes | None]]] = {}
        for at, value in enumerate(values.to_pylist()):
            if value is not None and any(mark in value for mark in _UNAVAILABLE):
                rejected[at], value = _NOT_SENT, None
            decoder, payload = (self._plain, None) if value is None else self._split(value)
            _, places, payloads = groups.setdefault(id(decoder), (decoder, [], []))
            places.append(at)
            payloads.append(payload)
        parts, order = [], []
        for decoder, places, payloads in groups.values():
            made, refused = decoder.decode(pa.array(payloads, pa.binary()))
            refused = dict(refused)
            parts.append(made if self._is_key else self._unwrapped(made, refused))
            rejected |= {places[at]: reason for at, reason in refused.items()}
            order += places
        if not parts:
            return pa.array([], self.type), rejected
        indices = pa.array(sorted(range(len(order)), key=order.__getitem__), pa.int64())
        return pa.concat_arrays(parts).take(indices), rejected

    def close(self) -> None:
        """There is nothing to close."""

    def _split(self, value: bytes) -> tuple[JsonDecoder, bytes]:
        """The decoder for a value, and what it is to decode."""
        content = value.strip()
        if not content.startswith(_SCHEMA) or not content.endswith(b"}"):
            return self._plain, value
        for before, decoder in self._by_schema.items():
            if content.startswith(before):
                return decoder, content[len(before) : -1]
        if nested_beyond(content) is not None:
            return self._plain, value
        try:
            text = content.decode()
            schema, end = json.JSONDecoder().raw_decode(text, len(_SCHEMA))
        except ValueError:
            return self._plain, value
        before = text[:end].encode() + _PAYLOAD
        if not content.startswith(before):
            return self._plain, value
        decoder = self._decoder(_columns(schema, self._is_key))
        if len(before) <= _MOST_BYTES:
            while len(self._by_schema) >= _MOST_SCHEMAS:
                self._by_schema.popitem(last=False)
            self._by_schema[before] = decoder
        return decoder, content[len(before) : -1]

    def _decoder(self, columns: Mapping[str, Mapping[str, Any]]) -> JsonDecoder:
        """``columns``: what Connect's schema says of each; empty: there is none."""
        row = pa.struct([self._encoded(field, columns.get(field.name)) for field in self._row])
        if self._is_key:
            return JsonDecoder(row)
        # Of a row that is gone a source may send the key alone.
        before = pa.struct([field.with_nullable(True) for field in row])
        envelope = [
            pa.field("op", pa.string(), nullable=False),
            pa.field("before", before),
            pa.field("after", row),
            pa.field("source", self._source if self._source.num_fields else pa.struct([("db", pa.string())])),
        ]
        return JsonDecoder(pa.struct(envelope))

    def _encoded(self, field: pa.Field, column: Mapping[str, Any] | None) -> pa.Field:
        kind, name = field.type, "" if column is None else str(column.get("name") or "")
        if pa.types.is_decimal(kind):
            parameters = None if column is None else column.get("parameters")
            scale = str(parameters.get("scale")) if isinstance(parameters, dict) else ""
            has_scale = name == _DECIMAL and _SCALE.fullmatch(scale) is not None
            return encoded(field, f"{UNSCALED}:{scale}" if has_scale else UNSCALED)
        if pa.types.is_date(kind) and (column is None or name in _DATES):
            return encoded(field, DAYS)
        if pa.types.is_timestamp(kind):
            unit = _UNITS.get(name) if column is not None else self._unit if kind.tz is None else None
            return field if unit is None else encoded(field, unit)
        return field

    def _unwrapped(self, made: pa.StructArray, refused: dict[int, str]) -> pa.StructArray:
        """The rows of envelopes. Adds to ``refused`` those that have none."""
        op, before, after, source = made.flatten()
        is_other = pc.and_(made.is_valid(), pc.invert(pc.is_in(op, pa.array(_OPS))))
        for at in pc.indices_nonzero(is_other).to_pylist():
            refused[at] = f"Debezium value: op {str(op[at])[:20]!r} is no change of a row"
        is_gone = pc.fill_null(pc.equal(op, "d"), False)
        row = _chosen(is_gone, before, after)
        for at in pc.indices_nonzero(pc.and_(made.is_valid(), row.is_null())).to_pylist():
            if at not in refused:
                lacks = "before" if is_gone[at].as_py() else "after"
                refused[at] = f"Debezium value: a change with op {op[at]} has no {lacks}"
        operations = pc.if_else(is_gone, "delete", "upsert")
        own = [operations, *(source.flatten() if self._source.num_fields else [])]
        is_refused = pc.is_in(pa.array(range(len(made)), pa.int64()), pa.array(sorted(refused), pa.int64()))
        mask = pc.or_(made.is_null(), is_refused)
        columns = [*row.flatten(), *own]
        return pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, self.type, strict=True)],
            fields=list(self.type),
            mask=mask,
        )


def _chosen(mask: pa.BooleanArray, yes: pa.Array, no: pa.Array) -> pa.Array:
    """``yes`` where ``mask`` is true, else ``no``; for any type."""
    places = pa.array(range(len(mask)), pa.int64())
    both = pa.concat_arrays([no, yes.cast(no.type)])
    return both.take(pc.if_else(mask, pc.add(places, len(mask)), places))


def _own(source: pa.StructType) -> list[pa.Field]:
    """The fields beside the row."""
    return [pa.field(OP, pa.string()), *(field.with_name(f"_{field.name}") for field in source)]


def _columns(schema: Any, is_key: bool) -> dict[str, dict[str, Any]]:
    """What Connect's schema of an envelope, or of a key, says of each column; empty where it says nothing."""

    def fields(of: Any) -> list[dict[str, Any]]:
        given = of.get("fields") if isinstance(of, dict) else None
        return [field for field in given or [] if isinstance(field, dict)]

    parts = [schema] if is_key else [field for field in fields(schema) if field.get("field") == "after"]
    return {str(field.get("field")): field for part in parts for field in fields(part)}
