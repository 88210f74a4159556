"""An Iceberg table: a batch's rows and the marks of its partitions are one commit of the table's metadata.

The marks are properties of the table, set in the commit that adds the batch's snapshot. Others change the
table's metadata too: they append, compact, expire snapshots, set properties. None of that touches these
properties. (In the summaries of snapshots marks would be lost: another engine's commit does not carry them
over, and the snapshot that has them may expire.) Each commit requires that the branch main is where its
writer has read the marks, so of two writers one is refused, reads the marks again, and goes on only if they
have not moved.

The first batch creates the table, and its namespace. A write that is refused removes its files; what a
worker leaves that dies belongs to no snapshot, and ``remove_orphan_files`` removes it. Nothing here expires
snapshots or compacts files; anybody may do so at any time.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from slackwater import extras
from slackwater.pipeline.growth import Growth
from slackwater.pipeline.sinks import changes
from slackwater.pipeline.sinks.deleted_keys import DeletedKeys
from slackwater.pipeline.sinks.iceberg import partitions
from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog
from slackwater.pipeline.sinks.iceberg.notes import IcebergNotes
from slackwater.pipeline.sinks.iceberg.table import DataFiles, MarkedIcebergTable
from slackwater.pipeline.sinks.iceberg.types import iceberg_schema, with_iceberg_types
from slackwater.pipeline.sinks.modes import (
    WriteMode,
    check_key_types,
    fitted_rows,
    last_rows,
    reduced_rows,
    typed_rows,
)
from slackwater.pipeline.sinks.table_schema import check_case, check_not_null, fit, lacking_paths
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from slackwater.kafka.structs import TopicPartition
    from slackwater.pipeline.sinks.marks import MarkKey
    from slackwater.pipeline.sinks.staged import StagedRows

_TRIES = 50
"""How often a commit is tried because others commit to the table."""
_LONGEST_WAIT_S = 0.5


def iceberg_sink(
    group_id: str,
    table: str,
    *,
    options: Mapping[str, str] | None = None,
    mode: str = "append",
    key: Sequence[str] = (),
    aggregates: Mapping[str, str] | None = None,
    version: str = "",
    deleted_for_ms: int = 0,
    partition_by: Sequence[str] = (),
    new_columns: bool = True,
    makes_optional: bool = False,
) -> TableSink:
    """Writes to an Iceberg table, which the first batch creates.

    Args:
        group_id: the consumer group; each group has marks of its own in the table.
        table: NAMESPACE.TABLE, its name in the catalog; a namespace may have several parts.
        options: properties of pyiceberg's catalog, and ``name``, the catalog's name (default: ``default``).
            What they lack comes from pyiceberg's environment variables and its file.
        mode: ``append``, ``upsert``, ``changes`` or ``merge``.
        key: but for append, the columns by which rows are the same.
        aggregates: for merge, how each other column is added up: sum, min, max, count.
        version: for changes, the column that says which of two rows is newer; empty: the later one.
        deleted_for_ms: with ``version``, how long the versions of deleted keys are remembered; 0: not at all.
        partition_by: columns, and transforms such as ``day(ts)``; empty: those that the table has, or none.
        new_columns: whether columns that the table lacks are added to it.
        makes_optional: whether what is required in it becomes optional where a row has no value for it.

    Raises ConfigError for a name or an option that cannot be used, and where pyiceberg is not installed.
    """
    if problem := extras.ICEBERG.problem("iceberg"):
        raise ConfigError(problem, field="sink.format")
    by, catalog = partitions.parsed(partition_by), IcebergCatalog(table, options or {})
    chosen = WriteMode.of(mode, key, aggregates, version, deleted_for_ms)
    chosen.refuse_counts_of_places()
    target = IcebergTarget(
        group_id, catalog, chosen, by, new_columns=new_columns, makes_optional=makes_optional
    )
    return TableSink(group_id, target)


class IcebergTarget:
    """An Iceberg table as a :class:`~slackwater.pipeline.sinks.table_sink.TargetTable`."""

    setting = "sink.table"
    advice = "have fewer workers commit less often (delivery.batchInterval), or stop what else writes to it"

    def __init__(
        self,
        group_id: str,
        catalog: IcebergCatalog,
        mode: WriteMode,
        by: list[partitions.By],
        *,
        new_columns: bool,
        makes_optional: bool,
    ) -> None:
        self._group_id, self.place, self.by, self._new_columns = group_id, catalog, by, new_columns
        self.table, self._makes_optional = MarkedIcebergTable(catalog), makes_optional
        self.growth = Growth() if new_columns and not mode.adds_up else None
        self.mode, self.tries, self.longest_wait_s = mode, _TRIES, _LONGEST_WAIT_S
        kept_ms = mode.deleted_for_ms
        self._deleted = DeletedKeys(catalog, IcebergNotes(catalog), kept_ms) if kept_ms else None
        self._files = DataFiles()
        """Of the commit that is tried."""
        self._tried = ""
        """The table's version when that was tried."""

    def typed(self, rows: pa.Table) -> pa.Table:
        return typed_rows(self.mode, rows, with_iceberg_types)

    def declared(self, columns: pa.Table) -> pa.Table:
        return with_iceberg_types(columns)

    def fitted(self, staged: StagedRows) -> pa.Table:
        self._tried, kept = self.table.version, self.table.schema
        by = self.by if kept is None else self.table.partitioning
        renamed = self._renamed(staged.names)
        names = {renamed.get(name, name) for name in staged.names}
        if not (self.mode.deletes and changes.only_deletes(staged.rows)):
            staged.refuse_missing([column for column, _ in by if column.split(".")[0] not in names])
        given = staged.rows.rename_columns([renamed.get(name, name) for name in staged.rows.column_names])

        def to_table(rows: pa.Table) -> pa.Table:
            return fit(rows, kept, new_columns=self._new_columns, growth=self.growth)

        rows = fitted_rows(self.mode, reduced_rows(self.mode, given), to_table)
        check_case(list(rows.schema), "Iceberg's readers do")
        check_key_types(rows.schema, self.mode.key)
        changes.check_version_type(rows.schema, self.mode.version)
        if self.table.exists:
            added, required = self.mode.added(rows), self.table.existing.schema().as_arrow()
            if self._makes_optional:
                self.table.made_optional = lacking_paths(added, required)
            else:
                check_not_null(added, required, "required in the table")
        if kept is None and rows.num_rows:
            partitions.spec_of(iceberg_schema(rows.schema), by)
        if self.table.exists and staged.prepared != self.table.version:
            partitions.check(self.table.existing.metadata, rows)
            staged.prepared = self.table.version
        return rows

    def _renamed(self, given: Sequence[str]) -> dict[str, str]:
        """The names that columns of the rows, which have those ``given``, have in the table, where others
        have renamed them. The position keeps its names. Raises ConfigError for a column that the settings
        name."""
        renamed = {
            name: to
            for name, to in self.table.renamed.items()
            if name not in PLACE_COLUMNS and to not in given
        }
        named = {"key": self.mode.key, "version": [self.mode.version], "aggregates": self.mode.aggregates}
        for name, setting in ((name, setting) for setting, names in named.items() for name in names):
            if name in renamed:
                raise ConfigError(
                    f"names {name}, which is {renamed[name]} in the table {self.place.address} now: give it "
                    "that name in the handler and here, or rename it back",
                    field=f"sink.{setting}",
                )
        return renamed

    def check(self, staged: StagedRows, fitted: pa.Table) -> None:
        """Nothing: :meth:`fitted` checks all that a table demands."""

    def create(self, rows: pa.Table) -> bool:
        rows = self.mode.added(rows)
        needed = {*(by.column for by in self.by), *self.mode.key}
        if not rows.num_columns or not needed <= set(rows.column_names):
            return False
        self.table.create(rows.schema, self.by)
        return True

    def write(self, rows: pa.Table, ends: Mapping[MarkKey, int], commit: str) -> None:
        if self.mode.key:
            if self.mode.replaces:
                rows = last_rows(rows, self.mode.key, self.mode.version)
            if self._deleted is not None:
                rows = self._deleted.apply(rows, self.mode.key, self.mode.version)
            self.table.merge(self._files, rows, self.mode, self._group_id, ends, commit)
            return
        self._files.rows = rows
        self.table.append(self._files, self._group_id, ends, commit)

    def remove(self, starts: Mapping[TopicPartition, int], ends: Mapping[MarkKey, int], commit: str) -> int:
        """Data files with other rows, too, are written anew without them."""
        self._tried = self.table.version
        return self.table.remove(starts, self._group_id, ends, commit)

    def was_refused(self, exc: Exception) -> bool | None:
        from pyiceberg.exceptions import CommitFailedException

        if isinstance(exc, CommitFailedException):
            self.table.clean_up()
            if self.mode.key:
                self._files.delete()
            return True
        return None if self.table.version != self._tried else False

    def end(self, *, is_refused: bool) -> None:
        if is_refused:
            self._files.delete()
        self._files = DataFiles()

    def probe(self) -> None:
        """Writes a file to the table's folder, or to where it would be created, and removes that."""
        _write_a_file(self.place, self.table.existing if self.table.exists else None)


def _write_a_file(catalog: IcebergCatalog, table: Table | None) -> None:
    """Writes a file to the folder of ``table``, or to where it would be created, and removes it. Where not
    even the namespace exists, a REST catalog does not say where that is: nothing is written then. In an
    object store an empty object may stay, which stands for the folder. Raises pyiceberg's errors and OSError.
    """
    place = (table.location(), table.io) if table is not None else _place_to_be(catalog)
    if place is None:
        return
    location, io = f"{place[0]}/.slackwater-probe-{uuid.uuid4().hex}", place[1]
    with _without_new_folders(location):
        with io.new_output(location).create() as output:
            output.write(b"probe")
        io.delete(location)


def _place_to_be(catalog: IcebergCatalog) -> tuple[str, FileIO] | None:
    import pyarrow as pa
    from pyiceberg.exceptions import NoSuchNamespaceError
    from pyiceberg.io import load_file_io

    connected = catalog.connected()
    try:
        columns = pa.schema([("probe", pa.int64())])
        # Is not committed: the catalog never has the table.
        staged = connected.create_table_transaction(catalog.identifier, columns)._table
        return staged.location(), staged.io
    except NoSuchNamespaceError:
        if catalog.is_rest:
            return None
    warehouse = connected.properties.get("warehouse")
    if not warehouse:
        raise ValueError("there is no warehouse")
    return warehouse, load_file_io(connected.properties, warehouse)


@contextlib.contextmanager
def _without_new_folders(location: str) -> Iterator[None]:
    """Removes, at the end of the block, the local folders that it has made for the file ``location``."""
    url = urlsplit(location)
    if url.scheme not in ("", "file"):
        yield
        return
    path = Path(unquote(url.path))
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
