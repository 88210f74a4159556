"""The notes of keys that were deleted from a Delta table: a Delta table in its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.deleted_keys import NAME, notes_schema
from slackwater.pipeline.sinks.delta.store import DeltaStore

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

FOLDER = f"_{NAME}"
"""In the table's folder. VACUUM passes over names that begin with an underscore."""
_UNUSED_HOURS = 1
"""How long a file stays that a clean-up has replaced: others may read it."""


class DeltaNotes:
    """The :class:`~slackwater.pipeline.sinks.deleted_keys.Notes` for the table in ``store``."""

    def __init__(self, store: DeltaStore) -> None:
        self._address, self._options = f"{store.address}/{FOLDER}", store.options
        self._table: DeltaTable | None = None

    def read(self, known: Collection[str]) -> Mapping[str, pa.Table | None]:
        """The notes by file."""
        from deltalake.exceptions import TableNotFoundError

        try:
            if self._table is None:
                self._table = self._load()
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
            return {}
        files = self._table.to_pyarrow_dataset().get_fragments()
        return {
            file.path: None if file.path in known else file.to_table(schema=notes_schema()) for file in files
        }

    def append(self, notes: pa.Table) -> int:
        """Adds notes. Returns the table's version."""
        from deltalake import CommitProperties, DeltaTable, write_deltalake
        from deltalake.exceptions import CommitFailedError

        if self._table is None:
            with contextlib.suppress(CommitFailedError):  # another worker creates it, too
                DeltaTable.create(
                    self._address,
                    notes.schema,
                    mode="ignore",
                    storage_options=self._options,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            self._table = self._load()
        write_deltalake(self._table, notes, mode="append")
        return int(self._table.version())

    def clean_up(self, before_ms: int) -> None:
        """Deletes old notes, and compacts."""
        from deltalake.exceptions import CommitFailedError

        table = self._load()
        with contextlib.suppress(CommitFailedError):
            table.delete(f"deleted_at_ms < {before_ms}")
            table.optimize.compact()
            table.vacuum(_UNUSED_HOURS, dry_run=False, enforce_retention_duration=False)

    def _load(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self._address, storage_options=self._options)
