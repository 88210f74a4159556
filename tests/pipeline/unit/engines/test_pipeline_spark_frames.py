"""The form in which a batch goes to Spark: pieces for a local session; for a Connect server lists of rows, or
a file if it is on the same machine."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.pipeline.engines import frames
from slackwater.pipeline.engines.batch_files import BatchFiles, is_on_this_machine
from slackwater.pipeline.engines.frames import ROWS_A_TASK, TASKS_A_CORE, VIEW_BYTES, VIEW_ROWS


def batch(rows: int, partitions: int) -> pa.Table:
    """A polled batch: one chunk for each partition of the topic; every third record has no tags."""
    each = rows // partitions
    return pa.concat_tables(
        pa.table(
            {
                "offset": list(range(n * each, (n + 1) * each)),
                "tags": pa.array(
                    [None if i % 3 == 0 else ["a"] * (i % 5) for i in range(each)], pa.list_(pa.string())
                ),
            }
        )
        for n in range(partitions)
    )


@pytest.mark.parametrize(
    ("rows", "partitions", "tasks"),
    [
        (12, 12, 1),
        (2 * ROWS_A_TASK - 1, 1, 1),
        (12_000, 12, 12_000 // ROWS_A_TASK),
        (120_000, 12, 2 * TASKS_A_CORE),
        (120_000, 1, 2 * TASKS_A_CORE),
    ],
)
def test_a_batch_has_tasks_by_its_rows_and_the_cores(rows: int, partitions: int, tasks: int) -> None:
    table = batch(rows, partitions)
    pieces = frames.split(table, 2)
    assert pieces["offset"].num_chunks == tasks
    assert pieces.equals(table)


def test_no_piece_is_a_slice_because_pyspark_takes_no_slice_of_lists_with_nulls() -> None:
    table = batch(12_000, 12)
    lists = frames.packed(table)["records"].chunks
    of_pieces = frames.split(table, 2)["tags"].chunks
    assert len(of_pieces) > 1
    assert len(lists) > 1
    for tags in [*of_pieces, *(chunk.values.field("tags") for chunk in lists)]:
        assert tags.null_count
        assert tags.offset == 0
        # What PySpark does with each list.
        pa.ListArray.from_arrays(tags.offsets, tags.values, mask=tags.is_null())


@pytest.mark.parametrize("rows", [1, ROWS_A_TASK, ROWS_A_TASK + 1, 3 * ROWS_A_TASK])
def test_packed_rows_are_the_rows(rows: int) -> None:
    table = batch(rows, 1)
    packed = frames.packed(table)
    assert packed.num_rows == -(-rows // ROWS_A_TASK)
    unpacked = pa.Table.from_struct_array(
        pa.chunked_array([chunk.flatten() for chunk in packed["records"].chunks])
    )
    assert unpacked.equals(table)


UNPACKED = ["select inline(records)"]


class Session:
    """A Connect server's. ``events``: what it was asked for."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.catalog = self

    def createDataFrame(self, table: pa.Table) -> Any:  # noqa: N802
        self.events.append(f"rows {table.num_rows}")
        return self

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802
        self.events.append(f"create {name}")

    def table(self, name: str) -> Any:
        self.events.append(f"read {name}")
        return self

    def select(self, column: str) -> Any:
        self.events.append(f"select {column}")
        return self

    def dropTempView(self, name: str) -> None:  # noqa: N802
        self.events.append(f"drop {name}")
        raise ConnectionError("the server is gone")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr("pyspark.sql.functions.inline", lambda name: f"inline({name})")
    return Session()


@pytest.mark.parametrize(
    ("rows", "size_bytes", "by_view"),
    [
        (VIEW_ROWS - 1, 1, False),
        (VIEW_ROWS, 1, True),
        (2, VIEW_BYTES // 2 - 16, False),
        (2, VIEW_BYTES // 2, True),
    ],
)
def test_a_large_batch_goes_to_a_server_by_a_view(
    session: Any, rows: int, size_bytes: int, by_view: bool
) -> None:
    table = pa.table({"value": [b"x" * size_bytes] * rows})
    with frames.frame(session, table, None):
        inside = list(session.events)
    if not by_view:
        assert session.events == [f"rows {rows}"]
        return
    name = inside[1].removeprefix("create ")
    # The records are not part of the plan that is queried.
    assert inside == [f"rows {-(-rows // ROWS_A_TASK)}", f"create {name}", f"read {name}", *UNPACKED]
    assert session.events == [*inside, f"drop {name}"]


def test_the_view_is_dropped_and_the_querys_own_error_is_raised(session: Any) -> None:
    table = pa.table({"value": [b""] * VIEW_ROWS})
    with pytest.raises(ValueError, match="the handler"), frames.frame(session, table, None):
        raise ValueError("the handler")
    assert session.events[-1].startswith("drop ")


# -- files -----------------------------------------------------------------------------------------------


class ReadingSession(Session):
    """A server's that reads the worker's files, unless ``fails``."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.read = self
        self.rows = 0

    def schema(self, _schema: Any) -> Any:
        return self

    def option(self, *_pair: str) -> Any:
        return self

    def parquet(self, path: str) -> Any:
        self.events.append(f"file {Path(path).name}")
        if self.fails:
            raise OSError(f"[PATH_NOT_FOUND] Path does not exist: file:{path}")
        self.rows = pq.read_table(path).num_rows
        return self

    def count(self) -> int:
        return self.rows


LARGE = pa.table({"value": [b"x"] * VIEW_ROWS})


def sent(session: Any, table: pa.Table, files: BatchFiles) -> list[str]:
    """What the session was asked for while the batch was queried."""
    del session.events[:]
    with frames.frame(session, table, None, files):
        return [event.partition(" ")[0] for event in session.events]


@pytest.fixture
def by_view(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("pyspark.sql.functions.inline", lambda name: f"inline({name})")
    return ["rows", "create", "read", "select"]


@pytest.mark.parametrize(
    ("remote", "here"),
    [
        ("sc://127.0.0.1:15002", True),
        ("sc://localhost:15002/;use_ssl=true;token=t", True),
        ("sc://[::1]:15002", True),
        ("sc://spark-connect:15002", False),
        ("sc://10.1.2.3:15002", False),
        ("sc://localhost.example:15002", False),
    ],
)
def test_a_server_is_on_the_same_machine_by_its_address(remote: str, here: bool) -> None:
    assert is_on_this_machine(remote) is here


def test_a_large_batch_goes_in_a_file_to_a_server_that_reads_it(tmp_path: Path) -> None:
    session: Any = ReadingSession()
    files = BatchFiles(tmp_path)
    assert sent(session, LARGE.slice(1), files) == ["rows"]
    assert list(tmp_path.iterdir()) == [], "a small one needs no folder"
    assert sent(session, LARGE, files) == ["file", "file"], "the first is counted, to see that it is read"
    assert sent(session, LARGE, files) == ["file"]
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    inside: list[str] = []

    def fails() -> None:
        with frames.frame(session, LARGE, None, files):
            inside.extend(path.name for path in folder.glob("*.parquet"))
            raise ValueError("the handler")

    with pytest.raises(ValueError, match="the handler"):
        fails()
    assert inside == ["3.parquet"]
    assert list(folder.glob("*.parquet")) == []
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_read_the_first_file_gets_no_other(tmp_path: Path, by_view: list[str]) -> None:
    session: Any = ReadingSession(fails=True)
    files = BatchFiles(tmp_path)
    assert sent(session, LARGE, files) == ["file", *by_view]
    assert sent(session, LARGE, files) == by_view
    assert list(tmp_path.rglob("*.parquet")) == []


ROWS = VIEW_ROWS
LATE = 2**62
"""In ms: Spark's timestamps, in microseconds, end earlier."""


@pytest.mark.parametrize(
    "columns",
    [
        {"at": pa.array([datetime.datetime(2013, 1, 1)] * ROWS, pa.timestamp("us"))},
        {"at": pa.array([LATE] * ROWS, pa.timestamp("ms", tz="UTC"))},
        {"took": pa.array([1] * ROWS, pa.duration("us"))},
        {"n": [1] * ROWS, "N": [2] * ROWS},
        {"in": [{"a": 1, "A": 2}] * ROWS},
        {"of": pa.array([[None]] * ROWS, pa.list_(pa.null()))},
    ],
    ids=["no zone", "beyond Spark's", "a duration", "names", "names of fields", "no type"],
)
def test_what_a_file_does_not_hold_goes_by_a_view(
    tmp_path: Path, by_view: list[str], columns: dict[str, Any]
) -> None:
    session: Any = ReadingSession()
    assert sent(session, pa.table(columns), BatchFiles(tmp_path)) == by_view
    assert list(tmp_path.rglob("*.parquet")) == []


def test_where_no_file_can_be_written_it_goes_by_a_view(
    tmp_path: Path, by_view: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    session: Any = ReadingSession()
    with caplog.at_level(logging.WARNING):
        assert sent(session, LARGE, BatchFiles(tmp_path / "missing")) == by_view
    assert "No such file or directory" in caplog.text
