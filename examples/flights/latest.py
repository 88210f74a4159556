"""Flights of New York, 2013: the last state of each flight, for `delta.yaml`.

For the engine `arrow`. In: records with typed values (`value` in `delta.yaml`). Out: a row a flight, with the
month by which the table is partitioned. The sink (mode `upsert`) replaces the row of the same flight. So a
correction is a record like the first one, with all fields: it may come minutes or weeks later.
"""

import pyarrow as pa
import pyarrow.compute as pc

FIELDS = [
    "time_hour",
    "carrier",
    "flight",
    "origin",
    "dest",
    "tailnum",
    "dep_time",
    "dep_delay",
    "arr_time",
    "arr_delay",
]


def transform(table: pa.Table) -> pa.Table:
    """A poll's records to flights. A record without a value is rejected: `_error` is the reason."""
    flight = table["value"].combine_chunks()
    columns = {name: pc.struct_field(flight, name) for name in FIELDS}
    columns["month"] = pc.strftime(columns["time_hour"], "%Y-%m")
    columns["_error"] = pc.if_else(flight.is_null(), "value is null", pa.scalar(None, pa.string()))
    return pa.table({**columns, **{name: table[name] for name in ("topic", "partition", "offset")}})
