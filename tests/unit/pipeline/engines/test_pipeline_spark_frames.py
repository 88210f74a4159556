"""The form in which a batch goes to Spark: pieces for a local session, lists of rows for a Connect server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from slackwater.pipeline.engines import frames
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
