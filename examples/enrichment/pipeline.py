"""Flights with the names and places of their airports, from a reference table that changes.

The handler of `airports.yaml`, for the engine `arrow`; values are decoded by the resource's `value`. The
table is a CSV or Parquet file, named by the environment variable `AIRPORTS_FILE`. `setup` reads it before the
first batch, `refresh` reads it again every `refreshEvery`. A row has what the table said when it was handled.
"""

import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

COLUMNS = {"faa": pa.string(), "name": pa.string(), "lat": pa.float64(), "lon": pa.float64()}
"""What is read of the reference table."""

log = logging.getLogger(__name__)
airports: pa.Table = pa.table({name: pa.array([], type_) for name, type_ in COLUMNS.items()})


def setup(spark: Any) -> None:
    """Called once, before the first batch."""
    refresh(spark)


def refresh(_spark: Any) -> None:
    """Called every `refreshEvery`. If it raises, `airports` is as it was, and the next batches use it."""
    global airports
    read = read_airports(Path(os.environ["AIRPORTS_FILE"]))
    if not read.num_rows:
        raise ValueError("the reference table has no rows")
    airports = read  # in one step, when all has been read and checked
    log.info("%d airports", airports.num_rows)


def read_airports(file: Path) -> pa.Table:
    """The columns above of `file`. Raises ValueError for a code that is there twice."""
    if file.suffix == ".parquet":
        table = pa.parquet.read_table(file, columns=list(COLUMNS))
    else:
        options = pa.csv.ConvertOptions(column_types=COLUMNS, include_columns=list(COLUMNS))
        table = pa.csv.read_csv(file, convert_options=options)
    table = table.cast(pa.schema(list(COLUMNS.items())))
    if len(table["faa"].unique()) != table.num_rows:
        raise ValueError(f"{file} has a code twice in the column faa")
    return table


def transform(table: pa.Table) -> pa.Table:
    """A row a flight. An airport that the reference table does not have gets nulls."""
    value = table["value"].combine_chunks()
    rows = table.select(["topic", "partition", "offset"])
    for name in ("carrier", "flight", "origin", "dest", "time_hour"):
        rows = rows.append_column(name, pc.struct_field(value, name))
    for end in ("origin", "dest"):
        at = pc.index_in(rows[end], value_set=airports["faa"].combine_chunks())
        for name in ("name", "lat", "lon"):
            rows = rows.append_column(f"{end}_{name}", airports[name].combine_chunks().take(at))
    missing = pc.if_else(pc.is_null(value), "there is no value", None)  # a tombstone
    return rows.append_column("_error", missing.cast(pa.string()))
