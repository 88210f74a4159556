"""An Iceberg table: what is in it, whoever writes it and wherever a writer is stopped.

The tables are read by :mod:`tests.support.iceberg.reader`, which knows nothing of pyiceberg.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table.update import snapshot
from sqlalchemy.orm import Session

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.iceberg import marks as iceberg_marks
from slackwater.pipeline.sinks.iceberg import partitions
from slackwater.pipeline.sinks.iceberg import sink as iceberg_sink
from slackwater.pipeline.sinks.iceberg.marks import Place
from slackwater.pipeline.sinks.iceberg.sink import IcebergSink, IcebergStaged
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks
from tests.support.iceberg.catalogs import Catalog, sql_catalog
from tests.support.sinks import NEW, OLD, A, B, Died, Steps, die, marks, put, rows

RECORDS = 12
"""Of each partition."""
ALL = Counter({(partition, offset): 1 for partition in (0, 1) for offset in range(RECORDS)})

stage, write_all = partial(sinks.stage, records=RECORDS), partial(sinks.write_all, records=RECORDS)
CALLS: list[tuple[Any, str]] = [
    (SqlCatalog, "create_namespace"),
    (SqlCatalog, "create_table"),
    (SqlCatalog, "load_table"),
    (SqlCatalog, "commit_table"),
    (snapshot, "write_manifest_list"),
    (partitions, "write"),
    (IcebergSink, "stage"),
    (IcebergStaged, "publish"),
]
WITHIN = (Session, "commit")
"""Before it, a writer holds SQLite's lock: when it dies, that is gone, and as long as it is stopped, nobody
else writes."""


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    return sql_catalog(tmp_path)


def data_files(folder: Path) -> set[str]:
    return {f"file://{path}" for path in folder.rglob("*.parquet")}


# ---- exactly once


def test_staged_rows_are_invisible_until_published(lake: Catalog, tmp_path: Path) -> None:
    sink = lake.sink()
    assert sink.marks([A, B]) == {}
    staged = stage(sink, {A: 0, B: 0})
    assert not (tmp_path / "warehouse").exists()
    staged.publish()
    table = lake.read()
    assert table.places() == Counter({(p, offset): 1 for p in (0, 1) for offset in range(5)})
    assert len(table.files) == 1, "one file a batch, whatever its partitions"
    assert table.marks == {("g", "flights", OLD, 0): 5, ("g", "flights", OLD, 1): 5}
    assert marks(lake.sink()) == {A: 5, B: 5}
    assert lake.other().scan().to_arrow().num_rows == 10


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_worker_that_dies_at_any_step_leaves_each_record_once(lake: Catalog, after: bool) -> None:
    """Also between the table's commit and the worker's knowledge of it: it asks for the marks anew."""
    for turn in itertools.count(1):
        lake.begin()
        rng, steps = random.Random(turn), Steps(turn, die, after=after)
        try:
            with steps.watching([*CALLS, WITHIN]):
                write_all(lake.sink(), rng)
            break
        except Died:
            pass
        write_all(lake.sink(), rng)
        assert lake.read().places() == ALL, f"died at step {turn}"
    assert turn > 20


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing(
    lake: Catalog, after: bool
) -> None:
    fenced = 0
    for turn in itertools.count(1):
        lake.begin()
        rng = random.Random(turn)

        def succeed(_: Steps, rng: random.Random = rng) -> None:
            write_all(lake.sink(), rng)

        steps = Steps(turn, succeed, after=after)
        try:
            with steps.watching(CALLS):
                write_all(lake.sink(), rng)
        except SinkFencedError:
            fenced += 1
        if steps.count < turn:
            break
        assert lake.read().places() == ALL, f"stopped at step {turn}"
    assert turn > 20
    assert fenced > 5


def test_an_offset_that_is_set_back_writes_nothing_twice(lake: Catalog, tmp_path: Path) -> None:
    sink = lake.sink()
    for start in range(0, RECORDS, 5):
        stage(sink, {A: start}).publish()
    again = lake.sink()
    assert marks(again)[A] == RECORDS, "a worker begins there"
    with pytest.raises(SinkFencedError, match="another process has written flights-0"):
        again.stage(rows(range(3)), {A: Range(OLD, 0, 3, None)}).publish()
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(RECORDS)})
    assert data_files(tmp_path) == set(lake.read().files)


def test_three_workers_that_create_the_table_at_once_write_each_record_once(
    lake: Catalog, tmp_path: Path
) -> None:
    """The rows of each have a column of their own: no creation replaces another's schema."""
    tps = [TopicPartition("flights", partition) for partition in range(3)]
    errors: list[BaseException] = []

    def work(tp: TopicPartition, barrier: threading.Barrier) -> None:
        try:
            sink, rng = lake.sink(), random.Random(tp.partition)
            barrier.wait()
            at = sink.marks([tp]).get(tp, {}).get(OLD, 0)
            while at < RECORDS:
                end = min(RECORDS, at + rng.randrange(1, 5))
                own = {f"column{tp.partition}": pa.array(range(at, end), pa.int64())}
                table = rows(range(at, end), tp.partition, **own)
                sink.stage(table, {tp: Range(OLD, at, end, at or None)}).publish()
                at = end
        except BaseException as exc:
            errors.append(exc)

    for _ in range(3):
        lake.begin()
        barrier = threading.Barrier(len(tps))
        threads = [threading.Thread(target=work, args=(tp, barrier)) for tp in tps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        table = lake.read()
        assert table.places() == Counter({(tp.partition, o): 1 for tp in tps for o in range(RECORDS)})
        assert [row for row in table.rows() if row[f"column{row['partition']}"] != row["offset"]] == []
        folder = tmp_path / "warehouse" / lake.table.split(".")[0]
        assert data_files(folder) == set(table.files), "tries that were refused leave no data files"


def test_what_is_dropped_is_neither_written_nor_marked(lake: Catalog) -> None:
    sink = lake.sink()
    staged = stage(sink, {A: 0, B: 0})
    staged.drop([A, TopicPartition("other", 0)])
    staged.publish()
    table = lake.read()
    assert table.places() == Counter({(1, offset): 1 for offset in range(5)})
    assert marks(sink) == {A: 0, B: 5}
    staged = stage(sink, {A: 0, B: 5})
    staged.drop([A])
    staged.drop([B])
    staged.publish()
    assert lake.read().metadata == table.metadata


def test_a_batch_that_is_discarded_leaves_nothing(lake: Catalog, tmp_path: Path) -> None:
    stage(lake.sink(), {A: 0}).discard()
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.db"]


def test_a_batch_without_rows_moves_the_mark(lake: Catalog) -> None:
    """In a commit that another one of main breaks, as one that only sets properties would not be."""
    sink = lake.sink()
    put(sink, rows([]), 0)
    put(sink, rows([1]), 1)
    first = lake.read()
    put(sink, rows([]), 2)
    table = lake.read()
    assert (marks(sink), table.places()) == ({A: 3, B: 0}, Counter({(0, 1): 1}))
    assert (table.snapshot or {})["parent-snapshot-id"] == (first.snapshot or {})["snapshot-id"]
    assert table.files == first.files
    former = sink.stage(rows([2]), {A: Range(OLD, 2, 3, 2)})
    with pytest.raises(SinkFencedError):
        former.publish()


@pytest.mark.parametrize("empty", [pa.table({}), rows([]).select(["topic", "partition", "offset"])])
def test_a_batch_without_rows_and_columns_creates_no_table_that_rows_do_not_fit(
    lake: Catalog, empty: pa.Table
) -> None:
    """The table is to be partitioned by a column that only rows have."""
    day = pa.array([datetime.date(2026, 1, 1)])
    sink = lake.sink(partition_by=["day"])
    sink.stage(empty, {A: Range(OLD, 0, 3, None)}).publish()
    sink.stage(empty, {A: Range(OLD, 3, 5, 3)}).publish()
    with pytest.raises(SinkFencedError):
        sink.stage(empty, {A: Range(OLD, 3, 5, 3)}).publish()
    sink.stage(rows([5], day=day), {A: Range(OLD, 5, 6, 5)}).publish()
    assert lake.read().columns["day"] == "date"
    assert marks(sink)[A] == 6


def test_groups_and_topics_made_anew_have_marks_of_their_own(lake: Catalog) -> None:
    sink = lake.sink()
    put(sink, rows([0, 1]), 0)
    put(sink, rows([0]), 0, topic_id=NEW)
    put(sink, rows([0, 1, 2]), 0, topic_id="")
    others = ["g/flights", "g/flights/", "", "/", "G", "g ", "ü%2F"]
    for number, group in enumerate(others):
        put(lake.sink(group), rows([5]), 5 + number)
    assert sink.marks([A, B]) == {A: {OLD: 2, NEW: 1, "": 3}}
    for number, group in enumerate(others):
        assert lake.sink(group).marks([A]) == {A: {OLD: 6 + number}}
    assert sink.marks([]) == {}


# ---- answers that are lost


@contextlib.contextmanager
def failing_after(error: Exception, *, at: int = 1) -> Iterator[list[int]]:
    """The catalog makes commit number ``at``, and answers with ``error``."""
    commit, calls = SqlCatalog.commit_table, [0]

    def commit_table(*arguments: Any) -> Any:
        response = commit(*arguments)
        calls[0] += 1
        if calls[0] == at:
            raise error
        return response

    with mock.patch.object(SqlCatalog, "commit_table", commit_table):
        yield calls


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("reset by peer"),
        CommitStateUnknownException("502"),
        # A proxy has sent the request twice.
        CommitFailedException("main has changed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_commit_whose_answer_is_lost_is_made_once(lake: Catalog, error: Exception) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    with failing_after(error) as calls:
        stage(sink, {A: 5}, RECORDS).publish()
    assert calls == [1]
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(RECORDS)})
    with failing_after(error) as calls:
        assert sink.rewind({A: (OLD, 3)}) == RECORDS - 3
    assert calls == [1]
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(3)})


def test_a_commit_that_failed_for_another_reason_is_an_error(lake: Catalog, tmp_path: Path) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    staged = stage(sink, {A: 5})
    with (
        mock.patch.object(SqlCatalog, "commit_table", side_effect=OSError("No space left on device")),
        pytest.raises(
            SinkError, match=r"cannot write to the Iceberg table lake.*: No space left.*; free some"
        ),
    ):
        staged.publish()
    assert marks(sink)[A] == 5
    stage(sink, {A: 5}, RECORDS).publish()
    assert lake.read().places() == Counter({(0, offset): 1 for offset in range(RECORDS)})


def test_a_table_to_which_others_always_commit_first_is_an_error(
    lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_sink, "_TRIES", 3)
    monkeypatch.setattr(iceberg_sink, "_LONGEST_WAIT_S", 0)
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    staged, before = stage(sink, {A: 5}), set(tmp_path.rglob("*.*"))
    with (
        mock.patch.object(SqlCatalog, "commit_table", side_effect=CommitFailedException("main")) as commit,
        pytest.raises(SinkError, match=r"other commits came first 3 times \(main\); have fewer workers"),
    ):
        staged.publish()
    assert commit.call_count == 3
    left = {path.suffix for path in set(tmp_path.rglob("*.*")) - before}
    assert left <= {".avro"}, "the data file was written once, and removed; the last try's manifests stay"
    assert len(set(tmp_path.rglob("*.avro")) - before) == 2


# ---- what others do to the table


def expire_all(lake: Catalog) -> None:
    """All snapshots but the current one, as Spark's expire_snapshots with retain_last => 1."""
    table = lake.other()
    current = table.current_snapshot()
    assert current is not None
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current.snapshot_id]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def compact(lake: Catalog) -> None:
    """Rewrites all rows, as another engine does: its snapshot knows nothing of Slackwater."""
    table = lake.other()
    table.overwrite(table.scan().to_arrow())


def delete(lake: Catalog) -> None:
    lake.other().delete("offset = 0")


def append(lake: Catalog) -> None:
    lake.other().append(pa.table({"carrier": ["other"]}))


def add_a_column(lake: Catalog) -> None:
    from pyiceberg.types import StringType

    with lake.other().update_schema() as update:
        update.add_column("extra", StringType())


def set_a_property(lake: Catalog) -> None:
    with lake.other().transaction() as change:
        change.set_properties({"owner": "somebody"})


OTHERS = [expire_all, compact, delete, append, add_a_column, set_a_property]


def test_marks_outlive_commits_of_others_and_snapshots_that_expire(lake: Catalog) -> None:
    """The snapshot of the last batch is gone, and the one that is left was not made by Slackwater."""
    stage(lake.sink(), {A: 0, B: 0}).publish()
    compact(lake)
    append(lake)
    expire_all(lake)
    table = lake.read()
    assert len(table.metadata["snapshots"]) == 1
    assert "slackwater.commit" not in (table.snapshot or {})["summary"]
    assert marks(lake.sink()) == {A: 5, B: 5}
    with pytest.raises(SinkFencedError):
        lake.sink().stage(rows([0]), {A: Range(OLD, 0, 1, None)}).publish()


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
def test_a_commit_of_another_process_in_between_is_borne(
    lake: Catalog, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the table and the commit; neither side's commit is lost."""
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    commit = SqlCatalog.commit_table

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        change(lake)
        return commit(*arguments)

    staged = stage(sink, {A: 5, B: 0}, RECORDS)
    monkeypatch.setattr(SqlCatalog, "commit_table", once)
    staged.publish()
    table = lake.read()
    expected = Counter({(p, offset): 1 for p in (0, 1) for offset in range(RECORDS)})
    if change is delete:
        expected = Counter({place: 1 for place in expected if place[1] or place[0]})
    if change is append:
        expected[None, None] = 1  # type: ignore[index]
    assert table.places() == expected
    assert marks(lake.sink()) == {A: RECORDS, B: RECORDS}
    assert ("extra" in table.columns) == (change is add_a_column)
    assert table.metadata["properties"].get("owner") == ("somebody" if change is set_a_property else None)


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
def test_a_commit_of_another_process_does_not_undo_a_mark(
    lake: Catalog, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the table before the sink's commit, and commits after it; pyiceberg tries again."""
    sink = lake.sink()
    stage(sink, {B: 0}).publish()
    stage(sink, {A: 0}).publish()
    commit = SqlCatalog.commit_table

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        put(lake.sink(), rows([]), 5)
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", once)
    with contextlib.suppress(CommitFailedException):
        change(lake)
    assert marks(lake.sink())[A] == 6
    with pytest.raises(SinkFencedError):
        sink.stage(rows([5]), {A: Range(OLD, 5, 6, 5)}).publish()


def test_two_writers_of_one_partition_without_rows_do_not_both_commit(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    commit = SqlCatalog.commit_table

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        sink_2 = lake.sink()
        sink_2.stage(rows([]), {A: Range(OLD, 5, 9, 5)}).publish()
        return commit(*arguments)

    staged = sink.stage(rows([]), {A: Range(OLD, 5, 7, 5)})
    monkeypatch.setattr(SqlCatalog, "commit_table", once)
    with pytest.raises(SinkFencedError, match="its rows are there up to 9, and this worker knows of 5"):
        staged.publish()
    assert marks(sink)[A] == 9


def test_another_table_in_the_same_place_is_noticed(lake: Catalog) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    staged = stage(sink, {A: 5})
    other = lake.other()
    other.catalog.drop_table(lake.table)
    with pytest.raises(SinkFencedError):
        staged.publish()
    write_all(sink, random.Random(1))
    assert lake.read().places() == ALL


def test_a_property_that_somebody_has_changed_is_named(lake: Catalog) -> None:
    sink = lake.sink()
    stage(sink, {A: 0}).publish()
    name = f"slackwater.marks/g/flights/{OLD}/0"
    with lake.other().transaction() as change:
        change.set_properties({name: "[1]"})
    with pytest.raises(SinkError, match=rf"property {name} is '\[1\]', which is no list of offsets"):
        sink.marks([A])


def test_marks_of_thousands_of_partitions_stay_small(lake: Catalog) -> None:
    """A commit sets the properties of its own partitions only, each below 4,000 characters."""
    every = {Place("g", "flights", OLD, number): 2**62 + number for number in range(5000)}
    properties = iceberg_marks.moved({}, every)
    assert iceberg_marks.read(properties) == every
    assert len(properties) == 50
    assert max(map(len, properties.values())) < 4000
    changed = iceberg_marks.moved(properties, {Place("g", "flights", OLD, 4321): 7})
    assert list(changed) == [f"slackwater.marks/g/flights/{OLD}/43"]
    assert iceberg_marks.read({**properties, **changed}) == {**every, Place("g", "flights", OLD, 4321): 7}
    ranges = {TopicPartition("flights", number): Range(OLD, 0, 1, None) for number in range(3000)}
    sink = lake.sink()
    table = pa.concat_tables([rows([0], number) for number in range(3000)])
    sink.stage(table, ranges).publish()
    assert lake.read().marks == {("g", "flights", OLD, number): 1 for number in range(3000)}
