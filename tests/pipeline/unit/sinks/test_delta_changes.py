"""Mode ``changes`` of a Delta table."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from slackwater.pipeline.sinks import deleted_keys
from slackwater.pipeline.sinks.delta.notes import FOLDER
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import RecordsError
from tests.support.delta import DeltaFolder
from tests.support.sink_changes import REMEMBERS, CommittedChangesCases, changes
from tests.support.sinks import A, B, marks, once, put


class TestDeltaChanges(CommittedChangesCases):
    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.folder = request.getfixturevalue("tmp_path")

    def made(self, **settings: Any) -> TableSink:
        return delta_sink("g", str(self.folder), mode="changes", key=["id"], **settings)

    def stored(self) -> list[dict[str, Any]]:
        return DeltaFolder(self.folder).rows()

    def notes(self) -> tuple[list[str], int]:
        read = DeltaFolder(self.folder / FOLDER)
        return sorted(row["key"] for row in read.rows()), len(read.files)

    def require(self, column: str) -> None:
        DeltaTable(self.folder).alter.add_constraint({"required": f"{column} IS NOT NULL"})

    def test_not_null_is_for_rows_that_are_written(self) -> None:
        schema = changes((None, 1, "a")).drop_columns("_op").schema
        needed = schema.set(schema.get_field_index("v"), pa.field("v", pa.string(), nullable=False))
        DeltaTable.create(self.folder, needed)
        at = put(self.made(), changes((None, 1, "a"), (None, 2, "b")), 0)
        at = put(self.made(), changes(("delete", 1, None), (None, 2, "B"), start=at), at)
        assert self.values() == {2: "B"}
        with pytest.raises(RecordsError, match="the column v must not be null"):
            put(self.made(), changes((None, 2, None), start=at), at)

    def test_a_row_does_not_come_back_where_the_delete_is_committed_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = self.made(**REMEMBERS), self.made(**REMEMBERS)
        put(first, changes((None, 1, "a", 1)), 0)
        once(monkeypatch, partial(put, second, changes(("delete", 2, None, 5), partition=1), 0, B))
        put(first, changes((None, 2, "late", 3), start=1), 1)
        assert self.values() == {1: "a"}

    def test_a_row_does_not_come_back_where_the_delete_is_committed_last(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one has read the notes before the other has made its own."""
        first, second, apply = self.made(**REMEMBERS), self.made(**REMEMBERS), deleted_keys.DeletedKeys.apply
        put(first, changes((None, 1, "a", 1)), 0)
        late = changes((None, 2, "late", 3), start=1)
        writes = threading.Thread(target=put, args=(first, late, 1))
        has_read, has_noted = threading.Event(), threading.Event()

        def watched(*args: Any) -> pa.Table:
            rows = apply(*args)
            if threading.current_thread() is writes and not has_read.is_set():
                has_read.set()
                has_noted.wait()
            elif not has_noted.is_set():
                has_noted.set()
                writes.join()
            return rows

        monkeypatch.setattr(deleted_keys.DeletedKeys, "apply", watched)
        writes.start()
        has_read.wait()
        put(second, changes(("delete", 2, None, 5), partition=1), 0, B)
        assert self.values() == {1: "a"}
        assert marks(first) == {A: 2, B: 1}

    def test_a_vacuum_leaves_the_notes(self) -> None:
        put(self.made(**REMEMBERS), changes(("delete", 1, None, 5)), 0)
        DeltaTable(self.folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        put(self.made(**REMEMBERS), changes((None, 1, "late", 4), start=1), 1)
        assert self.values() == {}
