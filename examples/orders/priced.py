"""Orders with their total: what `to-topic.yaml` writes to a topic of Kafka.

For the engine `python`. Each row is a record: `key`, `value` and `headers` go to the topic, and `topic`,
`partition` and `offset` say which record it comes from. A record that is no order goes to the dead-letter
topic.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from slackwater.kafka import ConsumerRecord

from .pipeline import order_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def transform(records: Sequence[ConsumerRecord]) -> Iterator[dict[str, Any]]:
    """A poll's records to records of the output topic."""
    for record in records:
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        order = order_of(record.value)
        if "_error" in order:
            yield {**order, **place}
            continue
        total = round(order["quantity"] * order["price"], 2)
        yield {
            "key": order["customer"],  # a customer's orders stay in order, in one partition
            "value": json.dumps({**order, "total": total}),
            "headers": [{"key": "source", "value": f"{record.topic}-{record.partition}".encode()}],
            **place,
        }


transform.schema = pa.schema(  # type: ignore[attr-defined]
    [("key", pa.string()), ("value", pa.string()), ("headers", HEADERS)]
)
