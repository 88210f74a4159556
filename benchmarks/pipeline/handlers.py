"""The same work for each engine: a flight's JSON to columns, beside the record's place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COLUMNS = (
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_delay INT, arr_delay INT, "
    "distance INT, time_hour STRING"
)
NAMES = [column.split()[0] for column in COLUMNS.split(", ")]
PLACE = ["topic", "partition", "offset"]


def spark(df: DataFrame) -> DataFrame:
    """With Spark's own JSON reader."""
    from pyspark.sql.functions import col, from_json

    return df.select(*PLACE, from_json(col("value").cast("string"), COLUMNS).alias("v")).select(*PLACE, "v.*")


def arrow(table: pa.Table) -> pa.Table:
    """With Arrow's JSON reader, on the records' bytes as lines."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json as pj

    types = [(name, pa.int32() if kind == "INT" else pa.string()) for name, kind in _typed()]
    lines = pc.binary_join_element_wise(table["value"], b"", b"\n").combine_chunks()
    buffer = lines.buffers()[2]
    rows = (
        pj.read_json(
            pa.BufferReader(buffer) if buffer is not None else pa.BufferReader(b""),
            read_options=pj.ReadOptions(block_size=1 << 22),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows
        else pa.schema(types).empty_table()
    )
    return pa.table([*(table[name] for name in PLACE), *rows.columns], names=[*PLACE, *rows.column_names])


def spark_values(df: DataFrame) -> DataFrame:
    """With values that the worker has decoded (`value.format`)."""
    return df.select(*PLACE, "value.*")


def arrow_values(table: pa.Table) -> pa.Table:
    """With values that the worker has decoded (`value.format`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pa.table(
        [*(table[name] for name in PLACE), *(pc.struct_field(table["value"], name) for name in NAMES)],
        names=[*PLACE, *NAMES],
    )


def python(records: list[Any]) -> list[dict[str, Any]]:
    """With the standard library, one record at a time."""
    return [
        json.loads(record.value)
        | {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        for record in records
    ]


def _typed() -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in (column.split() for column in COLUMNS.split(", "))]
