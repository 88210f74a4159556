"""A sink without marks that refuses a record: it is a dead letter, and the others are stored once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from slackwater.pipeline.sinks.spark import spark_sink
from slackwater.pipeline.sinks.unmarked import UnmarkedSink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import Sink
from tests.support.workers.fakes import Bench


class Table:
    """Takes the rows of a batch all or none; none where one has a value that it refuses."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def write(self, rows: pa.Table) -> None:
        if any(b"no" in value for value in rows["value"].to_pylist()):
            raise RecordsError("a row breaks a rule")
        self.offsets += rows["offset"].to_pylist()


def play(sink: Sink, *values: str) -> list[str]:
    bench = Bench(retries=0)
    bench.sink = sink
    bench.restart(max_records=1000)
    bench.assign(bench.produce(0, *values))
    bench.until_idle()
    return bench.letters.origins()


@pytest.mark.parametrize("refused", [{7}, {0, 31, 39}, set(range(12, 16))], ids=str)
def test_each_record_is_a_row_or_a_dead_letter_once(refused: set[int]) -> None:
    table = Table()
    sink = UnmarkedSink(table.write, "a table", appends=True)
    letters = play(sink, *("no" if n in refused else "v" for n in range(40)))
    assert sorted(letters) == sorted(f"flights-0@{number}" for number in refused)
    assert sorted(table.offsets) == [number for number in range(40) if number not in refused]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: n", RecordsError),
        ("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint positive (n > 0) violated", RecordsError),
        ("[NOT_NULL_ASSERT_VIOLATION] NULL value appeared in non-nullable field: n", RecordsError),
        ('PSQLException: ERROR: null value in column "n" violates not-null constraint', RecordsError),
        ('ERROR: new row for relation "t" violates check constraint "positive"', RecordsError),
        ("PSQLException: Connection refused", SinkError),
    ],
)
def test_what_spark_says_of_rows_is_a_fault_of_records(error: str, kind: type[Exception]) -> None:
    document: dict[str, Any] = {
        "groupId": "flights",
        "topics": ["flights"],
        "bootstrapServers": "127.0.0.1:1",
        "handler": "m:f",
        "engine": "spark",
        "sink": {"format": "spark", "sparkFormat": "jdbc"},
    }

    class Session:
        def createDataFrame(self, rows: pa.Table) -> Any:  # noqa: N802  (Spark's name)
            raise RuntimeError(error)

    sink = spark_sink(parse(document), Session)
    rows = pa.table({"topic": ["flights"], "partition": [0], "offset": [0]})
    staged = sink.stage(rows, {})
    staged.ranges = {None: None}
    with pytest.raises(kind):
        staged.publish()
