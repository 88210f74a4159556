"""A Delta table with its application transactions: what it is now, and commits that move transactions.

deltalake refuses a commit if another one, made since the table was read, has moved one of its transactions.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.growth import lacked_by
from slackwater.pipeline.sinks.delta.constraints import GIVEN, NUMBER, check_rules, not_null, quoted, rules_of
from slackwater.pipeline.sinks.delta.log import TransactionLog
from slackwater.pipeline.sinks.delta.marks import FORGETS, forgets
from slackwater.pipeline.sinks.delta.store import DeltaStore
from slackwater.runtime.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from slackwater.pipeline.sinks.marks import MarkKey

BATCH = "slackwaterBatch"
"""Name of the field of ``commitInfo`` that holds the id which a writer has given its commit."""
_MAPPING = "delta.columnMapping.mode"
_READ_TRIES = 20
_COMMIT_TRIES = 50
"""How often a commit is tried because others append rows."""
_CLEAN_UP_EVERY = 100
"""Versions after which deltalake looks for expired commits, for which it lists the log. It makes as many
between two checkpoints."""
SOURCE, TARGET = "source", "target"
"""In the expressions of a merge, the batch's rows and the table."""


class MarkedDeltaTable:
    """The table in ``store``, as of the last :meth:`refresh`. Its other methods raise deltalake's errors and
    OSError."""

    def __init__(self, store: DeltaStore) -> None:
        self._store = store
        self._table: DeltaTable | None = None
        self._log: TransactionLog | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def marks(self) -> Mapping[str, Mapping[MarkKey, int]]:
        """The marks, by group."""
        return {} if self._log is None else self._log.marks

    @property
    def schema(self) -> pa.Schema | None:
        """None: there is no table."""
        import pyarrow as pa

        return None if self._table is None else pa.schema(self._table.schema().to_arrow())

    @property
    def takes_columns(self) -> bool:
        """Whether deltalake can add columns: not where the table has column mapping."""
        return self._table is None or not any(
            name == _MAPPING and mode != "none" for name, mode in self._table.metadata().configuration.items()
        )

    def check(self, rows: pa.Table) -> None:
        """Raises RecordsError for rows that break a constraint of the table."""
        if self._table is not None and (rules := rules_of(self._table)):
            check_rules(rows, rules)

    def check_merged(self, rows: pa.Table, key: Sequence[str], changes: Mapping[str, str]) -> None:
        """As :meth:`check`, for the row that each of ``rows`` would alone make by :meth:`merge`."""
        if self._table is None or self.schema is None:
            return
        rules = {**rules_of(self._table), **not_null(self.schema)}
        if not rules:
            return
        made = {name: f"{TARGET}.{quoted(name)}" for name in self.schema.names}
        made |= {name: f"{SOURCE}.{quoted(name)}" for name in key} | dict(changes)
        columns = ", ".join(f"{value} AS {quoted(name)}" for name, value in made.items())
        selection = (
            f"SELECT {SOURCE}.{NUMBER}, {columns} FROM {GIVEN} AS {SOURCE} LEFT JOIN kept AS {TARGET} "
            f"ON {_same(key)}"
        )
        check_rules(rows, rules, selection, kept=self._table)

    @property
    def partitioning(self) -> list[str]:
        """None of them where there is no table."""
        return [] if self._table is None else self._table.metadata().partition_columns

    def was_partitioned(self, by: Sequence[object]) -> bool:
        """Whether it is: nobody can change that."""
        return self.partitioning == list(by)

    def removed_by(self, commit: str) -> int | None:
        """How many rows the commit with that id has removed, if the last :meth:`refresh` has met it."""
        infos = [] if self._log is None else [info for info in self._log.commits if info.get(BATCH) == commit]
        return int(infos[0].get("operationMetrics", {}).get("num_deleted_rows") or 0) if infos else None

    def refresh(self) -> None:
        """Reads what the table is now. Raises SinkError."""
        from deltalake.exceptions import TableNotFoundError

        for _ in range(_READ_TRIES):
            try:
                if self._table is None or self._log is None or self._log.is_replaced():
                    self._table = None
                    self._table = self._load()
                else:
                    self._table.update_incremental()
                    self._log.read_to(self._table.version())
                return
            except FileNotFoundError:  # Old commits were removed meanwhile.
                self._table = None
            except TableNotFoundError:
                self._table = self._log = None
                return
            except SinkError:
                raise
            except Exception as exc:
                self._table = None
                raise self._store.error("read", exc) from None
        raise SinkError(f"the sink cannot read the Delta table {self._store.address}: its log lacks commits")

    def _load(self) -> DeltaTable:
        from deltalake import DeltaTable

        log = TransactionLog(self._store.files())
        table = DeltaTable(self._store.address, storage_options=self._store.options)
        if FORGETS in table.metadata().configuration:
            raise forgets(self._store.address)
        log.read_to(table.version())
        self._log = log
        return table

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Creates it, unless another process does so at the same time. To be refreshed then."""
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import CommitFailedError

        with contextlib.suppress(CommitFailedError):
            DeltaTable.create(
                self._store.address,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self._store.options,
                # With another try, deltalake would replace the schema of the table that is there by then.
                commit_properties=CommitProperties(max_commit_retries=0),
            )

    def check_protocol(self) -> None:
        """Commits to an empty table in a temporary folder that has the protocol of this one, if there is one.
        Raises CommitFailedError where deltalake lacks a feature."""
        import pyarrow as pa
        from deltalake import DeltaTable

        if self._table is None:
            return
        with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
            DeltaTable.create(folder, pa.schema([("probe", pa.int64())]))
            log = Path(folder, "_delta_log", f"{1:020d}.json")
            log.write_text(json.dumps({"protocol": _protocol(self._table)}))
            copy = DeltaTable(folder)
            copy.create_write_transaction([], "append", copy.schema(), [])

    def append(
        self, rows: pa.Table | None, versions: Mapping[str, int], batch: str, tries: int = _COMMIT_TRIES
    ) -> None:
        """One commit: the rows, if there are any, and the versions of transactions. It is tried again, up to
        ``tries`` times, after a commit that it agrees with."""
        from deltalake import write_deltalake

        table, options = self._existing(), self._options(versions, batch, tries)
        before = table.version()
        if rows is not None and rows.num_rows:
            # deltalake refuses to merge the schema of a table with column mapping, even with its own.
            is_wider = self._is_wider(rows.schema)
            write_deltalake(table, rows, mode="append", schema_mode="merge" if is_wider else None, **options)
        else:
            table.create_write_transaction([], "append", table.schema(), self.partitioning, **options)
        self._committed(before, versions, batch)

    def merge(
        self,
        rows: pa.Table,
        key: Sequence[str],
        changes: Mapping[str, str],
        versions: Mapping[str, int],
        batch: str,
        *,
        deletes: str = "",
        version: str = "",
    ) -> None:
        """One commit: each of ``rows`` changes the row with the same key or, where there is none, is added;
        and the versions of transactions. ``rows`` have each key once.

        Raises CommitFailedError after any other commit since the last :meth:`refresh`.

        Args:
            rows: the rows of the batch.
            key: the columns by which rows are the same.
            changes: SQL expressions by column.
            versions: the versions of transactions.
            batch: the id of the commit.
            deletes: a column of booleans, which the table does not get: a row where it is true deletes the
                one with the same key.
            version: with ``deletes``, a column: a row of the table that has a greater value stays as it is.
        """
        table = self._existing()
        if not rows.num_rows:
            self.append(None, versions, batch)
            return
        before, names = table.version(), table.schema().to_arrow().names
        columns = [name for name in rows.column_names if name != deletes]
        merger = table.merge(
            rows,
            _same(key),
            source_alias=SOURCE,
            target_alias=TARGET,
            merge_schema=self._is_wider(rows.select(columns).schema),
            # With the least and greatest keys, which it reads from all rows beforehand, files are left out.
            streamed_exec=False,
            # deltalake 1.6 does not see that two commits have added the same key, if that is a timestamp
            # without time zone, with microseconds: it must not try again by itself.
            **self._options(versions, batch, tries=0),
        )
        updates_if = inserts_if = None
        if deletes:
            goes, of_table = f"{SOURCE}.{quoted(deletes)}", f"{TARGET}.{quoted(version)}"
            is_newer = f"({of_table} IS NULL OR {SOURCE}.{quoted(version)} >= {of_table})"
            is_newer = is_newer if version in names else "TRUE"
            merger.when_matched_delete(f"{goes} AND {is_newer}")
            updates_if, inserts_if = f"NOT {goes} AND {is_newer}", f"NOT {goes}"
        if changes:
            assignments = {quoted(name): change for name, change in changes.items()}
            merger.when_matched_update(assignments, updates_if)
        values = {quoted(name): f"{SOURCE}.{quoted(name)}" for name in columns}
        merger.when_not_matched_insert(values, inserts_if).execute()
        if table.version() == before:  # No row was added, there is nothing to change, and no commit made.
            # That may not be so after another commit.
            self.append(None, versions, batch, tries=0)
            return
        self._committed(before, versions, batch)

    def delete(self, predicate: str, versions: Mapping[str, int], batch: str) -> int:
        """One commit: without the rows, and the versions of transactions. Returns how many were removed."""
        table = self._existing()
        before = table.version()
        metrics = table.delete(predicate, **self._options(versions, batch))
        if table.version() == before:  # No row was found, and no commit made.
            self.append(None, versions, batch)
            return 0
        self._committed(before, versions, batch)
        return int(metrics["num_deleted_rows"] or 0)

    def _is_wider(self, schema: pa.Schema) -> bool:
        """Whether fitted rows with ``schema`` have columns, or fields within them, that the table lacks."""
        assert self.schema is not None, "to be created first"
        return bool(lacked_by(self.schema, schema))

    def _existing(self) -> DeltaTable:
        assert self._table is not None, "to be created first"
        return self._table

    def _options(self, versions: Mapping[str, int], batch: str, tries: int = _COMMIT_TRIES) -> dict[str, Any]:
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction

        now_ms = time.time_ns() // 1_000_000
        is_due = (self._existing().version() + 1) % _CLEAN_UP_EVERY == 0
        return {
            "commit_properties": CommitProperties(
                custom_metadata={BATCH: batch},
                max_commit_retries=tries,
                app_transactions=[Transaction(app_id, end, now_ms) for app_id, end in versions.items()],
            ),
            "post_commithook_properties": PostCommitHookProperties(
                cleanup_expired_logs=None if is_due else False
            ),
        }

    def _committed(self, before: int, versions: Mapping[str, int], batch: str) -> None:
        """Spares the next refresh the commit that was just made, if no other one lies in between."""
        if self._log is not None and self._existing().version() == before + 1:
            self._log.add(versions, batch)


def _protocol(table: DeltaTable) -> dict[str, Any]:
    """The action ``protocol`` of the table's log."""
    protocol = table.protocol()
    action: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.min_reader_version >= 3:
        action["readerFeatures"] = protocol.reader_features or []
    if protocol.min_writer_version >= 7:
        action["writerFeatures"] = protocol.writer_features or []
    return action


def _same(key: Sequence[str]) -> str:
    """The SQL expression for a row of the table with the key of one of the batch."""
    return " AND ".join(f"{TARGET}.{quoted(name)} = {SOURCE}.{quoted(name)}" for name in key)
