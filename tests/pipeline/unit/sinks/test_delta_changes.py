"""Mode ``changes`` of a Delta table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import RecordsError
from tests.support.delta import DeltaFolder
from tests.support.sink_changes import ChangesCases, changes
from tests.support.sinks import put


class TestDeltaChanges(ChangesCases):
    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.folder = request.getfixturevalue("tmp_path")

    def made(self, **settings: Any) -> TableSink:
        return delta_sink("g", str(self.folder), mode="changes", key=["id"], **settings)

    def stored(self) -> list[dict[str, Any]]:
        return DeltaFolder(self.folder).rows()

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
