"""Orders: JSON records that become rows, without Spark.

`as_table` is for the engine `arrow`: a batch in, a batch out, parsed by Arrow where all is well-formed.
`as_rows` is for the engine `python`: plain code. Both give the same rows, and mark what is no order in
`_error`, so that it goes to the dead-letter topic.
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from slackwater.kafka import ConsumerRecord

ORDER = pa.schema(
    [("id", pa.string()), ("customer", pa.string()), ("quantity", pa.int64()), ("price", pa.float64())]
)
PLACE = ["topic", "partition", "offset"]
"""Every row carries where it came from."""


def as_table(table: pa.Table) -> pa.Table:
    """A poll's records to orders (engine `arrow`)."""
    orders = parsed_at_once(table["value"])
    if orders is None:
        found = [order_of(value) for value in table["value"].to_pylist()]
        orders = pa.Table.from_pylist(found, schema=ORDER.append(pa.field("_error", pa.string())))
    result = table.select(PLACE)
    for name in orders.column_names:
        result = result.append_column(name, orders[name])
    return result


def as_rows(records: Sequence[ConsumerRecord]) -> Iterator[dict[str, Any]]:
    """A poll's records to orders (engine `python`)."""
    for record in records:
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        yield {**order_of(record.value), **place}


def parsed_at_once(values: pa.ChunkedArray) -> pa.Table | None:
    """All values by Arrow's own JSON reader; None where one of them is no whole order."""
    if len(values) == 0 or values.null_count:
        return None
    lines = io.BytesIO(b"\n".join(values.to_pylist()))
    options = pj.ParseOptions(explicit_schema=ORDER, unexpected_field_behavior="ignore")
    try:
        orders = pj.read_json(lines, parse_options=options)
    except pa.ArrowInvalid:
        return None
    whole = all(pc.all(pc.is_valid(column)).as_py() for column in orders.columns)
    return orders if whole and len(orders) == len(values) else None


def order_of(value: bytes | None) -> dict[str, Any]:
    """One order's columns, or `_error` with what is wrong."""
    try:
        found = json.loads(value or b"")
    except ValueError:
        return {"_error": "value is not JSON"}
    if not isinstance(found, dict):
        return {"_error": "value is not a JSON object"}
    quantity, price = found.get("quantity"), found.get("price")
    if not isinstance(found.get("id"), str) or not isinstance(found.get("customer"), str):
        return {"_error": "id and customer must be text"}
    if not isinstance(quantity, int) or not isinstance(price, int | float):
        return {"_error": "quantity must be a whole number, price a number"}
    return {"id": found["id"], "customer": found["customer"], "quantity": quantity, "price": float(price)}
