"""A peer's handler on Spark: called by the worker's own engine, so that the sessions do not differ."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.rollouts.peer import Parts, Record
from slackwater.handler import Batch, OffsetRange
from slackwater.kafka import TopicPartition
from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.pipeline.engines.spark import WARM_UP_ROWS, SparkEngine


class SparkHandling:
    """``engine``: not started yet. ``group``, ``instance``: for the handler's Batch."""

    def __init__(self, engine: SparkEngine, group: str, instance: str) -> None:
        self._engine, self._group, self._instance = engine, group, instance

    def start(self) -> None:
        """What a worker's warm-up does, and a first small batch, which the journal does not have."""
        self._engine.start()
        self._engine.warm_up()
        self._engine.transform(arrow_of([Record("warm-up", 0, n, b"0") for n in range(WARM_UP_ROWS)]))

    def tables(self, parts: Parts) -> list[pa.Table]:
        """One query on all records."""
        ranges = {
            TopicPartition(*place): OffsetRange(part[0].offset, part[-1].offset + 1)
            for place, part in parts.items()
        }
        batch = Batch(ranges, frozenset(ranges), self._group, self._instance)
        records = [record for part in parts.values() for record in part]
        rows = self._engine.transform(arrow_of(records), batch)
        return [
            rows.filter(pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], partition)))
            for topic, partition in parts
        ]

    def close(self) -> None:
        """Ends the session and its Java process."""
        self._engine.close()


def arrow_of(records: Sequence[Record]) -> pa.Table:
    """``records`` with the columns of a poll; those that the handler does not read are null."""
    values = {name: [getattr(record, name) for record in records] for name in Record._fields}
    columns = [
        pa.array(values[field.name], field.type)
        if field.name in values
        else pa.nulls(len(records), field.type)
        for field in ARROW_SCHEMA
    ]
    return pa.table(columns, schema=ARROW_SCHEMA)
