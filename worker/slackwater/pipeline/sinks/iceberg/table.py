"""An Iceberg table with its marks: what it is now, and commits that move marks.

Each commit adds a snapshot to the branch main, if only an empty one, and requires that main is where the
marks were read (``assert-ref-snapshot-id``). A commit of properties alone has no requirement that another
one could break.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.growth import Growth, lacked_by
from slackwater.pipeline.sinks.aggregates import combined
from slackwater.pipeline.sinks.iceberg import keyed, marks, partitions
from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog
from slackwater.pipeline.sinks.iceberg.types import arrow_schema, iceberg_schema
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.runtime.errors import WorkerError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update.snapshot import UpdateSnapshot

    from slackwater.kafka.structs import TopicPartition
    from slackwater.pipeline.sinks.marks import MarkKey

COMMIT = "slackwater.commit"
"""The field of a snapshot's summary that holds the id which a writer has given its commit."""
_READ_TRIES = 5
_PROPERTIES = {
    # Otherwise each commit adds a manifest, and leaves a metadata file, until somebody removes them.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
"""Properties of a table that the sink creates."""


class DataFiles:
    """The data files of ``rows``, which have all columns of the table that they are written to: written once,
    however often their commit is tried."""

    def __init__(self) -> None:
        self.rows: pa.Table
        self._metadata: TableMetadata | None = None
        self._io: FileIO | None = None
        self._files: list[DataFile] = []

    def written(self, metadata: TableMetadata, io: FileIO) -> list[DataFile]:
        """The files for a table with ``metadata``: those that are there, unless its columns, partitioning or
        place have changed since. Raises HandlerError, OSError and errors of pyiceberg."""
        if not self.rows.num_rows:
            return []
        before = self._metadata
        if before is None or _shape(before) != _shape(metadata):
            self.delete()
            self.write(metadata, io, self.rows)
            self._metadata = metadata
        return self._files

    def write(self, metadata: TableMetadata, io: FileIO, rows: pa.Table) -> list[DataFile]:
        """Writes other rows, too, to new files for a table with ``metadata``. Raises as :meth:`written`."""
        made = partitions.write(metadata, io, rows.select([field.name for field in metadata.schema().fields]))
        self._files, self._io = [*self._files, *made], io
        return made

    def delete(self) -> None:
        """Removes what was written, as far as it can; to be called only if no commit has it."""
        for file in self._files:
            with contextlib.suppress(Exception):
                assert self._io is not None
                self._io.delete(file.file_path)
        self._files, self._metadata = [], None


class MarkedIcebergTable:
    """The table in ``catalog``, as of the last :meth:`refresh`. Its other methods raise pyiceberg's errors
    and OSError."""

    def __init__(self, catalog: IcebergCatalog) -> None:
        self._catalog = catalog
        self._table: Table | None = None
        self.marks: Mapping[str, Mapping[MarkKey, int]] = {}
        self.made_optional: Sequence[str] = ()
        """The columns, and fields within, that are made optional by the next commit of rows."""
        self._columns: tuple[object, pa.Schema, Mapping[str, str]] | None = None
        """Of which schema, :attr:`schema` and :attr:`renamed`."""
        self._refused: list[Any] = []
        """What pyiceberg calls snapshot producers, of the last commit if it failed."""

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def version(self) -> str:
        """Another one after each commit; "": there is no table."""
        return "" if self._table is None else self._table.metadata_location

    @property
    def existing(self) -> Table:
        """pyiceberg's table."""
        assert self._table is not None, "to be created first"
        return self._table

    @property
    def schema(self) -> pa.Schema | None:
        """None: there is no table."""
        return None if self._table is None else self._of_schema(self._table)[1]

    @property
    def partitioning(self) -> list[partitions.By]:
        """Empty where there is no table."""
        return (
            [] if self._table is None else partitions.partitioning(self._table.schema(), self._table.spec())
        )

    def was_partitioned(self, by: Sequence[object]) -> bool:
        """Whether it is partitioned ``by`` that, or was before others have evolved it or renamed columns."""
        metadata = self.existing.metadata
        return any(
            partitions.partitioning(schema, spec) == list(by)
            for spec in metadata.partition_specs
            for schema in metadata.schemas
        )

    @property
    def renamed(self) -> Mapping[str, str]:
        """The columns that others have renamed, with their names of now."""
        return {} if self._table is None else self._of_schema(self._table)[2]

    def _of_schema(self, table: Table) -> tuple[object, pa.Schema, Mapping[str, str]]:
        """Made once for each schema: that takes 2 ms with 20 columns."""
        metadata = table.metadata
        which = metadata.table_uuid, metadata.current_schema_id
        if self._columns is None or self._columns[0] != which:
            now = {field.field_id: field.name for field in table.schema().fields}
            before = {
                field.name: now[field.field_id]
                for schema in metadata.schemas
                for field in schema.fields
                if field.field_id in now
            }
            renamed = {name: later for name, later in before.items() if name not in now.values()}
            self._columns = which, arrow_schema(table.schema()), renamed
        return self._columns

    def refresh(self) -> None:
        """Reads what the table is now. Raises SinkError, ConfigError."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        for left in reversed(range(_READ_TRIES)):
            try:
                self._table = self._catalog.connected().load_table(self._catalog.identifier)
                self.marks = marks.read(self._table.properties)
                return
            except (NoSuchTableError, NoSuchNamespaceError):
                self._table, self.marks = None, {}
                return
            except WorkerError:
                raise
            except Exception as exc:
                # A file of metadata that the catalog has just named may be gone, after many other commits.
                if not isinstance(exc, FileNotFoundError) or not left:
                    raise self._catalog.error("read", exc) from None

    def removed_by(self, commit: str) -> int | None:
        """How many rows the commit with that id has removed; None: the table has no such commit."""
        snapshots = [] if self._table is None else self._table.metadata.snapshots
        committed = [snapshot for snapshot in snapshots if _summary(snapshot).get(COMMIT) == commit]
        if not committed:
            return None
        return sum(
            int(_summary(snapshot).get("deleted-records") or 0)
            - int(_summary(snapshot).get("added-records") or 0)
            for snapshot in committed
        )

    def create(self, schema: pa.Schema, by: Sequence[partitions.By]) -> None:
        """Creates it and its namespace, unless another process does so at the same time. To be refreshed
        then. Raises HandlerError, RecordsError."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog = self._catalog.connected()
        columns = iceberg_schema(schema)
        spec = partitions.spec_of(columns, by)
        namespace = self._catalog.identifier[:-1]
        for length in range(1, len(namespace) + 1):
            self._create_namespace(namespace[:length])
        try:
            catalog.create_table(
                self._catalog.identifier, columns, partition_spec=spec, properties=_PROPERTIES
            )
        except TableAlreadyExistsError:
            return

    def _create_namespace(self, namespace: tuple[str, ...]) -> None:
        catalog = self._catalog.connected()
        if catalog.namespace_exists(namespace):
            return
        try:
            catalog.create_namespace(namespace)
        except Exception:
            if not catalog.namespace_exists(namespace):  # Another process may have created it.
                raise

    def append(self, files: DataFiles, group: str, ends: Mapping[MarkKey, int], commit: str) -> None:
        """One commit: the rows of ``files``, if there are any, the table's growth, and the marks."""
        change = self._change()
        self._grow(change, files.rows.schema)
        written = files.written(change.table_metadata, self.existing.io)
        with self._snapshot(change, commit).merge_append() as append:
            for file in written:
                append.append_data_file(file)
        self._commit(change, group, ends)

    def merge(
        self,
        files: DataFiles,
        rows: pa.Table,
        mode: WriteMode,
        group: str,
        ends: Mapping[MarkKey, int],
        commit: str,
    ) -> None:
        """One commit: each of ``rows`` takes the place of those with the same key, deletes them, or is added
        up with them; the table's growth and the marks. ``rows`` have each key once. Files are written as
        those of ``files``. Raises SinkError for a sum that its column cannot hold."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table, change = self.existing, self._change()
        self._grow(change, mode.added(rows).schema)
        with_keys: list[keyed.KeyedFile] = []
        if rows.num_rows:
            condition = keyed.where(rows, mode.key)
            with_keys = keyed.files_with(table, rows, mode.key, condition, mode.version)
        given, rows = rows, keyed.without_outdated(rows, with_keys, mode.key, mode.version)
        metadata, replaced, new = change.table_metadata, [], []
        for file in with_keys:
            goes = file.matches if rows is given else keyed.has_key(file.columns, rows, mode.key)
            if not pc.any(goes, min_count=0).as_py():
                continue
            kept = keyed.read(metadata, table, file.task)
            left = kept.filter(pc.invert(goes))
            if mode.adds_up:
                added = combined(kept.filter(goes), rows, mode.key, mode.aggregates)
                left = pa.concat_tables([left, added])
            new += files.write(metadata, table.io, left)
            replaced.append(file.task.file)
        if mode.adds_up:
            for file in with_keys:
                rows = rows.filter(pc.invert(keyed.has_key(rows, file.columns, mode.key)))
        new += files.write(metadata, table.io, mode.added(rows))
        if not replaced:
            with self._snapshot(change, commit).merge_append() as append:
                for written in new:
                    append.append_data_file(written)
        else:
            with self._snapshot(change, commit).overwrite() as overwrite:
                overwrite.delete_by_predicate(condition)
                for old in replaced:
                    overwrite.delete_data_file(old)
                for written in new:
                    overwrite.append_data_file(written)
        self._commit(change, group, ends)

    def remove(
        self, starts: Mapping[TopicPartition, int], group: str, ends: Mapping[MarkKey, int], commit: str
    ) -> int:
        """One commit: without the rows from ``starts`` on, and the marks. Returns how many were removed."""
        import pyarrow.compute as pc
        from pyiceberg.expressions import Or

        table, change = self.existing, self._change()
        filters = [_rows_from(tp, start) for tp, start in starts.items()]
        row_filter = Or(*filters) if len(filters) > 1 else filters[0]
        removed, replaced = 0, []
        for task in table.scan(row_filter=row_filter).plan_files():
            rows = keyed.read(table.metadata, table, task)
            left = rows.filter(pc.invert(_is_removed(rows, starts)))
            if left.num_rows < rows.num_rows:
                removed += rows.num_rows - left.num_rows
                replaced.append((task.file, partitions.write(table.metadata, table.io, left)))
        if not replaced:
            with self._snapshot(change, commit).merge_append():
                pass
        else:
            with self._snapshot(change, commit).overwrite() as overwrite:
                overwrite.delete_by_predicate(row_filter)
                for old, new in replaced:
                    overwrite.delete_data_file(old)
                    for file in new:
                        overwrite.append_data_file(file)
        self._commit(change, group, ends)
        return removed

    def _change(self) -> Transaction:
        """A transaction on a copy of the table that knows only the current snapshot.

        pyiceberg copies all metadata some twenty times for a commit: with 500 snapshots, 300 ms of CPU. The
        catalog applies the changes to the metadata that it has.
        """
        table, current = copy.copy(self.existing), self.existing.current_snapshot()
        known = {"snapshots": [] if current is None else [current], "snapshot_log": []}
        table.metadata = table.metadata.model_copy(update=known)
        return table.transaction()

    def _grow(self, change: Transaction, schema: pa.Schema) -> None:
        """Gives the table what it lacks for fitted rows with ``schema``: columns, fields and wider types.
        What is required stays so, but for what is :attr:`made_optional`."""
        import pyarrow as pa

        assert self.schema is not None, "to be created first"
        wider = lacked_by(self.schema, schema)
        if not wider and not self.made_optional:
            return
        exact = {field.name: field for field in self.existing.schema().as_arrow()}
        made = [
            exact[field.name].with_type(Growth().grown(exact[field.name].type, field.type))
            if field.name in exact
            else field
            for field in wider
        ]
        with change.update_schema() as update:
            if made:
                update.union_by_name(pa.schema(made))
            for path in self.made_optional:
                update.make_column_optional(path)

    def _snapshot(self, change: Transaction, commit: str) -> UpdateSnapshot:
        return change.update_snapshot(snapshot_properties={COMMIT: commit})

    def _commit(self, change: Transaction, group: str, ends: Mapping[MarkKey, int]) -> None:
        change.set_properties(marks.moved(self.existing.properties, group, ends))
        # Without them, pyiceberg does not try again where another commit came first, on top of it and with
        # marks that it may have moved. It does not remove their files then, either: a catalog may refuse a
        # commit that it has made, where a proxy has sent it twice.
        self._refused, change._snapshot_producers = change._snapshot_producers, []
        self._table = change.commit_transaction()
        self._refused = []

    def clean_up(self) -> None:
        """Removes the manifests of the last commit, if it was refused, as far as it can."""
        for producer in self._refused:
            producer._clean_all_uncommitted()
        self._refused = []


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _rows_from(tp: TopicPartition, start: int) -> BooleanExpression:
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, Reference
    from pyiceberg.expressions.literals import literal

    return And(
        EqualTo(term=Reference("topic"), value=literal(tp.topic)),
        EqualTo(term=Reference("partition"), value=literal(tp.partition)),
        GreaterThanOrEqual(term=Reference("offset"), value=literal(start)),
    )


def _is_removed(rows: pa.Table, starts: Mapping[TopicPartition, int]) -> pa.ChunkedArray:
    """Which rows are from ``starts`` on."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.repeat(pa.scalar(False), rows.num_rows)
    for tp, start in starts.items():
        own = pc.and_(pc.equal(rows["topic"], tp.topic), pc.equal(rows["partition"], tp.partition))
        own = pc.and_(own, pc.greater_equal(rows["offset"], start))
        mask = pc.or_(mask, pc.fill_null(own, False))  # Others may have written rows without a place.
    return mask


def _shape(metadata: TableMetadata) -> object:
    return metadata.table_uuid, metadata.location, metadata.schema(), metadata.spec()
