"""Envelopes, which JSON and Avro have alike: ``op`` (c, r and u: the row is there now; d: it is gone),
``after``, ``before`` and ``source``. Values are unwrapped to the row with what became of it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.pipeline.values import ddl
from slackwater.runtime.config.value_config import ValueConfig
from slackwater.runtime.errors import ConfigError

OP = "_op"
"""The field that says what became of the row: ``upsert`` or ``delete``."""
NOT_SENT = (
    "Debezium value: a column is not in the change (__debezium_unavailable_value), as a large one of "
    "PostgreSQL that has not changed: set REPLICA IDENTITY FULL for the table"
)
_OPS = ("c", "r", "u", "d")
_UNAVAILABLE = (b"__debezium_unavailable_value", b"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1Z")
"""What stands for a column that the source did not send, as text and as bytes in base64."""


def lacks_a_column(value: bytes) -> bool:
    """Whether the source did not send a column."""
    return any(mark in value for mark in _UNAVAILABLE)


def source_fields(config: ValueConfig) -> pa.StructType:
    """The fields of a change's source that the configuration names. Raises ConfigError."""
    try:
        return ddl.parse(config.source) if config.source else pa.struct([])
    except ddl.SchemaTextError as exc:
        raise ConfigError(str(exc), field="value.source") from None


def with_own_fields(row: pa.StructType, source: pa.StructType, field: str) -> pa.StructType:
    """The type of a decoded value: the row, then ``_op``, then the fields of ``source``, each with an
    underscore before its name. Raises ConfigError for ``field`` where two have one name."""
    own = [pa.field(OP, pa.string()), *(of.with_name(f"_{of.name}") for of in source)]
    names = [of.name for of in (*row, *own)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"would give the handler two fields {twice[0]}: leave one out", field=field)
    return pa.struct([*row, *own])


def unwrapped(made: pa.StructArray, type_: pa.StructType, refused: dict[int, str]) -> pa.StructArray:
    """The rows of envelopes, as ``type_`` of :func:`with_own_fields`. Adds to ``refused`` those that have
    none."""
    op, before, after = (made.field(name) for name in ("op", "before", "after"))
    is_other = pc.and_(made.is_valid(), pc.invert(pc.fill_null(pc.is_in(op, pa.array(_OPS)), False)))
    for at in pc.indices_nonzero(is_other).to_pylist():
        refused[at] = f"Debezium value: op {str(op[at])[:20]!r} is no change of a row"
    is_gone = pc.fill_null(pc.equal(op, "d"), False)
    row = _chosen(is_gone, before, after)
    for at in pc.indices_nonzero(pc.and_(made.is_valid(), row.is_null())).to_pylist():
        if at not in refused:
            lacks = "before" if is_gone[at].as_py() else "after"
            refused[at] = f"Debezium value: a change with op {op[at]} has no {lacks}"
    is_refused = pc.is_in(pa.array(range(len(made)), pa.int64()), pa.array(sorted(refused), pa.int64()))
    columns = [*row.flatten(), pc.if_else(is_gone, "delete", "upsert")]
    if len(columns) < type_.num_fields:
        columns += made.field("source").flatten()
    return pa.StructArray.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, type_, strict=True)],
        fields=list(type_),
        mask=pc.or_(made.is_null(), is_refused),
    )


def _chosen(mask: pa.BooleanArray, yes: pa.Array, no: pa.Array) -> pa.Array:
    """``yes`` where ``mask`` is true, else ``no``; for any type."""
    places = pa.array(range(len(mask)), pa.int64())
    both = pa.concat_arrays([no, yes.cast(no.type)])
    return both.take(pc.if_else(mask, pc.add(places, len(mask)), places))
