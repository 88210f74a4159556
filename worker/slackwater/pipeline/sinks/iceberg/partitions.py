"""How an Iceberg table is partitioned: what ``sink.partitionBy`` names, and the files of a batch's rows.

pyiceberg needs the package pyiceberg-core to split rows by any other transform than identity. This uses the
transforms that pyiceberg has in Python, once for each value.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.pipeline.sinks.partition_values import check_path, groups, taken
from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField, PartitionKey, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.transforms import Transform

_TIME = re.compile(r"(year|month|day|hour)\(\s*(\S(?:.*\S)?)\s*\)")
_NUMBERED = re.compile(r"(bucket|truncate)\(\s*(\d{1,9})\s*,\s*(\S(?:.*\S)?)\s*\)")
_SUFFIXES = {"identity": "", "truncate": "_trunc"}


class By(NamedTuple):
    """One field of the partitioning: ``transform``, as Iceberg writes it (``day``, ``bucket[16]``), of a
    column."""

    column: str
    transform: str

    def __str__(self) -> str:
        name, _, number = self.transform.rstrip("]").partition("[")
        arguments = ", ".join(part for part in (number, self.column) if part)
        return self.column if name == "identity" else f"{name}({arguments})"


def parsed(texts: Iterable[str]) -> list[By]:
    """``sink.partitionBy``: columns, and transforms such as ``day(ts)`` and ``bucket(16, id)``. Raises
    ConfigError."""
    result = []
    for text in texts:
        if match := _TIME.fullmatch(text):
            result.append(By(match[2], match[1]))
        elif (match := _NUMBERED.fullmatch(text)) and int(match[2]):
            result.append(By(match[3], f"{match[1]}[{int(match[2])}]"))
        elif text.endswith(")") and "(" in text:
            raise ConfigError(
                f"{text} is no transform of Iceberg: give a column, or year(C), month(C), day(C), hour(C), "
                "bucket(NUMBER, C) or truncate(NUMBER, C) of a column C",
                field="sink.partitionBy",
            )
        else:
            result.append(By(text, "identity"))
    columns = [by.column for by in result]
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise ConfigError(
            f"names {twice[0]} more than once, which pyiceberg does not support: give one transform of it",
            field="sink.partitionBy",
        )
    return result


def partitioning(schema: Schema, spec: PartitionSpec) -> list[By]:
    """The same of a table."""
    return [
        By(schema.find_column_name(field.source_id) or f"column {field.source_id}", str(field.transform))
        for field in spec.fields
        if str(field.transform) != "void"
    ]


def spec_of(schema: Schema, by: Sequence[By]) -> PartitionSpec:
    """The partitioning of a table to be created. Raises HandlerError, RecordsError."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    names = {field.name for field in schema.fields}
    fields = []
    for number, (column, text) in enumerate(by):
        if column not in names:
            raise RecordsError(
                f"the column {column}, by which to partition the table, has no value, and so no type"
            )
        source = schema.find_field(column)
        transform: Transform[Any, Any] = parse_transform(text)
        if not transform.can_transform(source.field_type):
            raise HandlerError(
                f"the column {column} is {source.field_type}: a table cannot be partitioned by "
                f"{By(column, text)}"
            )
        kind = text.split("[")[0]
        name = column + _SUFFIXES.get(kind, f"_{kind}")
        while kind != "identity" and name in names:
            name += "_"
        fields.append(
            PartitionField(
                source_id=source.field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=transform,
                name=name,
            )
        )
    return PartitionSpec(*fields)


def write(metadata: TableMetadata, io: FileIO, rows: pa.Table) -> list[DataFile]:
    """Writes ``rows``, which have the table's columns, to new data files. Raises RecordsError as
    :func:`check`, OSError and errors of pyiceberg."""
    from pyiceberg.io.pyarrow import write_file
    from pyiceberg.table import WriteTask

    if not rows.num_rows:
        return []
    schema, write_id = metadata.schema(), uuid.uuid4()
    tasks = (
        WriteTask(write_id, number, schema, part().combine_chunks().to_batches(), partition_key=key)
        for number, (key, part) in enumerate(_split(rows, metadata))
    )
    return list(write_file(io, metadata, tasks))


def check(metadata: TableMetadata, rows: pa.Table) -> None:
    """Raises RecordsError where a row has values after which no folder can be named, and BatchTooLargeError
    for too many partitions."""
    from pyiceberg.table.locations import load_location_provider

    if not rows.num_rows or metadata.spec().is_unpartitioned():
        return
    locations = load_location_provider(metadata.location, metadata.properties)
    for key, _ in _split(rows, metadata):
        check_path(locations.new_data_location(f"00000-0000-{uuid.UUID(int=0)}.parquet", key))


def _split(
    rows: pa.Table, metadata: TableMetadata
) -> Iterator[tuple[PartitionKey | None, Callable[[], pa.Table]]]:
    """Each partition, and a function for its rows."""
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    schema, spec = metadata.schema(), metadata.spec()
    if spec.is_unpartitioned():
        yield None, lambda: rows
        return
    columns = [_values(rows, schema, field) for field in spec.fields]
    for values, numbers in groups(columns, partitioning(schema, spec)):
        key = PartitionKey(list(map(PartitionFieldValue, spec.fields, values)), spec, schema)
        yield key, functools.partial(taken, rows, numbers)


def _values(rows: pa.Table, schema: Schema, field: PartitionField) -> pa.ChunkedArray:
    """The partition value of each row."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.transforms import IdentityTransform, VoidTransform

    source = schema.find_field(field.source_id)
    name = schema.find_column_name(field.source_id) or source.name
    if name in rows.column_names:
        column = rows.column(name)
    else:
        first, *inner = name.split(".")
        column = functools.reduce(pc.struct_field, inner, rows.column(first))
    if isinstance(field.transform, IdentityTransform):
        return column
    if isinstance(field.transform, VoidTransform):
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())])
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.int32())
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    transform = field.transform.transform(source.field_type)
    values = pa.array([transform(value) for value in encoded.dictionary.to_pylist()])
    return pa.chunked_array([values.take(encoded.indices)])
