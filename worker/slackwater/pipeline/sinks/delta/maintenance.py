"""The maintenance of a Delta table, by deltalake's means. The marks are in the log and its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater import extras
from slackwater.pipeline.sinks.compaction import TRIES, Maintained
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

    def run(self, target_bytes: int, expire_after_ms: int) -> Maintained:
        """Compacts, and removes files that no version of the time has. How long the log itself is kept is the
        table's own property ``delta.logRetentionDuration``."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(self._store.address, storage_options=self._store.options)
        except TableNotFoundError:
            return Maintained()
        except Exception as exc:
            raise self._store.error("read", exc) from None
        try:
            compacted, written = self._compacted(table, target_bytes)
            hours = -(-expire_after_ms // 3_600_000)
            # deltalake would refuse less than a week, whatever the table's own setting is.
            removed = table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
            table.create_checkpoint()
            table.cleanup_metadata()
        except Exception as exc:
            raise self._store.error("maintain", exc) from None
        return Maintained(compacted, written, removed=len(removed))

    def _compacted(self, table: DeltaTable, target_bytes: int) -> tuple[int, int]:
        """How many files have become how many."""
        from deltalake.exceptions import CommitFailedError

        for left in reversed(range(TRIES)):
            try:
                metrics = table.optimize.compact(target_size=target_bytes)
                return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
            except CommitFailedError:
                if not left:
                    raise
                time.sleep(_WAIT_S)
                table.update_incremental()
        raise AssertionError
