"""The keys that were deleted from a Delta table, each with its version: a Delta table in its own folder.

A batch notes the keys that it deletes before it commits to the table, so that no other commit comes without
them. A note whose batch fails says nothing wrong: the batch is made again, by this worker or another.

A batch reads the notes after it has read the table. If another one deletes one of its keys meanwhile, that
one's commit to the table refuses this one's, which then begins anew.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.changes import DIGITS, OP, key_texts, version_numbers
from slackwater.pipeline.sinks.delta.store import DeltaStore
from slackwater.runtime.errors import WorkerError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

FOLDER = "_slackwater_deleted"
"""In the table's folder. VACUUM passes over names that begin with an underscore."""
_CLEAN_UP_EVERY = 50
"""Commits after which the notes are made one file, and old ones are forgotten."""
_UNUSED_HOURS = 1
"""How long a file of notes stays that a clean-up has replaced: others may read it."""


class DeltaDeletedKeys:
    """The notes for the table in ``store``, which count for ``kept_ms`` at least.

    Its methods raise SinkError, and RecordsError for a version with too many digits.
    """

    def __init__(self, store: DeltaStore, kept_ms: int) -> None:
        self._store, self._kept_ms = store, kept_ms
        self._address = f"{store.address}/{FOLDER}"
        self._table: DeltaTable | None = None
        self._known: pa.Table | None = None
        """The greatest version of each key; None: there is no note."""
        self._files: frozenset[str] = frozenset()
        """Those that are in ``_known``."""

    def apply(self, rows: pa.Table, key: Sequence[str], version: str) -> pa.Table:
        """Notes the keys that ``rows`` delete. Returns ``rows`` without those that an earlier note makes
        outdated. ``rows`` have each key once, and the column ``_op``."""
        try:
            self._read()
            return self._applied(rows, key, version)
        except WorkerError:
            raise
        except Exception as exc:
            raise self._store.error("note deleted keys of", exc) from None

    def _applied(self, rows: pa.Table, key: Sequence[str], version: str) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        given = pa.table(
            {
                "key": key_texts(rows, key),
                "given": version_numbers(rows, version),
                "deletes": rows.column(OP),
                "at": pa.array(range(rows.num_rows), pa.int64()),
            }
        )
        notes = _schema().empty_table().select(["key", "version"]) if self._known is None else self._known
        known = given.join(notes, "key", join_type="left outer").sort_by("at")
        is_older = pc.fill_null(pc.less(known["given"], known["version"]), False)
        is_new = pc.and_(known["deletes"], pc.fill_null(pc.greater(known["given"], known["version"]), True))
        new = known.filter(is_new)
        if new.num_rows:
            self._append(new["key"], new["given"])
        return rows.filter(pc.invert(is_older))

    def _read(self) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            if self._table is None:
                self._table = DeltaTable(self._address, storage_options=self._store.options)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            self._table = None
            return
        fragments = {part.path: part for part in self._table.to_pyarrow_dataset().get_fragments()}
        new = [part for path, part in fragments.items() if path not in self._files]
        if new:
            parts = [part.to_table(schema=_schema(), columns=["key", "version"]) for part in new]
            notes = pa.concat_tables(parts if self._known is None else [self._known, *parts])
            greatest = notes.group_by("key").aggregate([("version", "max")])
            self._known = greatest.rename_columns(["key", "version"])
        self._files = frozenset(fragments)

    def _append(self, keys: pa.ChunkedArray, versions: pa.ChunkedArray) -> None:
        import pyarrow as pa
        from deltalake import CommitProperties, DeltaTable, write_deltalake
        from deltalake.exceptions import CommitFailedError

        if self._table is None:
            with contextlib.suppress(CommitFailedError):
                DeltaTable.create(
                    self._address,
                    _schema(),
                    mode="ignore",
                    storage_options=self._store.options,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            self._table = DeltaTable(self._address, storage_options=self._store.options)
        now_ms = time.time_ns() // 1_000_000
        times = pa.repeat(pa.scalar(now_ms, pa.int64()), len(keys))
        write_deltalake(self._table, pa.table([keys, versions, times], schema=_schema()), mode="append")
        if self._table.version() % _CLEAN_UP_EVERY == 0:
            with contextlib.suppress(CommitFailedError):  # another worker does so, too
                self._clean_up(self._table, now_ms - self._kept_ms)

    def _clean_up(self, table: DeltaTable, before_ms: int) -> None:
        table.delete(f"deleted_at_ms < {before_ms}")
        table.optimize.compact()
        table.vacuum(_UNUSED_HOURS, dry_run=False, enforce_retention_duration=False)
        self._known, self._files = None, frozenset()  # to be read again, without those that are forgotten


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [("key", pa.string()), ("version", pa.decimal128(*DIGITS)), ("deleted_at_ms", pa.int64())]
    )
