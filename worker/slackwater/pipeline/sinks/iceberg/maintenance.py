"""The maintenance of an Iceberg table: pyiceberg expires snapshots, but neither rewrites data files nor
removes what only expired snapshots have. The marks are properties of the table."""

from __future__ import annotations

import contextlib
import datetime
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater import extras
from slackwater.pipeline.sinks.compaction import TRIES, Maintained, groups_of
from slackwater.pipeline.sinks.iceberg import partitions
from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog
from slackwater.runtime.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

_LONGEST_WAIT_S = 0.5
_GROUPS_OF_A_COMMIT = 50
"""Each commit competes with those of the workers."""


class IcebergMaintenance:
    """Of ``table``, NAMESPACE.TABLE. Raises ConfigError for what cannot be used."""

    def __init__(self, table: str, options: Mapping[str, str]) -> None:
        if problem := extras.ICEBERG.problem("iceberg"):
            raise ConfigError(problem, field="sink.format")
        self._catalog = IcebergCatalog(table, options)

    def run(self, target_bytes: int, expire_after_ms: int, cluster_by: Sequence[str] = ()) -> Maintained:
        """Writes small files anew, sorted by ``cluster_by``, expires snapshots, and removes the files that
        only those have."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            compacted, written = self._compact(target_bytes, cluster_by)
            expired, removed = self._expire(expire_after_ms)
        except (NoSuchTableError, NoSuchNamespaceError):
            return Maintained()
        except WorkerError:
            raise
        except Exception as exc:
            raise self._catalog.error("maintain", exc) from None
        return Maintained(compacted, written, expired, removed)

    def _table(self) -> Table:
        return self._catalog.connected().load_table(self._catalog.identifier)

    # ---- data files

    def _compact(self, target_bytes: int, cluster_by: Sequence[str]) -> tuple[int, int]:
        """How many files have become how many."""
        table = self._table()
        for column in cluster_by:
            table.schema().find_field(column)  # raises ValueError where there is none
        by_partition: dict[object, list[tuple[FileScanTask, int]]] = {}
        for task in table.scan().plan_files():
            if not task.delete_files:  # what others delete by positions names the file
                place = task.file.spec_id, str(task.file.partition)
                by_partition.setdefault(place, []).append((task, task.file.file_size_in_bytes))
        compacted = written = 0
        groups = [group for files in by_partition.values() for group in groups_of(files, target_bytes)]
        for at in range(0, len(groups), _GROUPS_OF_A_COMMIT):
            # A catalog's credentials for the store may end meanwhile.
            table.io = self._table().io
            made = [_written(table, group, cluster_by) for group in groups[at : at + _GROUPS_OF_A_COMMIT]]
            done = self._commit(made, table)
            compacted += sum(len(each.old) for each in done)
            written += sum(len(each.new) for each in done)
        return compacted, written

    def _commit(self, made: Sequence[_Rewritten], written_to: Table) -> list[_Rewritten]:
        """Commits new files in the place of old ones, in one commit. Returns those that are in the table:
        where one of the old files is not part of it any more, the new ones are removed."""
        from pyiceberg.exceptions import CommitFailedException

        shape = written_to.schema(), written_to.spec()
        refused: list[Any] = []
        for left_tries in reversed(range(TRIES + 1)):
            table = self._table()
            tasks = list(table.scan().plan_files())
            # A commit may have been made whose answer was lost.
            done = [each for each in made if each.is_in({task.file.file_path for task in tasks})]
            if not done:
                for producer in refused:
                    producer._clean_all_uncommitted()
            unchanged = {task.file.file_path for task in tasks if not task.delete_files}
            left = [each for each in made if each.old.keys() <= unchanged]
            is_final = done or not left or (table.schema(), table.spec()) != shape
            if is_final or not left_tries:
                break
            change = _change(table, left)
            refused, change._snapshot_producers = change._snapshot_producers, []
            try:
                change.commit_transaction()
                done = left
                break
            except CommitFailedException:
                time.sleep(random.uniform(0, _LONGEST_WAIT_S))
        for file in [file for each in made if each not in done for file in each.new]:
            with contextlib.suppress(Exception):
                written_to.io.delete(file.file_path)
        return done

    # ---- snapshots

    def _expire(self, after_ms: int) -> tuple[int, int]:
        """How many snapshots were removed, and how many files that only they had."""
        from pyiceberg.exceptions import CommitFailedException

        # pyiceberg takes a time without a zone for UTC.
        limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(milliseconds=after_ms)
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


@dataclass(frozen=True)
class _Rewritten:
    """Data files, by path, whose rows are in new ones."""

    old: Mapping[str, DataFile]
    new: Sequence[DataFile]

    def is_in(self, paths: Collection[str]) -> bool:
        """Whether the new files are among those of the table."""
        return bool(self.new) and all(file.file_path in paths for file in self.new)


def _written(table: Table, group: Sequence[FileScanTask], sorted_by: Sequence[str]) -> _Rewritten:
    """The rows of a group in new files, not committed."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    metadata = table.metadata
    rows = ArrowScan(metadata, table.io, metadata.schema(), AlwaysTrue()).to_table(group)
    if sorted_by:
        rows = rows.sort_by([(column, "ascending") for column in sorted_by])
    new = partitions.write(metadata, table.io, rows)
    return _Rewritten({task.file.file_path: task.file for task in group}, new)


def _change(table: Table, made: Iterable[_Rewritten]) -> Transaction:
    """A transaction, not committed, that has the new files in the place of the old ones."""
    change = table.transaction()
    with change.update_snapshot().overwrite() as overwrite:
        for each in made:
            for file in each.old.values():
                overwrite.delete_data_file(file)
            for file in each.new:
                overwrite.append_data_file(file)
    return change


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
