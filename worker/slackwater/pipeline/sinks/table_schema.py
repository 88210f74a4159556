"""A table's schema: taken from its first rows and then kept, so that a column never changes what it holds.

A value that does not fit its column makes the column grow, where the table's format can, or is an error of
its record, never a file that others cannot read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from slackwater.pipeline.growth import MOST_FIELDS, Growth, count_fields, fields_within
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

MOST_COLUMNS = 1000
"""The most columns that a table may get: rows made of a payload's fields could add any number."""


def fit(
    rows: pa.Table,
    kept: pa.Schema | None,
    *,
    new_columns: bool = True,
    growth: Growth | None = None,
    declared: bool = False,
) -> pa.Table:
    """``rows`` with the columns and types of the table.

    Args:
        rows: what a handler returned. Columns of type null, and fields of that type within structs, are left
            out. Encodings are removed: of a dictionary column the type of its values is kept.
        kept: the table's schema; None: there is no table yet, and ``rows`` make its schema.
        new_columns: whether ``rows`` may have columns that ``kept`` lacks.
        growth: with ``new_columns``, how a column grows that cannot hold a value; None: it does not.
        declared: whether ``kept`` is what `sink.schema` declares; for messages.

    Returns:
        The columns of ``kept`` in their order, null where ``rows`` lack one, then the new ones. Those that
        have grown have another type than in ``kept``.

    Raises:
        RecordsError: a value cannot be held by its column without loss, a name is there twice, or there is a
            column too many.
    """
    import pyarrow as pa

    count, rows = rows.num_rows, retyped(rows, lambda leaf: leaf)
    if kept is None:
        kept, new_columns = pa.schema([]), True
    added = [field for field in rows.schema if kept.get_field_index(field.name) < 0]
    if added and not new_columns:
        lacks = "sink.schema does not declare" if declared else "the table lacks"
        problem = (
            f"the rows have {_named(added)}, which {lacks} ({_named(list(kept))}): remove them in "
            "the handler, set sink.newColumns to add, or add them to the table"
        )
        given = [number for field in added for number in _numbers(rows.column(field.name).is_valid())]
        raise RecordsError(problem, reasons(rows, dict.fromkeys(given, problem)))
    if len(kept) + len(added) > MOST_COLUMNS:
        raise RecordsError(
            f"the rows would give the table {len(kept) + len(added)} columns; it may have {MOST_COLUMNS}"
        )
    present, growth = set(rows.column_names), growth if new_columns else None
    columns = [
        _held(rows, field, growth) if field.name in present else pa.nulls(count, field.type) for field in kept
    ]
    fields = [field.with_type(column.type) for field, column in zip(kept, columns, strict=True)]
    columns += [rows.column(field.name) for field in added]
    return pa.table(columns, schema=pa.schema([*fields, *added]))


def retyped(rows: pa.Table, leaf: Callable[[pa.DataType], pa.DataType | None]) -> pa.Table:
    """``rows`` without encodings, and with the type ``leaf(type)`` in place of each type that is not nested.

    Columns whose type is null, or lists of null, are left out, as are such fields of structs. ``leaf``
    returns None for a type that the table cannot hold. Raises RecordsError for such a type, for a value that
    the new type cannot hold, and for a name that is there twice.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if twice := [name for name, count in Counter(rows.column_names).items() if count > 1]:
        raise RecordsError(f"the rows have more than one column {twice[0]}: give each a name of its own")
    columns, fields = [], []
    for field in rows.schema:
        column = rows.column(field.name)
        problem = f"the table cannot hold the column {field.name}, which is {field.type}"
        if pa.types.is_run_end_encoded(field.type):
            column = pa.chunked_array(
                [pc.run_end_decode(chunk) for chunk in column.chunks], field.type.value_type
            )
        try:
            kind = _retyped(column.type, leaf)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as exc:
            raise RecordsError(f"{problem}: {_one_line(exc)}") from None
        if kind is None:
            continue
        cast = partial(pa.ChunkedArray.cast, target_type=kind)
        columns.append(column if column.type == kind else _converted(rows, column, cast, problem))
        fields.append(pa.field(field.name, kind))
    return pa.table(columns, schema=pa.schema(fields))


def common_type(kind: pa.DataType) -> pa.DataType | None:
    """The type for values of ``kind`` where it is the same in Delta, Iceberg and PostgreSQL: half floats,
    timestamps, dates, texts and bytes. None: it depends on the table."""
    import pyarrow as pa

    types = pa.types
    if types.is_float16(kind):
        return pa.float32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_date(kind):
        return pa.date32()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    bytes_of = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return pa.binary() if any(is_bytes(kind) for is_bytes in bytes_of) else None


def check_case(fields: Sequence[pa.Field], who: str) -> None:
    """Raises RecordsError for names of columns, or of fields within them, that differ only in case. ``who``
    does not tell upper from lower case, such as ``Delta Lake does``."""
    first: dict[str, str] = {}
    for field in fields:
        name = field.name
        other = first.setdefault(name.lower(), name)
        if other is not name:
            raise RecordsError(
                f"the rows have {name}, and there is {other}: {who} not tell upper from lower case; "
                "rename it in the handler"
            )
        check_case(fields_within(field.type), who)


def _retyped(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType | None]) -> pa.DataType | None:
    """None: there is nothing to be held. Raises ArrowTypeError for a type that cannot be held."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(kind):
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return _retyped(kind.storage_type, leaf)
    if types.is_dictionary(kind):
        return _retyped(kind.value_type, leaf)
    if types.is_struct(kind):
        inner = [
            pa.field(field.name, part) for field in kind if (part := _retyped(field.type, leaf)) is not None
        ]
        return pa.struct(inner) if inner else None
    if types.is_map(kind):
        key, item = _retyped(kind.key_type, leaf), _retyped(kind.item_type, leaf)
        if key is None or item is None:
            raise pa.ArrowTypeError("declare the type of the map's values")
        return pa.map_(key, item)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = _retyped(kind.value_type, leaf)
        return None if item is None else pa.list_(item)
    # Casts of list views: pyarrow 26 makes lists of other values.
    if kind.num_fields or types.is_list_view(kind) or types.is_large_list_view(kind):
        raise pa.ArrowTypeError("there is no such type in tables; cast it to another one in the handler")
    held = leaf(kind)
    if held is None:
        raise pa.ArrowTypeError("there is no such type in the table; cast it to another one in the handler")
    return held


def reasons(rows: pa.Table, refused: Mapping[int, str]) -> dict[tuple[str, int, int], str]:
    """Why rows are ``refused``, which is given by their numbers, by the places of their records; empty where
    rows carry no places."""
    import pyarrow as pa

    if not set(PLACE_COLUMNS) <= set(rows.column_names):
        return {}
    taken = rows.select(PLACE_COLUMNS).take(pa.array(list(refused), pa.int64()))
    places = zip(*(column.to_pylist() for column in taken.columns), strict=True)
    return dict(zip(places, refused.values(), strict=True))


def without_rules(schema: pa.Schema) -> pa.Schema:
    """The columns of ``schema``, in which null is allowed, also in fields within them."""
    import pyarrow as pa

    from slackwater.pipeline.values.types import nullable

    return pa.schema([(field.name, nullable(field.type)) for field in schema])


def check_not_null(rows: pa.Table, schema: pa.Schema, rule: str) -> None:
    """Raises RecordsError for a row with null in a column of ``schema`` that must not be null, or in a field
    within one. ``rule``: what says so. Columns that ``rows`` lack are not looked at."""
    for field in schema:
        if field.name in rows.column_names:
            lacking = _lacking(rows.column(field.name).combine_chunks(), field, field.name)
            if lacking:
                refused = {
                    number: f"the column {path} must not be null ({rule}), and a row has no value for it"
                    for number, path in sorted(lacking.items())
                }
                raise RecordsError(next(iter(refused.values())), reasons(rows, refused))


def lacking_paths(rows: pa.Table, schema: pa.Schema) -> list[str]:
    """The columns of ``schema`` that must not be null, and the fields within, for which a row has no value,
    as paths (``s.x``). Columns that ``rows`` lack are not looked at."""
    paths: set[str] = set()
    for field in schema:
        if field.name in rows.column_names:
            _add_lacking(rows.column(field.name).combine_chunks(), field, field.name, paths)
    return sorted(paths)


def _add_lacking(values: pa.Array, field: pa.Field, path: str, paths: set[str]) -> None:
    if not field.nullable and values.null_count:
        paths.add(path)
    if _forbids_null(field.type):
        for _, part, inner in _parts_of(values.drop_null(), field.type):
            _add_lacking(part, inner, f"{path}.{inner.name}", paths)


def _lacking(values: pa.Array, field: pa.Field, path: str) -> dict[int, str]:
    """The numbers of the ``values`` that have null where ``field`` forbids it, each with the path of the
    field that does."""
    import pyarrow.compute as pc

    lacking = {} if field.nullable else dict.fromkeys(_numbers(pc.is_null(values)), path)
    if _forbids_null(field.type):
        numbers = _numbers(pc.is_valid(values))
        for parents, part, inner in _parts_of(values.drop_null(), field.type):
            found = _lacking(part, inner, f"{path}.{inner.name}")
            lacking = {numbers[parents[at]]: where for at, where in found.items()} | lacking
    return lacking


def _forbids_null(kind: pa.DataType) -> bool:
    """Whether a field within ``kind`` must not be null, but for the keys of maps, which Arrow never has."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _forbids_null(kind.item_type) or _forbids_null(kind.key_type)
    return any(not field.nullable or _forbids_null(field.type) for field in fields_within(kind))


def _parts_of(values: pa.Array, kind: pa.DataType) -> Iterator[tuple[Sequence[int], pa.Array, pa.Field]]:
    """The values within nested ``values``, none of which is null: the numbers of those that they are of, and
    their field in ``kind``, which has the same fields as the values' type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            yield range(len(values)), pc.struct_field(values, [at]), kind.field(at)
    elif pa.types.is_map(kind):
        # Arrow's functions of lists end the process for a map.
        for field, part in ((kind.key_field, values.keys), (kind.item_field, values.items)):
            yield from _parts_of(pa.ListArray.from_arrays(values.offsets, part), pa.list_(field))
    else:
        yield pc.list_parent_indices(values).to_pylist(), pc.list_flatten(values), kind.field(0)


def _numbers(mask: pa.ChunkedArray) -> list[int]:
    """Where ``mask`` is true."""
    import pyarrow.compute as pc

    numbers: list[int] = pc.indices_nonzero(mask).to_pylist()
    return numbers


def _held(rows: pa.Table, field: pa.Field, growth: Growth | None) -> pa.ChunkedArray:
    """The column with the type of ``field``, or the one to which it grows where it cannot hold a value.
    Raises RecordsError if a value would become another one."""
    import pyarrow as pa

    column = rows.column(field.name)
    if column.type == field.type:
        return column
    problem = (
        f"the column {field.name} of the table is {field.type}, and rows have {column.type} values that it "
        "cannot hold"
    )
    grown = field.type if growth is None else growth.grown(field.type, column.type)
    if grown != field.type:
        try:
            return _without_loss(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            if count_fields(grown) > MOST_FIELDS:
                raise RecordsError(
                    f"{problem}: with them it would have more than {MOST_FIELDS} fields"
                ) from None
    return _converted(rows, column, partial(_without_loss, kind=grown), problem)


def _converted(
    rows: pa.Table,
    column: pa.ChunkedArray,
    convert: Callable[[pa.ChunkedArray], pa.ChunkedArray],
    problem: str,
) -> pa.ChunkedArray:
    """What ``convert`` makes of a column of ``rows``. Raises RecordsError with ``problem`` and what Arrow
    says where it refuses values."""
    import pyarrow as pa

    try:
        return convert(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as exc:
        refused = {number: f"{problem}: {text}" for number, text in _refused(column, convert).items()}
        raise RecordsError(f"{problem}: {_one_line(exc)}", reasons(rows, refused)) from None


def _refused(
    column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> dict[int, str]:
    """The numbers of the values that ``convert`` refuses, and why, found by bisection."""
    import pyarrow as pa

    refused, pieces = {}, [(0, len(column))]
    while pieces:
        start, stop = pieces.pop()
        piece = column.slice(start, stop - start)
        if piece.null_count == len(piece):
            continue
        try:
            convert(piece)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as exc:
            middle = (start + stop) // 2
            if middle == start:
                refused[start] = _one_line(exc)
            else:
                pieces += [(middle, stop), (start, middle)]
    return refused


def _without_loss(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """``column`` as ``kind``. Raises Arrow's errors if a value would become another one."""
    import pyarrow as pa

    if not _comparable(column.type, kind):
        raise pa.ArrowInvalid(f"{column.type} is no {kind}")
    if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
        # In one step, Arrow wants room for the largest integer.
        result = column.cast(pa.decimal256(76, kind.scale)).cast(kind)
    else:
        result = column.cast(kind)
    if not _equal(result.cast(column.type), column):
        raise pa.ArrowInvalid("some would lose a part")
    return result


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether the values are the same; NaN is the same as NaN."""
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())


def _comparable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of ``given`` mean the same as ``wanted``, at each depth: a text is no number, even if it
    reads as one, and a number is no text."""
    import pyarrow as pa

    if _kind(given) != _kind(wanted):
        return False
    if pa.types.is_struct(given):
        return all(
            _comparable(field.type, wanted.field(field.name).type)
            for field in given
            if wanted.get_field_index(field.name) >= 0
        )
    if pa.types.is_map(given):
        return _comparable(given.key_type, wanted.key_type) and _comparable(given.item_type, wanted.item_type)
    return _kind(given) != "list" or _comparable(given.value_type, wanted.value_type)


def _kind(kind: pa.DataType) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return "binary"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "time"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list"
    return str(kind.id)


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())


def _named(fields: list[pa.Field], most: int = 5) -> str:
    names = ", ".join(field.name for field in fields[:most])
    return f"{names} and {len(fields) - most} more columns" if len(fields) > most else f"columns {names}"
