"""Modes with a key of a Delta table that Spark writes: what the table holds, by deltalake."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import Range
from tests.pipeline.integration.engines import spark_delta_host as host
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.sink_changes import REMEMBERS, ChangesCases, changes
from tests.support.sinks import A, B, marks, mode_table, put

pytestmark = [pytest.mark.parts("spark", "spark-delta"), pytest.mark.long]


class RemoteSink:
    """A sink of the process ``spark``, with these settings. Each second batch has its rows in Spark."""

    batches = itertools.count()

    def __init__(self, spark: SparkProcess, path: Path, settings: Mapping[str, Any]) -> None:
        self._spark, self._path, self._settings = spark, str(path), dict(settings)

    def marks(self, partitions: Collection[TopicPartition]) -> Any:
        return self._spark.run(host.marks_in, self._path, list(partitions))

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> RemoteSink:
        self._batch = rows, dict(ranges)
        return self

    def publish(self) -> None:
        in_spark = next(self.batches) % 2 == 1
        self._spark.run(host.put_keyed, self._path, self._settings, *self._batch, in_spark)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> Any:
        return self._spark.run(host.rewind_keyed, self._path, self._settings, dict(starts))


class TestChanges(ChangesCases):
    spark: SparkProcess
    path: Path

    @pytest.fixture(autouse=True)
    def in_process(self, spark_with_jars: SparkProcess) -> None:
        self.spark = spark_with_jars

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.path = request.getfixturevalue("tmp_path") / "table"

    def made(self, **settings: Any) -> Any:
        return RemoteSink(self.spark, self.path, {"mode": "changes", "key": ["id"], **settings})

    def stored(self) -> list[dict[str, Any]]:
        return DeltaTable(self.path).to_pyarrow_table().to_pylist()

    def require(self, column: str) -> None:
        DeltaTable(self.path).alter.add_constraint({"required": f"{column} IS NOT NULL"})

    def test_a_row_that_breaks_a_constraint_is_an_error_of_records(self) -> None:
        at = put(self.made(), changes((None, 1, "a")), 0)
        self.require("v")
        with pytest.raises(RecordsError, match="CHECK constraint required"):
            put(self.made(), changes((None, 2, None), start=at), at)
        assert self.values() == {1: "a"}

    def test_the_rows_that_the_table_does_not_take_are_found_and_others_are_cast(self) -> None:
        put(delta_sink("g", str(self.path)), changes((None, 1, 1)).drop_columns("_op"), 0)
        given = changes((None, 2, "2"), (None, 3, "no number"), (None, 4, "4"), start=1)
        errors = self.spark.run(host.searched, str(self.path), {"mode": "changes", "key": ["id"]}, given)
        assert [error.partition(":")[0] for error in errors] == ["RecordsError", "", "RecordsError", "", ""]
        assert "CAST_INVALID_INPUT" in errors[2]
        assert self.values() == {1: 1, 2: 2, 4: 4}

    def test_the_sink_delta_has_the_same_marks_and_the_same_deleted_keys(self) -> None:
        at = put(self.made(**REMEMBERS), changes((None, 1, "a", 1), ("delete", 2, None, 5)), 0)
        other = delta_sink("g", str(self.path), mode="changes", key=["id"], **REMEMBERS)
        at = put(other, changes((None, 2, "late", 4), ("delete", 1, None, 5), start=at), at)
        put(self.made(**REMEMBERS), changes((None, 1, "late", 4), (None, 2, "b", 6), start=at), at)
        assert self.values() == {2: "b"}
        assert marks(other) == {A: 6, B: 0}

    def test_upsert_is_mode_changes_without_operations(self) -> None:
        upsert = RemoteSink(self.spark, self.path, {"mode": "upsert", "key": ["id"]})
        at = put(cast(Any, upsert), changes((None, 1, "a"), (None, 2, "b")).drop_columns("_op"), 0)
        more = changes((None, 2, "B"), (None, 3, "c"), start=at).append_column("n", pa.array([1, 2]))
        put(cast(Any, upsert), more.drop_columns("_op"), at)
        assert self.values() == {1: "a", 2: "B", 3: "c"}
        assert sorted((row["id"], row["n"]) for row in self.stored() if row["n"]) == [(2, 1), (3, 2)]


@pytest.mark.parametrize(("goes_on", "after"), [(True, False), (False, True)], ids=["goes on", "dies"])
def test_each_change_is_made_once_wherever_a_worker_stops(
    spark_with_jars: SparkProcess, tmp_path: Path, goes_on: bool, after: bool
) -> None:
    turn, ends = 1, Counter[str]()
    while ended := spark_with_jars.run(_interrupted, str(tmp_path / str(turn)), turn, after, goes_on):
        assert table(tmp_path / str(turn)) == mode_table("changes", host.RECORDS)
        ends[ended] += 1
        turn += 1
    assert turn > 2 * len(host.STEPS)
    assert set(ends) <= ({"SinkFencedError", "done"} if goes_on else {"Died"})


def test_three_workers_at_once(spark_with_jars: SparkProcess, tmp_path: Path) -> None:
    spark_with_jars.run(host.at_once, str(tmp_path), 20, "changes")
    assert table(tmp_path) == mode_table("changes", 20)


def table(folder: Path) -> list[tuple[int, ...]]:
    rows = DeltaTable(folder).to_pyarrow_table().select(["partition", "key", "value", "offset"])
    return sorted(zip(*rows.to_pydict().values(), strict=True))


def _interrupted(path: str, turn: int, after: bool, goes_on: bool) -> str:
    return host.interrupted(path, turn, after=after, goes_on=goes_on, mode="changes")
