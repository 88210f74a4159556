"""A Delta table as delta-spark commits to it, in the Java process of a Spark session.

The options ``txnAppId`` and ``txnVersion`` of Spark's writer set one application transaction, and a batch has
one for each of its partitions. So this calls what that writer calls (``WriteIntoDelta``), within a commit of
its own, and adds all of them to it. These classes are no public interface of delta-spark: a release without
them fails with an error and commits nothing. Tested with delta-spark 4.4.0. A Connect session has no way to
them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slackwater.pipeline.engines.spark_session import summary
from slackwater.pipeline.sinks.delta.marks import FORGETS, forgets
from slackwater.pipeline.sinks.reasons import reason_of
from slackwater.runtime.errors import RecordsError, SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DELTA = "org.apache.spark.sql.delta"
_CONFLICT = "DeltaConcurrentModificationException"
OF_RECORDS = re.compile(
    r"\[(DELTA_[A-Z_]*(CONSTRAINT|NOT_NULL|MISMATCH|MERGE|CHARACTERS|DUPLICATE_COLUMNS)[A-Z_.]*"
    r"|(DELTA_)?EXCEED_[A-Z_]*LENGTH|(DELTA_)?EXCEED_CHAR[A-Z_]*|CAST_[A-Z_]+|[A-Z_]*OVERFLOW[A-Z_.]*)\]"
)
"""The classes of Delta's and Spark's errors about rows that a table does not take."""
_ADVICE = re.compile(r"\(Table ID: [^)]*\)|To enable schema migration.*?for details\.", re.DOTALL)
_END = r" (violated )?(by row )?with values|\n\s*at |\n\nJVM stacktrace"
"""Where the message of such an error ends: what follows shows values, or Java's stack."""
_CONFIGURATION = "delta."
"""How the names of options begin that are properties of the table."""


class Transaction:
    """One commit to a table that is made or refused as a whole.

    It is refused if another one, made since :meth:`SparkTable.begin`, has moved one of the transactions that
    this one has asked for.
    """

    def __init__(self, table: SparkTable, log: Any, transaction: Any) -> None:
        self._table, self._log, self._transaction = table, log, transaction

    @property
    def is_first(self) -> bool:
        """Whether there is no table yet."""
        return bool(self._transaction.readVersion() < 0)

    def versions(self, app_ids: Sequence[str]) -> dict[str, int]:
        """The versions of these application ids, as far as the table has them. Raises SinkError."""
        try:
            versions = {app_id: int(self._transaction.txnVersion(app_id)) for app_id in app_ids}
        except Exception as exc:
            raise self._table.error("read", exc) from exc
        return {app_id: version for app_id, version in versions.items() if version >= 0}

    def commit(self, rows: DataFrame | None, versions: Mapping[str, int]) -> bool:
        """Commits ``rows``, which Spark writes, and versions of application ids. False: another commit is in
        the way, and nothing was written; what there is now is to be looked at.

        Raises SinkError for a commit that fails or may have failed, and what Spark raises where it cannot
        write the rows, or not make them.
        """
        return self._made(lambda: self.written(rows), versions, self._table.operation)

    def merge(self, statement: str, versions: Mapping[str, int]) -> bool:
        """The same of what ``statement``, a MERGE INTO the table, does."""
        return self._made(lambda: self.merged(statement), versions, self._table.merge_operation)

    def _made(
        self,
        write: Callable[[], tuple[Any, Any]],
        versions: Mapping[str, int],
        operation: Callable[[], Any],
    ) -> bool:
        written = None
        try:
            written = write()
            self._commit(*written, versions, operation())
        except Exception as exc:
            if _is_conflict(exc) or self._is_outrun():
                return False
            if written is None:
                raise
            raise self._table.error("write to", exc) from exc
        return True

    def schema(self) -> str:
        """The table's columns, as JSON."""
        return str(self._transaction.metadata().schemaString())

    def merged(self, statement: str) -> tuple[Any, Any]:
        """Writes the data files of a MERGE INTO the table, as :meth:`written`.

        As ``MergeIntoCommand.runMerge`` does, whose transaction is its own. What the transaction reads has
        Delta refuse it after any other commit that is not a mere append.
        """
        session, table = self._table.spark._jsparkSession, self._table
        command = table.analysed(statement)
        clauses = (command.condition(), command.matchedClauses(), command.notMatchedClauses())
        command.prepareMergeSource(session, command.source(), *clauses, command.isInsertOnly())
        try:
            touched = command.findTouchedFiles(session, self._transaction)
            files = touched._1()
            if files.isEmpty():
                written = command.writeOnlyInserts(
                    session, self._transaction, False, "numSourceRowsInSecondScan"
                )
            else:
                written = command.writeAllChanges(session, self._transaction, files, touched._2(), True)
        finally:
            self._transaction.registerSQLMetrics(session, command.metrics())
            source = command.materializedSourceRDD()
            if source.isDefined():
                source.get().unpersist(False)
        removed = table.seq([files.apply(at).remove() for at in range(files.size())])
        return removed.appendedAll(written), table.map({})

    def _is_outrun(self) -> bool:
        """Whether the table was created since this transaction, which was to create it, began."""
        return self.is_first and not self._table.begin().is_first

    def written(self, rows: DataFrame | None) -> tuple[Any, Any]:
        """Writes data files, which belong to no version of the table yet. Returns what is to be committed:
        Scala's actions and tags."""
        if rows is None:
            return self._table.seq([]), self._table.map({})
        written = self._table.write(self._log, rows).writeAndReturnCommitData(
            self._transaction, self._table.spark._jsparkSession, self._table.option(), False
        )
        return written.actions(), written.tags()

    def _commit(self, actions: Any, tags: Any, versions: Mapping[str, int], operation: Any) -> None:
        now_ms = self._table.option(time.time_ns() // 1_000_000)
        for app_id, version in versions.items():
            self._transaction.updateSetTransaction(app_id, version, now_ms)
        self._transaction.commit(actions, operation, tags)


class SparkTable:
    """The table at ``path``. ``options``: of Spark's writer; ``partition_by``: of a table that is created."""

    def __init__(
        self, spark: SparkSession, path: str, options: Mapping[str, str], partition_by: Sequence[str]
    ) -> None:
        """Raises SinkError for a session without delta-spark, and for a table that processes cannot share."""
        self.spark, self.path, self._by = spark, path, list(partition_by)
        self._options = dict(options)
        if not hasattr(spark, "_jsparkSession"):
            raise SinkError(
                "the sink cannot keep marks in a Delta table through a session of Spark Connect: name the "
                "server in spark.remote, and each record is written at least once"
            )
        _check_exclusive(spark, path)
        self._jvm: Any = spark._jvm
        if type(self._delta("DeltaLog")).__name__ != "JavaClass":
            raise SinkError(
                "Spark has no classes of Delta Lake: add the package io.delta:delta-spark_4.2_2.13:4.4.0 to "
                "spark.jars.packages in spark.conf"
            )

    def begin(self) -> Transaction:
        """A transaction on the table as it is now. Raises SinkError."""
        try:
            log = self._log()
            transaction = log.startTransaction(self.option(), self.option())
            if transaction.metadata().configuration().contains(FORGETS):
                raise forgets(self.path)
        except SinkError:
            raise
        except Exception as exc:
            raise self.error("read", exc) from exc
        return Transaction(self, log, transaction)

    def transactions(self) -> dict[str, int]:
        """All application transactions of the table; none where there is no table. Raises SinkError."""
        try:
            snapshot = self._log().update(False, self.option(), self.option())
            versions: dict[str, int] = json.loads(
                self._delta("util").JsonUtils.mapper().writeValueAsString(snapshot.transactions())
            )
        except Exception as exc:
            raise self.error("read", exc) from exc
        return versions

    def write(self, log: Any, rows: DataFrame) -> Any:
        """Spark's command to append ``rows``."""
        settings = {name: value for name, value in self._options.items() if name.startswith(_CONFIGURATION)}
        conf = self.spark._jsparkSession.sessionState().conf()
        return self._delta("commands").WriteIntoDelta(
            log,
            self._append_mode(),
            self._delta("DeltaOptions")(self.map(self._options), conf),
            self.seq(self._by),
            self.map(settings),
            rows._jdf,
            self.option(),
            self.option(),
            False,
        )

    def operation(self) -> Any:
        """What the table's history says of a commit."""
        by = self.option(self.seq(self._by))
        write = self._delta("DeltaOperations").Write
        return write(self._append_mode(), by, *[self.option()] * 7)

    def merge_operation(self) -> Any:
        """The same of a commit that merges."""
        none = self.seq([])
        return self._delta("DeltaOperations").Merge(*[self.option()] * 4, none, none, none)

    @property
    def sql_name(self) -> str:
        """In Spark's SQL."""
        return f"delta.`{self.path.replace('`', '``')}`"

    def column_names(self) -> set[str]:
        """Of the table, which exists. Raises SinkError."""
        try:
            return set(self._log().update(False, self.option(), self.option()).schema().fieldNames())
        except Exception as exc:
            raise self.error("read", exc) from exc

    def analysed(self, statement: str) -> Any:
        """Delta's command for a statement, which is not run."""
        state = self.spark._jsparkSession.sessionState()
        skip = self._jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        return state.executePlan(state.sqlParser().parsePlan(statement), skip).analyzed()

    def option(self, value: Any = None) -> Any:
        """Scala's."""
        return self._jvm.scala.Option.apply(value)

    def seq(self, items: Sequence[Any]) -> Any:
        """Scala's."""
        return self._jvm.PythonUtils.toSeq(list(items))

    def map(self, items: Mapping[str, str]) -> Any:
        """Scala's."""
        return self._jvm.PythonUtils.toScalaMap(dict(items))

    def error(self, what: str, exc: Exception) -> SinkError | RecordsError:
        """What to raise for an error of Spark's."""
        if match := OF_RECORDS.search(str(exc)):
            text = _ADVICE.sub("", str(exc)[match.start() :])
            reason = reason_of(ValueError(text), until=_END)
            return self.refused(reason)
        return SinkError(f"the sink cannot {what} the Delta table {self.path} by Spark: {summary(exc)}")

    def refused(self, reason: str) -> RecordsError:
        """What to raise for rows that the table does not take."""
        return RecordsError(f"the Delta table {self.path} does not take the rows: {reason}")

    def _log(self) -> Any:
        session = self.spark._jsparkSession
        # Delta reads its settings from the session that is active in the thread.
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
        path = self._jvm.org.apache.hadoop.fs.Path(self.path)
        return self._delta("DeltaLog").forTable(session, path, self.map(self._options))

    def _delta(self, name: str) -> Any:
        place = self._jvm
        for part in f"{_DELTA}.{name}".split("."):
            place = getattr(place, part)
        return place

    def _append_mode(self) -> Any:
        return self._jvm.org.apache.spark.sql.SaveMode.Append


def is_s3(path: str) -> bool:
    """Whether ``path`` is in S3, as Hadoop names it."""
    return urlsplit(path).scheme in ("s3", "s3a", "s3n")


def _check_exclusive(spark: SparkSession, path: str) -> None:
    """Raises SinkError where two Spark processes can make the same commit: by default, Delta's commits to S3
    are exclusive within one process only."""
    names = (f"spark.delta.logStore.{urlsplit(path).scheme}.impl", "spark.delta.logStore.class")
    if is_s3(path) and not any(spark.conf.get(name, None) for name in names):
        raise SinkError(
            f"Spark cannot share the Delta table {path} with other workers: on S3 two of Delta's commits can "
            f"replace each other. Set {names[0]} in spark.conf to io.delta.storage.S3DynamoDBLogStore, or "
            "use sink.format delta"
        )


def _is_conflict(exc: Exception) -> bool:
    """Whether another commit has come first: of the same partitions, of another schema, of the first one."""
    origin = getattr(exc, "java_exception", None) or getattr(exc, "_origin", None)
    kind = None if origin is None else origin.getClass()
    while kind is not None:
        if kind.getSimpleName() == _CONFLICT:
            return True
        kind = kind.getSuperclass()
    return False
