"""A handler's run on given records, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.extras import ARROW, SPARK
from slackwater.kafka.records import ConsumerRecord
from slackwater.testing.batch_splits import BatchSplits
from slackwater.testing.records import Defaults, RecordList, partitions_of

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import SparkSession

    from slackwater.pipeline.engines.arrow import ArrowEngine
    from slackwater.pipeline.engines.python import PythonEngine
    from slackwater.pipeline.engines.spark import SparkEngine
    from slackwater.runtime.config.value_config import ValueConfig
    from slackwater.runtime.interfaces import AnyEngine

ENGINES = ("arrow", "python", "spark")
SINGLES = {"spark": 5}
"""How many records are tried alone by default; a query of Spark takes some tenths of a second."""
DEFAULT_SINGLES = 100


@dataclass(frozen=True)
class DeadLetter:
    """A record that would go to the dead-letter topic. ``record``: as it was given. ``stack``: the traceback
    of the handler's exception, where it raised one for this record."""

    topic: str
    partition: int
    offset: int
    reason: str
    record: ConsumerRecord = field(repr=False)
    stack: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True)
class Result:
    """What a handler made of the records.

    ``rows``: as the sink gets them, without ``_error``; ``dead_letters``: in the order of their positions.
    """

    rows: Table
    dead_letters: list[DeadLetter]

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as a list of dictionaries."""
        rows: list[dict[str, Any]] = self.rows.to_pylist()
        return rows


def run(
    handler: str | Callable[[Any], Any],
    records: Any,
    engine: str,
    *,
    topic: str = "test",
    partition: int = 0,
    offset: int = 0,
    timestamp: int | datetime = 0,
    handler_path: Sequence[str] = (),
    spark: SparkSession | None = None,
    split: bool = True,
    splits: int = 3,
    singles: int | None = None,
    seed: int = 0,
    ignore: Collection[str] = (),
    isolate: bool = True,
    lineage: str = "record",
    value: Mapping[str, Any] | None = None,
    key: Mapping[str, Any] | None = None,
    timeout_ms: float = 300_000,
) -> Result:
    """Runs ``handler`` on ``records`` as a worker does, with the worker's engine and its checks.

    The handler first gets a batch without records, which it must accept. Then it gets all records as one
    batch. Then it gets them in smaller batches, which must change nothing: the same rows, in any order, and
    the same dead letters.

    Args:
        handler: the function, or ``module:function``.
        records: a list of values (bytes, text, or mappings and lists, which become JSON), of
            :func:`slackwater.testing.record` or of :class:`slackwater.kafka.ConsumerRecord`; or a
            ``pyarrow.Table`` with the column ``value`` and others of a poll.
        engine: ``arrow``, ``python`` or ``spark``.
        topic: of records that have none of their own.
        partition: likewise.
        offset: of the first record of each partition, likewise.
        timestamp: likewise; ms since 1970, or a datetime.
        handler_path: folders to find ``module`` in.
        spark: the session for the engine ``spark``, with the settings that it has. None: the active session
            of this thread, else a local one with a worker's settings, which stays open for further runs.
        split: whether smaller batches are tried. False for a handler that aggregates over its batch on
            purpose: its rows depend on which records a worker happens to poll together.
        splits: how many random splits are tried.
        singles: how many records are tried alone; by default 100, and 5 with the engine ``spark``.
        seed: of the random splits.
        ignore: columns that may differ from run to run, such as a time of processing.
        isolate: True: a batch that fails is searched for the records at fault, which become dead letters, as
            by a worker with a dead-letter topic. False: what the handler raises is raised.
        lineage: ``record``, or ``batch`` for rows without a position, as ``spec.pipeline.lineage`` has it;
            smaller batches are not tried then.
        value: how values are decoded before the handler gets them, as a resource's ``spec.pipeline.value``
            without its Secrets: ``{"format": "json", "schema": "order BIGINT, amount DOUBLE"}``. None: the
            handler gets bytes.
        key: likewise, how keys are.
        timeout_ms: how long each call of the handler may take.

    Raises:
        AssertionError: smaller batches give something else; it names the first record that differs.
        HandlerLoadError: there is no such handler.
        HandlerError: the handler does not accept a batch without records, or returns what the worker refuses,
            or fails on more records than a worker would reject.
        ValueError: records, engine or another argument cannot be used; TypeError likewise.
        ConfigError: the schema of ``value`` or ``key`` cannot be used.
        StartError: their schema registry does not answer.
        NotInstalledError: Arrow, or Spark for the engine ``spark``, is not installed.
    """
    __tracebackhide__ = True
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}: give one of {', '.join(ENGINES)}")
    if spark is not None and engine != "spark":
        raise ValueError(f"spark is for engine='spark', not for {engine!r}")
    if lineage not in ("record", "batch"):
        raise ValueError(f"lineage is {lineage!r}: give record or batch")
    (SPARK if engine == "spark" else ARROW).require("slackwater.testing")
    by_record = lineage == "record"
    partitions = partitions_of(records, Defaults(topic, partition, offset, timestamp))
    from slackwater.pipeline.trial import Trial

    name = handler if isinstance(handler, str) else _name(handler)
    proper = _engine(handler, name, engine, handler_path, spark, timeout_ms, by_record)
    configs = {column: _config(given, column) for column, given in (("value", value), ("key", key)) if given}
    made = _decoding(proper, configs, timeout_ms, by_record) if configs else proper
    try:
        made.start()
        made.warm_up()
        trial = Trial(made, name, by_record=by_record)
        whole = trial.run({tp: RecordList(given) for tp, given in partitions.items()}, isolate=isolate)
        if split and by_record:
            most = SINGLES.get(engine, DEFAULT_SINGLES) if singles is None else singles
            checks = BatchSplits(trial, partitions, whole, frozenset(ignore), isolate=isolate)
            checks.check(splits=splits, singles=most, seed=seed)
    finally:
        made.close()
    given = {(tp, record.offset): record for tp, records in partitions.items() for record in records}
    return Result(
        whole.rows,
        [
            DeadLetter(
                tp.topic, tp.partition, letter.offset, letter.error, given[tp, letter.offset], letter.stack
            )
            for tp, letter in whole.letters
        ],
    )


def _name(handler: Callable[[Any], Any]) -> str:
    if not callable(handler):
        raise TypeError(f"handler is {type(handler).__name__}: give a function, or module:function")
    named = getattr(handler, "__qualname__", type(handler).__qualname__)
    return f"{getattr(handler, '__module__', '')}:{named}"


def _engine(
    handler: str | Callable[[Any], Any],
    name: str,
    engine: str,
    path: Sequence[str],
    spark: SparkSession | None,
    timeout_ms: float,
    by_record: bool,
) -> ArrowEngine | PythonEngine | SparkEngine:
    options: dict[str, Any] = {
        "timeout_ms": timeout_ms,
        "by_record": by_record,
        "function": None if isinstance(handler, str) else handler,
    }
    if engine == "arrow":
        from slackwater.pipeline.engines.arrow import ArrowEngine

        return ArrowEngine(name, path, **options)
    if engine == "python":
        from slackwater.pipeline.engines.python import PythonEngine

        return PythonEngine(name, path, **options)
    from slackwater.pipeline.engines.spark import SparkEngine

    return SparkEngine(name, path, session=spark or _session(), **options)


def _config(given: Mapping[str, Any], column: str) -> ValueConfig:
    from slackwater.fields import FieldError
    from slackwater.runtime.config.value_config import read_value

    try:
        return read_value(given, column)
    except FieldError as fault:
        raise ValueError(f"{fault.path} {fault.problem}") from None


def _decoding(
    engine: ArrowEngine | PythonEngine | SparkEngine,
    configs: Mapping[str, ValueConfig],
    timeout_ms: float,
    by_record: bool,
) -> AnyEngine:
    from slackwater.pipeline.engines.decoding import DecodingEngine, DecodingRecordEngine
    from slackwater.pipeline.values import make_decoder
    from slackwater.runtime.interfaces import RecordEngine

    makes = {
        column: partial(
            make_decoder, config, timeout_ms=timeout_ms, start_timeout_ms=timeout_ms, column=column
        )
        for column, config in configs.items()
    }
    if isinstance(engine, RecordEngine):
        return DecodingRecordEngine(engine, makes, by_record=by_record)
    return DecodingEngine(engine, makes, by_record=by_record)


def _session() -> SparkSession:
    """This thread's active session, or a local one, which stays open: the next run has it at once."""
    from pyspark.sql import SparkSession

    from slackwater.pipeline.engines.spark_session import LocalBackend

    return SparkSession.getActiveSession() or LocalBackend({}).open()
