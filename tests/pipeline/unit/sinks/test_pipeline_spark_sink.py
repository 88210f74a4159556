"""A format of Spark as the sink, on a session that notes what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from slackwater.commands.worker import KafkaParts
from slackwater.pipeline import make_engine, make_sink
from slackwater.pipeline.engines.arrow import ArrowEngine
from slackwater.pipeline.engines.decoding import DecodingEngine, with_rejected
from slackwater.pipeline.engines.kept_rows import SparkRows
from slackwater.pipeline.engines.spark import SparkEngine
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.delta.spark_sink import SparkDeltaSink
from slackwater.pipeline.sinks.delta.spark_table import Transaction
from slackwater.pipeline.sinks.unmarked import UnmarkedSink
from slackwater.runtime.config.worker_config import WorkerConfig, parse
from slackwater.runtime.errors import ConfigError, SinkError
from slackwater.runtime.handler_output import checked_kept
from slackwater.runtime.interfaces import AnyEngine, Range, Sink
from slackwater.tools.marks import has_marks
from tests.support.sinks import OLD, A, put, rows

CHECKED = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("_error", pa.string())]
)
OWN_FOLDER = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.cleanup.skipped": "true",
}
"""Beside the number of the folder."""


class Session:
    """A session and its writer. ``calls``: what was asked, in order. ``error``: raised by the next save."""

    sparkSession = None  # noqa: N815  (Spark's name): its Java is not reached

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.jobs: list[str] = []
        """The number of each job's folder."""
        self.error: Exception | None = None

    def createDataFrame(self, table: pa.Table) -> Session:  # noqa: N802  (Spark's name)
        self.calls.append(("rows", table["offset"].to_pylist()))
        return self

    @property
    def write(self) -> Session:
        return self

    def options(self, **options: str) -> Session:
        self.jobs.append(options.pop("mapreduce.job.application.attempt.id", ""))
        self.calls.append(("options", options))
        return self

    def save(self) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("save",))

    def __getattr__(self, name: str) -> Any:
        def noted(*arguments: Any) -> Session:
            self.calls.append((name, *arguments))
            return self

        return noted


def engine(session: Any) -> SparkEngine:
    made = SparkEngine("m:f")
    made._spark = session
    return made


def configured(**fields: Any) -> WorkerConfig:
    document = {
        "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "handler": "m:f",
        "sink": {"format": "spark", "sparkFormat": "orc", "options": {"path": "/out"}, **fields},
    }  # fmt: skip
    return parse(document)


def sink(engine: AnyEngine | None, **fields: Any) -> Sink:
    return make_sink(configured(**fields), engine)


def test_a_batch_is_appended_in_one_task() -> None:
    session = Session()
    made = sink(engine(session))
    assert made.marks([A]) == {}
    put(made, pa.concat_tables([rows([0]), rows([1, 2])]), 0)
    put(made, rows([]), 3)
    assert session.calls == [
        ("rows", [0, 1, 2]), ("coalesce", 1), ("format", "orc"), ("mode", "append"),
        ("options", {**OWN_FOLDER, "path": "/out"}), ("save",),
    ]  # fmt: skip


def test_each_job_of_a_format_of_files_has_a_folder_of_its_own() -> None:
    session = Session()
    for start in range(3):
        put(sink(engine(session)), rows([start]), start)
    assert len(set(session.jobs)) == 3
    assert all(0 <= int(job) < 2**31 for job in session.jobs), "Hadoop reads an int"


def test_the_writer_has_no_options_but_the_users_where_the_format_is_not_of_files() -> None:
    session = Session()
    put(sink(engine(session), sparkFormat="jdbc", options={"url": "jdbc:x:y"}), rows([0]), 0)
    assert ("options", {"url": "jdbc:x:y"}) in session.calls
    assert session.jobs == [""]


class Kept:
    """What keeps rows in a session."""

    released = False

    def release(self) -> None:
        self.released = True


def kept_rows(kept: Kept, session: Any, count: int) -> SparkRows:
    rejected = {"topic": [A.topic], "partition": [0], "offset": [0], "_error": ["bad"]}
    to_check = pa.table(rejected).cast(CHECKED)
    return SparkRows(kept, session, ["offset"], {A: count}, to_check)  # type: ignore[arg-type]


def test_kept_rows_are_written_where_they_are_and_released() -> None:
    asked, frame, kept = Session(), Session(), Kept()
    made = sink(engine(asked))
    staged = made.stage(kept_rows(kept, frame, 2), {A: Range(OLD, 0, 3, None)})
    assert not frame.calls
    staged.publish()
    assert frame.calls == [
        ("coalesce", 1), ("format", "orc"), ("mode", "append"),
        ("options", {**OWN_FOLDER, "path": "/out"}), ("save",),
    ]  # fmt: skip
    assert kept.released
    assert not asked.calls
    made.stage(kept_rows(kept, frame, 0), {A: Range(OLD, 3, 4, None)}).publish()
    assert frame.calls[-1] == ("save",)
    assert len(frame.calls) == 5


def test_rejected_rows_of_kept_ones_are_dead_letters_beside_those_of_the_decoder() -> None:
    more = pa.table({"topic": [A.topic], "partition": [0], "offset": [2]})
    rows = with_rejected(kept_rows(Kept(), Session(), 1), more, ["no json"])
    records = pa.RecordBatch.from_pydict({"offset": [0, 1, 2]})
    output = checked_kept(rows, {A: records})
    assert output.dead == {A: [(0, "bad"), (2, "no json")]}
    assert output.counts == {A: 1}
    assert output.rows is rows


@pytest.mark.parametrize(
    ("fields", "for_sink", "keeps"),
    [
        ({}, True, True),
        ({}, False, False),  # `slackwater try` shows rows
        ({"maxAgeMs": 10_000}, True, False),
    ],
)
def test_rows_stay_in_spark_for_a_worker_whose_batches_are_written_one_by_one(
    fields: dict[str, Any], for_sink: bool, keeps: bool
) -> None:
    made = make_engine(configured(**fields), for_sink=for_sink)
    assert isinstance(made, SparkEngine)
    assert made._keeps_rows is keeps
    worker = KafkaParts(configured(**fields), "w-0", "worker.yaml").engine()
    assert isinstance(worker, SparkEngine)
    assert worker._keeps_rows is (not fields)


def test_a_worker_writes_in_the_session_of_its_engine() -> None:
    session, parts = Session(), KafkaParts(configured(), "w-0", "worker.yaml")
    engine = parts.engine()
    assert isinstance(engine, SparkEngine)
    made = parts.sink()
    engine._spark = session  # type: ignore[assignment]
    put(made, rows([0]), 0)
    assert session.calls[-1] == ("save",)


def test_rows_lie_in_folders_if_columns_are_given() -> None:
    session = Session()
    put(sink(engine(session), partitionBy=["day", "carrier"]), rows([0]), 0)
    assert ("partitionBy", "day", "carrier") in session.calls


def test_the_session_is_that_of_the_engine_as_it_is_when_rows_are_written() -> None:
    """A Connect server that has dropped the session gets another; values may be decoded before."""
    first, second = Session(), Session()
    spark = engine(first)
    made = sink(DecodingEngine(spark, {"value": lambda: pytest.fail("not started")}))
    put(made, rows([0]), 0)
    spark._spark = second  # type: ignore[assignment]
    put(made, rows([1]), 1)
    assert [session.calls[0] for session in (first, second)] == [("rows", [0]), ("rows", [1])]


def test_what_spark_raises_is_one_line_that_names_the_format() -> None:
    session = Session()
    session.error = ValueError("no such\nfolder")
    message = "^the sink cannot write with Spark's format orc: no such. The batch is not committed; some"
    with pytest.raises(SinkError, match=message):
        sink(engine(session)).stage(rows([0]), {A: Range(OLD, 0, 1, None)}).publish()


@pytest.mark.parametrize("other", [None, ArrowEngine("m:f")])
def test_without_a_session_nothing_is_written(other: AnyEngine | None) -> None:
    """`slackwater rewind` has none, and a preflight has closed it."""
    made = sink(other)
    with pytest.raises(SinkError, match="format spark is for workers with engine spark"):
        put(made, rows([0]), 0)
    with pytest.raises(SinkError, match="^the sink cannot remove rows from Spark's format orc: it does not"):
        made.rewind({A: (OLD, 0)})
    assert made.probe() == "Spark's format orc, which is not checked before there are rows"


@pytest.mark.parametrize("fields", [{"options": {}}, {"remote": "sc://spark:15002"}])
def test_rows_replace_no_others_where_the_table_can_have_no_marks(fields: dict[str, Any]) -> None:
    remote = fields.pop("remote", "")
    config = configured(sparkFormat="delta", mode="upsert", key=["id"], **fields)
    with pytest.raises(ConfigError, match=r"sink\.mode: is upsert, which needs marks in the table"):
        make_sink(replace(config, spark=replace(config.spark, remote=remote)))


def delta(path: object, **more: Any) -> WorkerConfig:
    place = {"format": "spark", "sparkFormat": "delta", "options": {"path": str(path)}}
    document = {
        "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "handler": "m:f", "sink": place, **more,
    }  # fmt: skip
    return parse(document)


def test_without_a_session_the_marks_of_a_delta_table_are_read_and_lowered_by_deltalake(
    tmp_path: Path,
) -> None:
    """`slackwater rewind` has none."""
    put(delta_sink("g", str(tmp_path)), rows([0, 1, 2]), 0)
    made = make_sink(delta(tmp_path))
    assert made.marks([A]) == {A: {OLD: 3}}
    assert made.rewind({A: (OLD, 1)}) == 2
    assert make_sink(delta(tmp_path)).marks([A]) == {A: {OLD: 1}}
    with pytest.raises(SinkError, match=r"cannot write to the Delta table .*: format spark is for workers"):
        made.stage(rows([1]), {A: Range(OLD, 1, 2, 1)}).publish()


@pytest.mark.parametrize(
    ("config", "keeps"),
    [
        (delta("/t"), True),
        (delta("/t", spark={"remote": "sc://h:1"}), False),  # its clients cannot add marks to a commit
        (configured(), False),
        (configured(sparkFormat="Delta", options={"Path": "/t"}), True),
        (configured(sparkFormat="delta", options={}), False),
    ],
)
def test_a_table_of_sparks_has_marks_if_it_is_one_of_delta(config: WorkerConfig, keeps: bool) -> None:
    assert has_marks(config) is keeps
    assert isinstance(make_sink(config), SparkDeltaSink if keeps else UnmarkedSink)


class Settings:
    """A local session with these settings, and without classes of Delta."""

    _jsparkSession = None  # noqa: N815  (Spark's name)

    def __init__(self, **settings: str) -> None:
        self.conf = settings
        self._jvm = MagicMock()


def test_s3_is_refused_where_commits_are_not_exclusive() -> None:
    made = make_sink(delta("s3a://lake/t"), engine(Settings()))
    with pytest.raises(SinkError, match=r"Set spark\.delta\.logStore\.s3a\.impl in spark\.conf to io\.delta"):
        made.marks([A])
    with pytest.raises(SinkError, match="cannot remove rows from s3a://lake/t: on S3"):
        made.rewind({})
    other = Settings(**{"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"})
    with pytest.raises(SinkError, match="Spark has no classes of Delta Lake: add the package"):
        make_sink(delta("s3a://lake/t"), engine(other)).marks([A])
    with pytest.raises(SinkError, match="through a session of Spark Connect: name the server"):
        make_sink(delta("/t"), engine(object())).marks([A])


class JavaError(Exception):
    """What Py4J raises, of Java classes by their simple names, from the last one up."""

    def __init__(self, *names: str) -> None:
        super().__init__(f"an error occurred: {names[0]}")
        kind = None
        for name in reversed(names):
            made = MagicMock()
            made.getSimpleName.return_value, made.getSuperclass.return_value = name, kind
            kind = made
        self.java_exception = MagicMock()
        self.java_exception.getClass.return_value = kind


CONFLICT = ("ConcurrentTransactionException", "DeltaConcurrentModificationException")


@pytest.mark.parametrize(
    ("kinds", "version", "now", "again"),
    [
        (CONFLICT, 3, 3, True),
        (["DeltaAnalysisException"], -1, 0, True),  # another process has created the table meanwhile
        (["DeltaAnalysisException"], -1, -1, False),
        (["DeltaAnalysisException"], 3, 3, False),
    ],
)
@pytest.mark.parametrize("at", ["writing", "committing"])
def test_a_commit_that_another_one_has_outrun_is_tried_again(
    at: str, kinds: Sequence[str], version: int, now: int, again: bool
) -> None:
    table, of_delta = MagicMock(), MagicMock()
    of_delta.readVersion.return_value = version
    table.begin.return_value.is_first = now < 0
    table.error.return_value = SinkError("cannot write to")
    write = table.write.return_value.writeAndReturnCommitData
    (write if at == "writing" else of_delta.commit).side_effect = JavaError(*kinds)
    transaction = Transaction(table, MagicMock(), of_delta)
    if again:
        assert transaction.commit(MagicMock(), {"a": 1}) is False
        return
    # What Spark raises while it makes the rows may be the handler's fault.
    with pytest.raises(JavaError if at == "writing" else SinkError):
        transaction.commit(MagicMock(), {"a": 1})
