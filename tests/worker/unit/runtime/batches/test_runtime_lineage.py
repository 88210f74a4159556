"""``lineage: batch``: rows without positions are committed under their batch's ranges. In virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from slackwater import Batch
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.errors import HandlerError
from tests.support.workers.fakes import Bench


class Sums:
    """Adds up the values of a batch: a row for all that are even, one for the others. It rejects those
    below 0, and fails with a text."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def start(self) -> None: ...

    def warm_up(self) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...

    def transform(self, table: pa.Table, batch: Batch) -> pa.Table:
        self.calls.append(table.num_rows)
        values = [int(value) for value in table["value"].to_pylist()]
        rows: list[dict[str, Any]] = [
            {"even": even, "total": sum(value for value in values if value >= 0 and (value % 2 == 0) is even)}
            for even in (True, False)
        ]
        for row, value in zip(
            table.select(["topic", "partition", "offset"]).to_pylist(), values, strict=True
        ):
            if value < 0:
                rows.append({**row, "_error": "below 0"})
        columns = dict.fromkeys(name for row in rows for name in row)
        return pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows])


class Site:
    """A group whose sums are in Parquet files, with three partitions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bench = Bench(lineage="batch")
        self.tps = [TopicPartition("flights", number) for number in range(3)]
        for tp in self.tps:
            self.bench.cluster.produce(tp.partition, [])
        self.restart()

    def restart(self, max_records: int = 100) -> None:
        self.engine = Sums()
        self.bench.sink = ParquetSink("flights", str(self.folder))
        self.bench.restart(max_records=max_records, engine=self.engine)

    def produce(self, partition: int, *values: int | str) -> None:
        self.bench.produce(partition, *map(str, values))

    def run(self, *partitions: TopicPartition, generation: int = 1) -> None:
        self.bench.assign(*(partitions or self.tps), generation=generation)
        self.bench.until_idle()

    def table(self) -> pa.Table:
        return ds.dataset(sorted(self.folder.glob("*.parquet"))).to_table()

    def total(self) -> int:
        return sum(self.table()["total"].to_pylist())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "out")


def test_rows_need_no_position_and_are_committed_with_all_marks(site: Site) -> None:
    site.produce(0, 1, 2, 3)
    site.produce(1, 10, 20)
    site.produce(2, 100)
    site.run()
    assert site.table().to_pylist() == [{"even": True, "total": 132}, {"even": False, "total": 4}]
    assert [site.bench.cluster.committed[tp].offset for tp in site.tps] == [3, 2, 1]
    marks = site.bench.sink.marks(site.tps)
    assert [dict(marks[tp]) for tp in site.tps] == [{"": 3}, {"": 2}, {"": 1}]
    (event,) = site.bench.events("batch")
    assert (event["records"], event["out"]) == (6, 2)


def test_a_replay_adds_nothing(site: Site) -> None:
    site.produce(0, 1, 2, 3)
    site.produce(1, 10)
    site.run(*site.tps[:2])
    site.bench.cluster.committed.clear()
    site.restart()
    site.produce(0, 5)
    site.run(*site.tps[:2])
    assert site.total() == 21
    assert site.engine.calls == [1]


def test_a_record_is_rejected_with_its_position(site: Site) -> None:
    site.produce(0, 1, -7, 3)
    site.run(site.tps[0])
    assert site.bench.letters.origins() == ["flights-0@1"]
    assert site.table().to_pylist() == [{"even": True, "total": 0}, {"even": False, "total": 4}]


def test_a_record_that_breaks_the_batch_is_left_out_of_the_sums(site: Site) -> None:
    site.produce(0, *range(20))
    site.produce(1, "eleven", 1)
    site.run(*site.tps[:2])
    assert site.bench.letters.origins() == ["flights-1@0"]
    assert site.total() == sum(range(20)) + 1
    assert site.engine.calls[-1] == 21, "one call with all others, whose rows count"


def test_a_batch_of_dead_letters_alone_commits(site: Site) -> None:
    site.produce(0, -1, -2)
    site.run(site.tps[0])
    assert site.total() == 0
    assert len(site.bench.letters.origins()) == 2
    site.bench.cluster.committed.clear()
    site.restart()
    site.run(site.tps[0])
    assert len(site.bench.letters.origins()) == 2


@pytest.mark.parametrize("steps", range(2, 14))
def test_a_partition_that_goes_takes_the_whole_batch_with_it(site: Site, steps: int) -> None:
    """However far the batch is: what was not committed is read again, each record counts once."""
    site.restart(max_records=6)
    site.bench.runner.usual_ms = site.bench.writer.usual_ms = 60
    for partition in (0, 1, 2) * 4:
        site.produce(partition, 10**partition, 10**partition)
    bench, (a, b, c) = site.bench, site.tps
    bench.assign(a, b, c)
    bench.steps(steps)
    bench.consumer.at_poll.append(lambda: bench.consumer.lose(b))
    bench.steps(3)
    bench.until_idle()
    assert bench.cluster.committed[a].offset == bench.cluster.committed[c].offset == 8
    bench.assign(b, generation=2)
    bench.until_idle()
    assert site.total() == 888
    assert bench.cluster.committed[b].offset == 8


def test_an_error_without_a_position_is_the_handlers(site: Site) -> None:
    result = pa.table({"total": [1], "_error": ["who?"]})
    site.engine.transform = lambda table, batch: result  # type: ignore[method-assign]
    site.produce(0, 1)
    with pytest.raises(HandlerError, match="must have the column topic"):
        site.run(site.tps[0])
