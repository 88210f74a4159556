"""Flights of New York, 2013, by airport and hour: what `postgres.yaml` adds up in a table.

A row a flight, for the engine `python`. The sink (mode `merge`) adds the rows of one airport and hour up, so
the table always shows the sums of all flights that were read. A record that is no flight goes to the
dead-letter topic, and `_error` is the reason.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from slackwater.kafka import ConsumerRecord


def transform(records: Sequence[ConsumerRecord]) -> Iterator[dict[str, Any]]:
    """A poll's records to the numbers that are added up."""
    for record in records:
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        yield {**numbers_of(record.value), **place}


def numbers_of(value: bytes | None) -> dict[str, Any]:
    """What one flight adds, or `_error` with what is wrong. A cancelled flight has no delay."""
    try:
        flight = json.loads(value or b"")
        origin, hour, delay = (
            flight["origin"],
            datetime.fromisoformat(flight["time_hour"]),
            flight["dep_delay"],
        )
    except (ValueError, TypeError, LookupError) as error:
        return {"_error": f"value is not a flight: {type(error).__name__}"}
    if not isinstance(origin, str) or len(origin) > 4 or not isinstance(delay, int | None):
        return {"_error": "origin must be the code of an airport, dep_delay a whole number"}
    return {
        "origin": origin,
        "hour": hour,
        "cancelled": int(flight.get("dep_time") is None),
        "delay_total": delay,
        "delay_most": delay,
    }


transform.schema = pa.schema(  # type: ignore[attr-defined]
    [
        ("origin", pa.string()),
        ("hour", pa.timestamp("us", "UTC")),
        ("cancelled", pa.int64()),
        ("delay_total", pa.int64()),
        ("delay_most", pa.int64()),
    ]
)
