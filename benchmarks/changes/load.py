"""The table as it is at first, the changes, and the table that they make."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pyarrow as pa

from benchmarks.pipeline.load import PARTITIONS, create
from slackwater.kafka import KafkaProducer

SCHEMA = "_op STRING, id BIGINT, version BIGINT, name STRING, amount DOUBLE, city STRING"
COLUMNS = ("id", "version", "name", "amount", "city")
FILES = 10
LATEST = 0.02
"""The share of the keys that are the latest ones."""
Row = tuple[int, int, str, float, str]


def row(key: int, version: int) -> Row:
    """The row with this key as a change of this version leaves it."""
    return key, version, f"customer {key} {version % 1000}", version % 9973 / 4, f"city {version % 100}"


def seeds(rows: int) -> Iterator[pa.Table]:
    """The rows of the table at first, by file."""
    step = -(-rows // FILES)
    for start in range(0, rows, step):
        keys = range(start, min(rows, start + step))
        columns = zip(*(row(key, 0) for key in keys), strict=True)
        place = (
            pa.nulls(len(keys), pa.string()),
            pa.nulls(len(keys), pa.int32()),
            pa.nulls(len(keys), pa.int64()),
        )
        yield pa.table([*columns, *place], names=[*COLUMNS, "topic", "partition", "offset"])


def changes(rows: int, count: int, *, latest: bool) -> Iterator[tuple[int, int, bool]]:
    """Key, version and whether it deletes, of each change. ``latest``: at the latest keys."""
    rng, added = random.Random(7), rows
    for version in range(1, count + 1):
        kind = rng.random()
        if kind < 0.1:
            yield added, version, False
            added += 1
        else:
            first = int(added * (1 - LATEST)) if latest else 0
            yield rng.randrange(first, added), version, kind < 0.2


def fill(
    bootstrap: str, topic: str, rows: int, count: int, *, latest: bool, tombstones: bool = False
) -> None:
    """Makes the topic with the changes, each in the partition of its key. ``tombstones``: a change that
    deletes has no value, in place of an operation."""
    create(bootstrap, topic)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type="lz4", batch_size=500_000, linger_ms=200
    )
    for key, version, deletes in changes(rows, count, latest=latest):
        value = dict(zip(COLUMNS, row(key, version), strict=True))
        operation = "delete" if deletes else "upsert"
        content = None if deletes and tombstones else json.dumps({"_op": operation, **value}).encode()
        producer.send(topic, key=b"%d" % key, value=content, partition=key % PARTITIONS)
    producer.flush()
    producer.close()


def result(rows: int, count: int, *, latest: bool) -> set[tuple[int, int]]:
    """Key and version of each row of the table in the end."""
    versions = dict.fromkeys(range(rows), 0)
    for key, version, deletes in changes(rows, count, latest=latest):
        if deletes:
            versions.pop(key, None)
        else:
            versions[key] = version
    return set(versions.items())
