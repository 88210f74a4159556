"""The keys that were deleted from a table, each with its version, for tables whose commits refuse each other.

They are rows of a table of their own, the notes. A batch notes the keys that it deletes before it commits to
the table, so that no other commit comes without them. A note whose batch fails says nothing wrong: the batch
is made again, by this worker or another.

A batch reads the notes after it has read the table. If another one deletes one of its keys meanwhile, that
one's commit to the table refuses this one's, which then begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from slackwater.pipeline.sinks.changes import DIGITS, OP, key_texts, version_numbers
from slackwater.pipeline.sinks.table_sink import TablePlace
from slackwater.runtime.errors import WorkerError

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "slackwater_deleted"
"""What the names of the tables of notes have."""
CLEAN_UP_EVERY = 50
"""Commits of a table of notes after which it is made one file, without old notes."""


class Notes(Protocol):
    """A table of notes, with the columns of :func:`notes_schema`. Its methods raise its library's errors."""

    def read(self, known: Collection[str]) -> Mapping[str, pa.Table | None]:
        """Each file of the table, by name, with its notes; None for those in ``known``. Empty where there is
        no table."""

    def append(self, notes: pa.Table) -> int:
        """Adds notes, and creates the table. Returns the number of the commit."""

    def clean_up(self, before_ms: int) -> None:
        """Makes the table one file, without the notes from before that time; nothing, where another worker
        does so at the same time."""


class DeletedKeys:
    """What is noted for the table at ``place``; a note counts for ``kept_ms`` at least.

    Raises WorkerError where the notes cannot be read or written.
    """

    def __init__(self, place: TablePlace, notes: Notes, kept_ms: int) -> None:
        self._place, self._notes, self._kept_ms = place, notes, kept_ms
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
            raise self._place.error("note deleted keys of", exc) from None

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
        notes = (
            notes_schema().empty_table().select(["key", "version"]) if self._known is None else self._known
        )
        known = given.join(notes, "key", join_type="left outer").sort_by("at")
        is_older = pc.fill_null(pc.less(known["given"], known["version"]), False)
        is_new = pc.and_(known["deletes"], pc.fill_null(pc.greater(known["given"], known["version"]), True))
        new = known.filter(is_new)
        if new.num_rows:
            self._note(new["key"], new["given"])
        return rows.filter(pc.invert(is_older))

    def _read(self) -> None:
        import pyarrow as pa

        files = self._notes.read(self._files)
        new = [notes.select(["key", "version"]) for notes in files.values() if notes is not None]
        if new:
            notes = pa.concat_tables(new if self._known is None else [self._known, *new])
            greatest = notes.group_by("key").aggregate([("version", "max")])
            self._known = greatest.rename_columns(["key", "version"])
        self._files = frozenset(files)

    def _note(self, keys: pa.ChunkedArray, versions: pa.ChunkedArray) -> None:
        import pyarrow as pa

        now_ms = time.time_ns() // 1_000_000
        times = pa.repeat(pa.scalar(now_ms, pa.int64()), len(keys))
        commit = self._notes.append(pa.table([keys, versions, times], schema=notes_schema()))
        if commit % CLEAN_UP_EVERY == 0:
            self._notes.clean_up(now_ms - self._kept_ms)
            self._known, self._files = None, frozenset()  # to be read again, without those that are forgotten


def notes_schema() -> pa.Schema:
    """The columns of a table of notes."""
    import pyarrow as pa

    return pa.schema(
        [("key", pa.string()), ("version", pa.decimal128(*DIGITS)), ("deleted_at_ms", pa.int64())]
    )
