"""What a Spark engine does before its first batch, and with an error of Spark's, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from slackwater.handler import Batch
from slackwater.kafka.records import ARROW_SCHEMA
from slackwater.pipeline.engines import frames, spark
from slackwater.pipeline.engines.spark import WARM_UP_ROWS, SparkEngine
from slackwater.pipeline.engines.spark_session import SparkFailure
from slackwater.runtime.errors import StartError


class Frame:
    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.rows


class Session:
    """Gives back what it gets; ``fails``: with what."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.row_counts: list[int] = []
        self._fails = fails

    def createDataFrame(self, table: pa.Table) -> Frame:  # noqa: N802
        if self._fails is not None:
            raise self._fails
        self.row_counts.append(table.num_rows)
        return Frame(table)


class Backend:
    parallelism = files = None

    def __init__(self, session: Session) -> None:
        self.session = session

    def __str__(self) -> str:
        return "a Spark"

    def open(self) -> Session:
        return self.session

    def alive(self) -> bool:
        return True

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Session], SparkEngine]:
    (tmp_path / "warm_handlers.py").write_text(
        "def keep(frame):\n    return {}['x'] if frame.rows.num_rows else frame\n"
    )
    # What has no rows would need Spark's own functions.
    monkeypatch.setattr(
        frames, "frame", lambda spark, table, parallelism, files: nullcontext(spark.createDataFrame(table))
    )

    def make(session: Session) -> SparkEngine:
        monkeypatch.setattr(spark, "make_backend", lambda *_: Backend(session))
        made = SparkEngine("warm_handlers:keep", (str(tmp_path),))
        made.start()
        return made

    return make


def test_rows_go_there_and_back_before_the_handler_is_shown_none(engine: Any) -> None:
    session = Session()
    made = engine(session)
    made.warm_up()
    made.close()
    assert session.row_counts == [WARM_UP_ROWS, 0]


def test_a_spark_that_runs_no_query_is_not_the_handlers_fault(engine: Any) -> None:
    made = engine(Session(ConnectionError("the executor is gone")))
    with pytest.raises(StartError, match="a Spark started, but cannot run a query"):
        made.warm_up()
    made.close()


def test_what_the_handler_raises_is_not_its_own_cause(engine: Any) -> None:
    """The search for records at fault follows the causes to their end."""
    made = engine(Session())
    row = pa.Table.from_pylist([dict.fromkeys(ARROW_SCHEMA.names)], schema=ARROW_SCHEMA)
    with pytest.raises(KeyError) as raised:
        made.transform(row)
    made.close()
    assert raised.value.__cause__ is None


class SourceError(AnalysisException):
    """As Spark raises it where a Python data source raises while a query is planned."""

    def getCondition(self) -> str:  # noqa: N802
        return "PYTHON_DATA_SOURCE_ERROR"


def test_a_source_that_cannot_be_planned_is_not_the_handlers_query(engine: Any) -> None:
    """Nor is a record at fault."""

    def act(*_: Any) -> None:
        raise SourceError("[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source slackwater")

    made = engine(Session())
    with pytest.raises(SparkFailure) as raised:
        made.query(Batch({}, frozenset(), "g", "i"), act)
    assert raised.value.environment
