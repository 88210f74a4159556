"""Tables of their own for tests, in a catalog: names, sinks that write them, and what is in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.table.update import snapshot

from slackwater.pipeline.sinks.iceberg import partitions
from slackwater.pipeline.sinks.iceberg.sink import iceberg_sink
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.pipeline.sinks.table_sink import TableSink
from tests.support.iceberg.reader import IcebergFiles, read_local

SINK_CALLS: list[tuple[Any, str]] = [
    (snapshot, "write_manifest_list"),
    (partitions, "write"),
    (TableSink, "stage"),
    (StagedRows, "publish"),
]
"""Calls that a sink makes, beside those of its catalog."""
_numbers = itertools.count(1)


class Catalog:
    """A catalog. ``place``: its SQLite database, or what gives the file of a table's metadata. ``options``:
    those of the sink."""

    def __init__(
        self,
        place: Path | Callable[[str], str],
        options: Mapping[str, str],
        read: Callable[[str], bytes] = read_local,
    ) -> None:
        self._place, self.options, self._read = place, dict(options), read
        self.begin()

    def begin(self) -> None:
        """From now on: another table, that is not there yet, nor is its namespace."""
        self.table = f"lake{next(_numbers)}.flights"

    def sink(self, group_id: str = "g", **arguments: Any) -> TableSink:
        """A sink for the table; ``arguments`` are TableSink's."""
        return iceberg_sink(group_id, self.table, **{"options": self.options, **arguments})

    def read(self) -> IcebergFiles:
        """What is in the table."""
        return IcebergFiles(self._place, self.table, self._read)

    def other(self) -> Table:
        """The table as another process has it, which knows nothing of Slackwater."""
        return load_catalog("default", **self.options).load_table(self.table)


def sql_catalog(folder: Path, warehouse: str = "", **more: str) -> Catalog:
    """A catalog in a SQLite file in ``folder``, for tables in ``warehouse``, or on the local disk."""
    database = folder / "catalog.db"
    options = {"uri": f"sqlite:///{database}", "warehouse": warehouse or f"file://{folder}/warehouse", **more}
    return Catalog(database, options)
