"""The maintenance of an Iceberg table: pyiceberg expires snapshots, but neither rewrites data files nor
removes what only expired snapshots have. The marks are properties of the table."""

from __future__ import annotations

import contextlib
import datetime
import random
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from slackwater import extras
from slackwater.pipeline.sinks.iceberg import keyed, partitions
from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog
from slackwater.pipeline.sinks.maintenance import TRIES, Maintained, groups_of
from slackwater.runtime.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

_LONGEST_WAIT_S = 0.5


class IcebergMaintenance:
    """Of ``table``, NAMESPACE.TABLE. Raises ConfigError for what cannot be used."""

    def __init__(self, table: str, options: Mapping[str, str]) -> None:
        if problem := extras.ICEBERG.problem("iceberg"):
            raise ConfigError(problem, field="sink.format")
        self._catalog = IcebergCatalog(table, options)

    def run(self, target_bytes: int, expire_after_ms: int) -> Maintained:
        """Writes small files anew, expires snapshots, and removes the files that only those have."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        address = self._catalog.address
        try:
            compacted, written = self._compact(target_bytes)
            expired, removed = self._expire(expire_after_ms)
        except (NoSuchTableError, NoSuchNamespaceError):
            return Maintained(address)
        except WorkerError:
            raise
        except Exception as exc:
            raise self._catalog.error("maintain", exc) from None
        return Maintained(address, compacted, written, expired, removed)

    def _table(self) -> Table:
        return self._catalog.connected().load_table(self._catalog.identifier)

    # ---- data files

    def _compact(self, target_bytes: int) -> tuple[int, int]:
        """How many files have become how many."""
        table = self._table()
        by_partition: dict[object, list[tuple[FileScanTask, int]]] = {}
        for task in table.scan().plan_files():
            if not task.delete_files:  # what others delete by positions names the file
                place = task.file.spec_id, str(task.file.partition)
                by_partition.setdefault(place, []).append((task, task.file.file_size_in_bytes))
        compacted = written = 0
        for files in by_partition.values():
            for group in groups_of(files, target_bytes):
                count = self._rewrite(group)
                compacted, written = compacted + (len(group) if count else 0), written + count
        return compacted, written

    def _rewrite(self, group: list[FileScanTask]) -> int:
        """Commits the rows of a group in new files. Returns how many these are; 0: one of the group's files
        is not part of the table any more, and nothing was committed."""
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException

        table = self._table()
        schema, spec = table.schema(), table.spec()
        rows = pa.concat_tables([keyed.read(table.metadata, table, task) for task in group])
        new = partitions.write(table.metadata, table.io, rows)
        del rows
        old, made = {task.file.file_path: task.file for task in group}, {file.file_path for file in new}
        for _ in range(TRIES):
            now = {task.file.file_path for task in table.scan().plan_files() if not task.delete_files}
            if made <= now:  # The commit was made, and its answer was lost.
                return len(new)
            if not old.keys() <= now or (table.schema(), table.spec()) != (schema, spec):
                break
            change = self._change(table, old.values(), new)
            refused, change._snapshot_producers = change._snapshot_producers, []
            try:
                change.commit_transaction()
                return len(new)
            except CommitFailedException:
                time.sleep(random.uniform(0, _LONGEST_WAIT_S))
                table = self._table()
                if not self._has(table, made):
                    for producer in refused:
                        producer._clean_all_uncommitted()
        if self._has(self._table(), made):
            return len(new)
        for file in new:
            with contextlib.suppress(Exception):
                table.io.delete(file.file_path)
        return 0

    @staticmethod
    def _has(table: Table, paths: Collection[str]) -> bool:
        """Whether the table has all of these data files."""
        return set(paths) <= {task.file.file_path for task in table.scan().plan_files()}

    @staticmethod
    def _change(table: Table, old: Iterable[DataFile], new: Iterable[DataFile]) -> Transaction:
        """A transaction, not committed, that has ``new`` files in the place of ``old`` ones."""
        change = table.transaction()
        with change.update_snapshot().overwrite() as overwrite:
            for file in old:
                overwrite.delete_data_file(file)
            for file in new:
                overwrite.append_data_file(file)
        return change

    # ---- snapshots

    def _expire(self, after_ms: int) -> tuple[int, int]:
        """How many snapshots were removed, and how many files that only they had."""
        from pyiceberg.exceptions import CommitFailedException

        limit = datetime.datetime.fromtimestamp(time.time() - after_ms / 1000)
        for left in reversed(range(TRIES)):
            table = self._table()
            before = table.metadata.snapshots
            try:
                table.maintenance.expire_snapshots().older_than(limit).commit()
                break
            except CommitFailedException:
                if not left:
                    raise
                time.sleep(random.uniform(0, _LONGEST_WAIT_S))
        after = self._table()
        kept = {snapshot.snapshot_id for snapshot in after.metadata.snapshots}
        gone = [snapshot for snapshot in before if snapshot.snapshot_id not in kept]
        if not gone:
            return 0, 0
        needed = _Files(after)
        for snapshot in after.metadata.snapshots:
            needed.add(snapshot)
        only = _Files(after, needed)
        for snapshot in gone:
            only.add(snapshot)
        for path in only.paths:
            with contextlib.suppress(FileNotFoundError):
                after.io.delete(path)
        return len(gone), len(only.paths)


class _Files:
    """The files of snapshots, without those of ``others``."""

    def __init__(self, table: Table, others: _Files | None = None) -> None:
        self._io, self._others = table.io, others
        self.paths: set[str] = set()

    def add(self, snapshot: Snapshot) -> None:
        if not self._is_new(snapshot.manifest_list):
            return
        manifests: list[ManifestFile] = snapshot.manifests(self._io)
        for manifest in manifests:
            if self._is_new(manifest.manifest_path):
                entries: list[Any] = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
                for entry in entries:
                    self._is_new(entry.data_file.file_path)

    def _is_new(self, path: str) -> bool:
        if path in self.paths or (self._others is not None and path in self._others.paths):
            return False
        self.paths.add(path)
        return True
