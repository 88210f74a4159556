"""Writers of an Iceberg table that end or stop at any call they make, and writers at the same time."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.table.update import snapshot

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.iceberg import partitions
from slackwater.pipeline.sinks.iceberg.sink import IcebergSink
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks
from tests.support.iceberg.catalogs import Catalog
from tests.support.iceberg.reader import IcebergFiles
from tests.support.sinks import OLD, Died, Steps, at_once, die, rows

RECORDS = 8
"""Of each partition."""
ALL = Counter({(partition, offset): 1 for partition in (0, 1) for offset in range(RECORDS)})
CALLS: list[tuple[Any, str]] = [
    (snapshot, "write_manifest_list"),
    (partitions, "write"),
    (IcebergSink, "stage"),
    (StagedRows, "publish"),
]
"""Calls that a sink makes, beside those of its catalog."""
_write_all = partial(sinks.write_all, records=RECORDS)


def die_at_each_step(lake: Catalog, calls: Sequence[tuple[Any, str]], *, after: bool) -> int:
    """A writer ends before or after each of its ``calls``; another one then writes the rest. Returns how many
    there were."""
    for turn in itertools.count(1):
        lake.begin()
        rng, steps = random.Random(turn), Steps(turn, die, after=after)
        try:
            with steps.watching(calls):
                _write_all(lake.sink(), rng)
            break
        except Died:
            pass
        _write_all(lake.sink(), rng)
        assert lake.read().places() == ALL, f"died at step {turn}"
    return turn


def go_on_after_a_successor(
    lake: Catalog, calls: Sequence[tuple[Any, str]], *, after: bool
) -> tuple[int, int]:
    """A writer stops before or after each of its ``calls`` while another one writes all. Returns how many
    there were, and how often the first one was refused."""
    fenced = 0
    for turn in itertools.count(1):
        lake.begin()
        rng = random.Random(turn)

        def succeed(_: Steps, rng: random.Random = rng) -> None:
            _write_all(lake.sink(), rng)

        steps = Steps(turn, succeed, after=after)
        try:
            with steps.watching(calls):
                _write_all(lake.sink(), rng)
        except SinkFencedError:
            fenced += 1
        if steps.count < turn:
            break
        assert lake.read().places() == ALL, f"stopped at step {turn}"
    return turn, fenced


def write_at_once(lake: Catalog) -> IcebergFiles:
    """Three writers create the table and write a partition each. The rows of each have a column of their own:
    no creation replaces another's schema."""
    tps = [TopicPartition("flights", partition) for partition in range(3)]
    barrier = threading.Barrier(len(tps))

    def work(tp: TopicPartition) -> None:
        sink, rng = lake.sink(), random.Random(tp.partition)
        barrier.wait()
        at = sink.marks([tp]).get(tp, {}).get(OLD, 0)
        while at < RECORDS:
            end = min(RECORDS, at + rng.randrange(1, 5))
            own = {f"column{tp.partition}": pa.array(range(at, end), pa.int64())}
            table = rows(range(at, end), tp.partition, **own)
            sink.stage(table, {tp: Range(OLD, at, end, at or None)}).publish()
            at = end

    at_once(work, tps)
    table = lake.read()
    assert table.places() == Counter({(tp.partition, o): 1 for tp in tps for o in range(RECORDS)})
    assert [row for row in table.rows() if row[f"column{row['partition']}"] != row["offset"]] == []
    return table
