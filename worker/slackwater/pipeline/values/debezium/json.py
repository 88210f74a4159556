"""Changes in JSON, with or without Kafka Connect's schema around each (``schemas.enable``). A key is the
columns of the primary key. Seen with Debezium 3.6's connector for PostgreSQL.

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

from slackwater.pipeline.values import ddl
from slackwater.pipeline.values.debezium.envelope import (
    NOT_SENT,
    lacks_a_column,
    source_fields,
    unwrapped,
    with_own_fields,
)
from slackwater.pipeline.values.json import JsonDecoder
from slackwater.pipeline.values.json_rows import DAYS, UNSCALED, encoded, nested_beyond
from slackwater.pipeline.values.settings import schema_text
from slackwater.pipeline.values.types import nullable
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.runtime.config.value_config import ValueConfig

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


def json_decoder(config: ValueConfig, column: str) -> DebeziumJsonDecoder:
    """The decoder of values, or of keys (``column``). Raises ConfigError for a schema that cannot be used."""
    text, field = schema_text(config)
    try:
        row = ddl.parse(text)
    except ddl.SchemaTextError as exc:
        raise ConfigError(str(exc), field=field) from None
    source, is_key = source_fields(config), column == "key"
    made = row if is_key else with_own_fields(row, source, field)
    return DebeziumJsonDecoder(row, source, made, config.timestamp_unit, is_key=is_key)


class DebeziumJsonDecoder:
    """Decodes envelopes with the fields of ``row`` and ``source`` as ``made``, keys as ``row`` alone.

    ``unit``: what a number in a ``TIMESTAMP_NTZ`` counts, where no schema says it; None: it is rejected.
    """

    def __init__(
        self,
        row: pa.StructType,
        source: pa.StructType,
        made: pa.StructType,
        unit: str | None,
        *,
        is_key: bool = False,
    ) -> None:
        self._row, self._source, self._unit, self._is_key = row, source, unit, is_key
        self.type: pa.StructType = nullable(made)
        self._plain = self._decoder({})
        self._by_schema: OrderedDict[bytes, JsonDecoder] = OrderedDict()
        """By the bytes before the payload."""

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        rejected: dict[int, str] = {}
        groups: dict[int, tuple[JsonDecoder, list[int], list[bytes | None]]] = {}
        for at, value in enumerate(values.to_pylist()):
            if value is not None and lacks_a_column(value):
                rejected[at], value = NOT_SENT, None
            decoder, payload = (self._plain, None) if value is None else self._split(value)
            _, places, payloads = groups.setdefault(id(decoder), (decoder, [], []))
            places.append(at)
            payloads.append(payload)
        parts, order = [], []
        for decoder, places, payloads in groups.values():
            made, refused = decoder.decode(pa.array(payloads, pa.binary()))
            refused = dict(refused)
            parts.append(made if self._is_key else unwrapped(made, self.type, refused))
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


def _columns(schema: Any, is_key: bool) -> dict[str, dict[str, Any]]:
    """What Connect's schema of an envelope, or of a key, says of each column; empty where it says nothing."""

    def fields(of: Any) -> list[dict[str, Any]]:
        given = of.get("fields") if isinstance(of, dict) else None
        return [field for field in given or [] if isinstance(field, dict)]

    parts = [schema] if is_key else [field for field in fields(schema) if field.get("field") == "after"]
    return {str(field.get("field")): field for part in parts for field in fields(part)}
