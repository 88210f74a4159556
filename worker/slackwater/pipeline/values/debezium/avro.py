"""Changes in Avro, with the schemas that Kafka Connect has registered. Their ``connect.name`` says how a
column is encoded. Seen with Debezium 3.6's connector for PostgreSQL and Apicurio's converter 2.6.

The row has the columns of the subject's schema, so one that the source adds comes by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from slackwater import extras
from slackwater.pipeline.growth import Growth, takes
from slackwater.pipeline.values import avro_schema
from slackwater.pipeline.values.avro import AvroDecoder
from slackwater.pipeline.values.ddl import SchemaTextError
from slackwater.pipeline.values.debezium.envelope import (
    NOT_SENT,
    lacks_a_column,
    source_fields,
    unwrapped,
    with_own_fields,
)
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.pipeline.values.registry.client import Registry
    from slackwater.runtime.config.value_config import ValueConfig

_LOGICAL = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "org.apache.kafka.connect.data.Timestamp": "local-timestamp-millis",
}
"""Avro's logical types of what Connect names otherwise."""
_ZONED = "io.debezium.time.ZonedTimestamp"
_VARIABLE = "io.debezium.data.VariableScaleDecimal"
_MOST_DIGITS = 38
_MOST_BYTES, _MOST_SCALE = 64, 200
"""Of a number with a scale of its own."""
_EXACT = Context(prec=400)
_ENVELOPE = ("before", "after", "op", "source")
_FIELD = "value.registry.subject"
Convert = Callable[[Any, dict[int, str]], Any]
"""Makes another column of one, and says what is wrong with which row."""


def avro_decoder(
    config: ValueConfig, registry: Registry, column: str, before: DebeziumAvroDecoder | None = None
) -> DebeziumAvroDecoder:
    """The decoder of values, or of keys (``column``), by the subject's schema.

    ``before``: the decoder that this one follows. Columns that it has and the source has dropped since are
    null. Raises ConfigError that names the field, and what the registry's calls raise.
    """
    if problem := extras.AVRO.problem("debezium"):
        raise ConfigError(problem, field="value.format")
    registered = registry.subject_schema("AVRO")
    source, is_key = source_fields(config), column == "key"
    try:
        schema = json.loads(registered.text)
        row = schema if is_key else _row(schema)
        if not is_key:
            # The source may drop any: also one with a default is null then.
            row["fields"] = _with_dropped([*map(avro_schema.optional, row["fields"])], before)
            schema = _envelope(schema, source)
        reader = _as_read(schema)
        decoder = AvroDecoder(avro_schema.parse(json.dumps(reader), registered.references), registry=registry)
    except (SchemaTextError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ConfigError(f"{registered.name} cannot be used: {exc}", field=_FIELD) from None
    return DebeziumAvroDecoder(decoder, source, row["fields"], is_key=is_key)


class DebeziumAvroDecoder:
    """Unwraps the envelopes, or the keys, that ``decoder`` decodes.

    ``source``: the fields of a change's source that the handler gets. ``fields``: those of the row, as
    Connect describes them. Raises ConfigError for a field of the source of another type.
    """

    def __init__(
        self, decoder: AvroDecoder, source: pa.StructType, fields: Sequence[Any], *, is_key: bool
    ) -> None:
        self._decoder, self.fields, self._is_key = decoder, fields, is_key
        self._columns = columns = _converts(fields)
        given = decoder.type if is_key else decoder.type.field("after").type
        kinds: dict[Convert, pa.DataType] = {_instants: pa.timestamp("us", "UTC"), _numbers: pa.string()}
        self._row = pa.struct(
            [
                field.with_type(kinds[columns[field.name]]) if field.name in columns else field
                for field in given
            ]
        )
        self.type = self._row if is_key else with_own_fields(self._row, source, _FIELD)
        if source.num_fields and not is_key:
            _check_source(source, decoder.type.field("source").type)

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        not_sent = [
            at for at, value in enumerate(values.to_pylist()) if value is not None and lacks_a_column(value)
        ]
        if not_sent:
            sent = pa.array([at not in set(not_sent) for at in range(len(values))])
            values = pc.if_else(sent, values, pa.scalar(None, values.type))
        made, rejected = self._decoder.decode(values)
        refused = {at: reason.replace("Avro value:", "Debezium value:", 1) for at, reason in rejected.items()}
        refused |= dict.fromkeys(not_sent, NOT_SENT)
        if self._is_key:
            return self._converted(made, refused), refused
        parts = {name: self._converted(made.field(name), refused) for name in ("before", "after")}
        names = [field.name for field in made.type]
        columns = [parts[name] if name in parts else made.field(name) for name in names]
        envelopes = pa.StructArray.from_arrays(columns, names=names, mask=made.is_null())
        return unwrapped(envelopes, self.type, refused), refused

    def _converted(self, rows: pa.StructArray, refused: dict[int, str]) -> pa.StructArray:
        """Rows with the types of the handler's. Adds to ``refused`` those that cannot have them."""
        if not self._columns:
            return rows
        columns = []
        for field in rows.type:
            column = rows.field(field.name)
            if convert := self._columns.get(field.name):
                wrong: dict[int, str] = {}
                column = convert(column, wrong)
                refused |= {at: f"Debezium value: the column {field.name} {why}" for at, why in wrong.items()}
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self._row), mask=rows.is_null())

    def close(self) -> None:
        """Closes the connections to the registry."""
        self._decoder.close()


def _instants(texts: pa.StringArray, wrong: dict[int, str]) -> pa.TimestampArray:
    """Texts with a zone, such as 2026-01-01T03:17:00.5Z, as instants; null for ``wrong`` ones."""
    kind = pa.timestamp("us", "UTC")
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        parts = []
        for at in range(len(texts)):
            try:
                parts.append(texts.slice(at, 1).cast(kind))
            except pa.ArrowInvalid:
                wrong[at] = f"is {str(texts[at])[:40]!r}, which is no instant"
                parts.append(pa.nulls(1, kind))
        return pa.concat_arrays(parts)


def _numbers(parts: pa.StructArray, wrong: dict[int, str]) -> pa.StringArray:
    """Numbers with scales of their own as texts, since no type of a column holds them all; null for
    ``wrong`` ones."""
    texts: list[str | None] = []
    for at, part in enumerate(parts.to_pylist()):
        text = None
        if part is not None and None not in part.values():
            scale, digits = int(part["scale"]), bytes(part["value"])
            if len(digits) > _MOST_BYTES or abs(scale) > _MOST_SCALE:
                wrong[at] = f"is a number of {len(digits)} bytes with scale {scale}, which is too long"
            else:
                text = format(Decimal(int.from_bytes(digits, "big", signed=True)).scaleb(-scale, _EXACT), "f")
        texts.append(text)
    return pa.array(texts, pa.string())


def _check_source(declared: pa.StructType, given: pa.StructType) -> None:
    for field in declared:
        at = given.get_field_index(field.name)
        if at < 0:
            problem = "which the subject's schema lacks"
        elif not takes(Growth().grown(given.field(at).type, field.type), field.type):
            problem = f"as {field.type}, and the subject's schema has it as {given.field(at).type}"
        else:
            continue
        raise ConfigError(f"names {field.name}, {problem}", field="value.source")


def _row(envelope: Any) -> Any:
    """The record of a row in an envelope's schema. Raises ValueError."""
    fields = envelope.get("fields") if isinstance(envelope, dict) else None
    by_name = {field["name"]: field["type"] for field in fields or []}
    if not by_name.keys() >= set(_ENVELOPE):
        raise ValueError("it is not that of Debezium's envelope: it lacks before, after, op or source")
    for branch in by_name["before"] if isinstance(by_name["before"], list) else [by_name["before"]]:
        if isinstance(branch, dict) and branch.get("type") == "record":
            return branch
    raise ValueError("its field before has no record")


def _with_dropped(fields: list[Any], before: DebeziumAvroDecoder | None) -> list[Any]:
    """``fields``, and those that were there before."""
    names = {field["name"] for field in fields}
    return [*fields, *(field for field in (before.fields if before else ()) if field["name"] not in names)]


def _envelope(schema: Any, source: pa.StructType) -> Any:
    """An envelope's schema with the fields that are read."""
    fields = []
    for field in schema["fields"]:
        if field["name"] not in _ENVELOPE or (field["name"] == "source" and not source.num_fields):
            continue
        if field["name"] == "source" and isinstance(field["type"], dict):
            of_type = {of["name"]: of for of in field["type"]["fields"]}
            chosen = [of_type[of.name] for of in source if of.name in of_type]
            field = {**field, "type": {**field["type"], "fields": chosen}}
        fields.append(field)
    return {**schema, "fields": fields}


def _as_read(schema: Any) -> Any:
    """A schema with Avro's logical types in place of Connect's names."""
    if isinstance(schema, list):
        return [_as_read(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    name = schema.get("connect.name")
    if schema.get("logicalType") == "decimal":
        parameters = schema.get("connect.parameters") or {}
        digits = parameters.get("connect.decimal.precision") or schema.get("precision") or _MOST_DIGITS
        return {**schema, "precision": min(int(digits), _MOST_DIGITS)}
    if name in _LOGICAL:
        return {**schema, "logicalType": _LOGICAL[name]}
    made = dict(schema)
    for part in ("type", "items", "values"):
        if isinstance(made.get(part), dict | list):
            made[part] = _as_read(made[part])
    if "fields" in made:
        made["fields"] = [{**field, "type": _as_read(field["type"])} for field in made["fields"]]
    return made


def _converts(fields: Sequence[Any]) -> dict[str, Convert]:
    """What is made of the columns that Avro has no type for."""

    def convert(kind: Any) -> Convert | None:
        if isinstance(kind, list):
            return next(filter(None, map(convert, kind)), None)
        name = kind.get("connect.name") if isinstance(kind, dict) else kind
        return {_ZONED: _instants, _VARIABLE: _numbers}.get(str(name))

    made = {field["name"]: convert(field["type"]) for field in fields}
    return {name: by for name, by in made.items() if by is not None}
