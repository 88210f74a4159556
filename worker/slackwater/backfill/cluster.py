"""The handler on a Spark cluster: a part of the log goes in, rows and dead letters come out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.backfill.frames import LogReader
from slackwater.backfill.letters import Originals
from slackwater.backfill.session import Session
from slackwater.backfill.spark_handler import SparkHandler
from slackwater.handler import Batch
from slackwater.pipeline import make_engine
from slackwater.runtime.startup import warm_up

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.backfill.handler_files import HandlerFiles
    from slackwater.handler import OffsetRange
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.config.worker_config import WorkerConfig
    from slackwater.runtime.delivery.dead_letters import Letter
    from slackwater.runtime.interfaces import AnyEngine

LettersOf = Iterable[tuple["TopicPartition", "list[Letter]"]]
TASKS_A_CORE = 2
"""While the rows of one task are read, another one runs."""


@dataclass(frozen=True)
class PartResult:
    """What became of a part. ``letters``: read when they are needed; some of a partition at a time."""

    rows: pa.Table
    letters: LettersOf


class BackfillCluster:
    """Opens nothing before it is entered. ``topic_ids``: by topic; of others nothing is read. ``tasks``: into
    how many tasks a part is divided at least; 0: by the session's cores. ``session``: of the caller's, to use
    instead of the one that ``config`` says."""

    def __init__(
        self,
        config: WorkerConfig,
        topic_ids: Mapping[str, str],
        tasks: int = 0,
        session: SparkSession | None = None,
    ) -> None:
        self._config, self._ids, self._tasks = config, topic_ids, tasks
        self._session = Session(config.spark, config.handler, config.handler_path, session)
        self._spark: SparkSession | None = None
        self._engine: AnyEngine | None = None
        self._originals: Originals | None = None
        self._handler: SparkHandler | None = None
        self._run: Callable[[Mapping[TopicPartition, OffsetRange], Batch], PartResult] | None = None

    def __enter__(self) -> BackfillCluster:
        """Opens the session, and warms the handler up. Raises WorkerError."""
        try:
            self._spark = spark = self._session.open()
            engine = self._engine = make_engine(self._config, session=spark)
            engine.start()
            warm_up(engine, self._config.handler)
            self._run = self._runner(spark, engine)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.close()
        if self._originals is not None:
            self._originals.close()
        self._session.close()

    @property
    def sent(self) -> HandlerFiles:
        """What of the handler is sent to the executors. Raises ConfigError."""
        return self._session.sent

    @property
    def spark(self) -> SparkSession:
        """The session."""
        if self._spark is None:
            raise RuntimeError("the cluster was not entered")
        return self._spark

    @property
    def engine(self) -> AnyEngine:
        """The handler in this process; that of engine spark runs on the session all the same."""
        if self._engine is None:
            raise RuntimeError("the cluster was not entered")
        return self._engine

    def run(self, part: Mapping[TopicPartition, OffsetRange], info: Batch) -> PartResult:
        """Handles ``part``, of which the handler is told ``info``.

        Raises HandlerError for a result that no table can be made of, EngineLostError where Spark is gone,
        SparkFailure for a query that failed, and what the handler raises in this process.
        """
        if self._run is None:
            raise RuntimeError("the cluster was not entered")
        return self._run(part, info)

    @property
    def writes(self) -> bool:
        """Whether Spark itself writes the rows: :meth:`write` in place of :meth:`run`."""
        return self._config.sink.format == "spark"

    def write(
        self,
        part: Mapping[TopicPartition, OffsetRange],
        info: Batch,
        store: Callable[[LettersOf], object],
        append: Callable[[DataFrame], object],
        *,
        without: Mapping[TopicPartition, Collection[int]],
    ) -> int:
        """Handles ``part`` and has Spark write its rows by ``append``, after ``store`` has stored its dead
        letters. Rows of records whose offsets are in ``without`` are left out. Returns how many rows were
        written.

        Raises what ``append`` and ``store`` raise, and as :meth:`run`.
        """
        assert self._handler is not None
        return self._handler.write(
            part, info, lambda dead: store(self._open_originals().letters(dead)), append, without=without
        )

    def _runner(
        self, spark: SparkSession, engine: AnyEngine
    ) -> Callable[[Mapping[TopicPartition, OffsetRange], Batch], PartResult]:
        tasks = self._tasks or (self._session.parallelism or 1) * TASKS_A_CORE
        if self._config.engine == "spark":
            reader = LogReader(self._config, self._ids, decoded=True, tasks=tasks)
            handler = self._handler = SparkHandler(engine, reader, by_record=self._config.by_record)

            def run_query(part: Mapping[TopicPartition, OffsetRange], info: Batch) -> PartResult:
                output = handler.run(part, info)
                return PartResult(output.rows, self._open_originals().letters(output.dead))

            return run_query
        from slackwater.backfill.executors import ExecutorHandler

        reader = LogReader(self._config, self._ids, decoded=False, tasks=tasks)
        in_executors = ExecutorHandler(self._config, spark, reader, uuid.uuid4().hex)

        def run_tasks(part: Mapping[TopicPartition, OffsetRange], info: Batch) -> PartResult:
            rows, letters = in_executors.run(part)
            return PartResult(rows, [(tp, [letter]) for tp, letter in letters])

        return run_tasks

    def _open_originals(self) -> Originals:
        if self._originals is None:
            self._originals = Originals(self._config, self._ids)
        return self._originals
