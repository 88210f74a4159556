"""The maintenance of a Delta table, by deltalake's means. The marks are in the log and its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater import extras
from slackwater.pipeline.sinks.compaction import TRIES, Maintained, groups_of
from slackwater.pipeline.sinks.delta.store import DeltaStore
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_WAIT_S = 0.2


class DeltaMaintenance:
    """Of the table at ``path``. Raises ConfigError where deltalake is not installed."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        if problem := extras.DELTA.problem("delta"):
            raise ConfigError(problem, field="sink.format")
        self._store = DeltaStore(path, options)

    def run(self, target_bytes: int, expire_after_ms: int, cluster_by: Sequence[str] = ()) -> Maintained:
        """Compacts, or writes each partition that has small files anew in Z-order, and removes files that no
        version of the time has. How long the log itself is kept is the table's own property
        ``delta.logRetentionDuration``."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(self._store.address, storage_options=self._store.options)
        except TableNotFoundError:
            return Maintained()
        except Exception as exc:
            raise self._store.error("read", exc) from None
        try:
            if cluster_by:
                compacted, written = _clustered(table, target_bytes, cluster_by)
            else:
                compacted, written = _optimized(
                    table, lambda: table.optimize.compact(target_size=target_bytes)
                )
            hours = -(-expire_after_ms // 3_600_000)
            # deltalake would refuse less than a week, whatever the table's own setting is.
            removed = table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
            table.create_checkpoint()
            table.cleanup_metadata()
        except Exception as exc:
            raise self._store.error("maintain", exc) from None
        return Maintained(compacted, written, removed=len(removed))


def _clustered(table: DeltaTable, target_bytes: int, columns: Sequence[str]) -> tuple[int, int]:
    """How many files have become how many. deltalake writes all files of a partition anew, so one is left
    alone that has nothing to put together."""
    import pyarrow as pa

    actions = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
    sizes = {action["path"].rpartition("/")[2]: action["size_bytes"] for action in actions}

    def small(partition: Any) -> bool:
        names = (uri.rpartition("/")[2] for uri in table.file_uris(file_pruning_predicate=partition))
        return bool(groups_of([(name, sizes[name]) for name in names], target_bytes))

    partitions = [
        [(column, "=", value or "") for column, value in values.items()] or None
        for values in table.partitions() or [{}]
    ]
    compacted = written = 0
    for partition in [*filter(small, partitions)]:  # before the first changes the table's files
        zorder = partial(
            table.optimize.z_order, columns, partition_filters=partition, target_size=target_bytes
        )
        old, new = _optimized(table, zorder)
        compacted, written = compacted + old, written + new
    return compacted, written


def _optimized(table: DeltaTable, optimize: Callable[[], Mapping[str, Any]]) -> tuple[int, int]:
    """How many files have become how many, where workers may commit first."""
    from deltalake.exceptions import CommitFailedError

    for left in reversed(range(TRIES)):
        try:
            metrics = optimize()
            return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
        except CommitFailedError:
            if not left:
                raise
            time.sleep(_WAIT_S)
            table.update_incremental()
    raise AssertionError
