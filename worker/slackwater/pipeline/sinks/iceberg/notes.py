"""The notes of keys that were deleted from an Iceberg table: a table beside it, in the same catalog."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.deleted_keys import NAME, notes_schema
from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog
from slackwater.pipeline.sinks.iceberg.keyed import read
from slackwater.pipeline.sinks.iceberg.types import iceberg_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table


class IcebergNotes:
    """The :class:`~slackwater.pipeline.sinks.deleted_keys.Notes` for the table that ``catalog`` names."""

    def __init__(self, catalog: IcebergCatalog) -> None:
        self._catalog = catalog
        *namespace, name = catalog.identifier
        self._identifier = (*namespace, f"{name}_{NAME}")
        self._table: Table | None = None

    def read(self, known: Collection[str]) -> Mapping[str, pa.Table | None]:
        """The notes by file."""
        from pyiceberg.exceptions import NoSuchTableError

        before = "" if self._table is None else self._table.metadata_location
        try:
            self._table = self._catalog.connected().load_table(self._identifier)
        except NoSuchTableError:
            self._table = None
            return {}
        if known and self._table.metadata_location == before:
            return dict.fromkeys(known)
        files = {task.file.file_path: task for task in self._table.scan().plan_files()}
        return {
            path: None
            if path in known
            else read(self._table.metadata, self._table, task).cast(notes_schema())
            for path, task in files.items()
        }

    def append(self, notes: pa.Table) -> int:
        """Adds notes. Returns the sequence number."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog = self._catalog.connected()
        if self._table is None:
            with contextlib.suppress(TableAlreadyExistsError):  # another worker creates it, too
                catalog.create_table(self._identifier, iceberg_schema(notes.schema))
            self._table = catalog.load_table(self._identifier)
        self._table.append(notes)
        current = self._table.current_snapshot()
        return 0 if current is None else current.sequence_number or 0

    def clean_up(self, before_ms: int) -> None:
        """Writes the notes that are left into one file."""
        import pyarrow.compute as pc
        from pyiceberg.exceptions import CommitFailedException

        table = self._catalog.connected().load_table(self._identifier)
        notes = table.scan().to_arrow().cast(notes_schema())
        change = table.transaction()
        change.overwrite(notes.filter(pc.greater_equal(notes["deleted_at_ms"], before_ms)))
        # Without them, pyiceberg does not try again on top of notes that were added meanwhile.
        change._snapshot_producers = []
        with contextlib.suppress(CommitFailedException):
            change.commit_transaction()
