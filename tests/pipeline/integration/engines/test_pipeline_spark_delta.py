"""A Delta table that Spark itself writes: each record is in it once, by readers that are not Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.delta.maintenance import DeltaMaintenance
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range
from tests.pipeline.integration.engines import backfill_host, spark_delta_host as host
from tests.pipeline.integration.engines.backfill_site import HANDLER, PARTITIONS, topic_id, write
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.delta import DeltaFolder
from tests.support.devbroker import DevBroker
from tests.support.sinks import OLD, A, B, marks, put, rows
from tests.support.spark import delta_conf
from tests.support.workers.delivery_site import DeliverySite
from tests.support.workers.group_site import GroupSite

pytestmark = pytest.mark.parts("spark", "spark-delta")

ALL = Counter((partition, offset) for partition in (0, 1) for offset in range(host.RECORDS))


@pytest.fixture
def spark(spark_with_jars: SparkProcess) -> SparkProcess:
    return spark_with_jars


def places(folder: Path) -> Counter[tuple[int, int]]:
    """By deltalake, and by a reader after the protocol's text."""
    table = DeltaTable(folder).to_pyarrow_table(columns=["partition", "offset"])
    read = Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert read == DeltaFolder(folder).places()
    return read


@pytest.mark.long
def test_rows_and_marks_of_a_batch_are_one_commit_and_both_sinks_have_the_same_marks(
    spark: SparkProcess, tmp_path: Path
) -> None:
    assert spark.run(host.put, str(tmp_path), [{0: (0, 3), 1: (0, 2)}]) == ""
    assert DeltaTable(tmp_path).version() == 0, "the table, its rows and two marks"
    assert places(tmp_path) == Counter([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])

    other = delta_sink("g", str(tmp_path))
    assert marks(other) == {A: 3, B: 2}
    put(other, rows([3]), 3)
    assert spark.run(host.marks, str(tmp_path)) == {"0": 4, "1": 2}
    assert "its rows are there up to 4" in spark.run(host.repeat, str(tmp_path), {0: (3, 4, 3)})
    assert "its rows are there up to 2" in spark.run(
        host.repeat, str(tmp_path), {0: (4, 5, 4), 1: (0, 2, None)}
    )
    assert spark.run(host.put, str(tmp_path), [{0: (4, 6)}, {1: (2, 2)}]) == ""
    assert other.rewind({A: (OLD, 5)}) == 1
    assert spark.run(host.marks, str(tmp_path)) == {"0": 5, "1": 2}
    assert sum(places(tmp_path).values()) == 7


@pytest.mark.long
def test_a_batch_without_rows_moves_marks_once_there_is_a_table(spark: SparkProcess, tmp_path: Path) -> None:
    assert spark.run(host.put, str(tmp_path), [{0: (0, 0)}]) == ""
    assert not list(tmp_path.iterdir())
    assert spark.run(host.put, str(tmp_path), [{1: (0, 1)}]) == ""
    assert spark.run(host.repeat, str(tmp_path), {0: (0, 0, None)}) == ""
    assert DeltaFolder(tmp_path).version == 1
    assert places(tmp_path) == Counter([(1, 0)])


@pytest.mark.long
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"n": 0}, "CHECK constraint positive"),
        ({"n": None}, "NOT NULL constraint violated for column: n"),
        ({"v": "long text"}, "EXCEED"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_row_that_the_table_does_not_take_is_found_and_the_others_are_stored_once(
    spark: SparkProcess, tmp_path: Path, bad: dict[str, Any], reason: str
) -> None:
    batch, good, alone, rest = spark.run(host.refused, str(tmp_path), bad)
    for error in (batch, alone):
        assert error.startswith("RecordsError: ")
        assert reason in error
    assert good == "" or "extra" in bad, "a column of the batch's other rows is there, without a value"
    assert rest == ""
    assert places(tmp_path) == Counter([(0, 0)])


@pytest.mark.long
def test_rows_that_stay_in_spark_are_written_from_there(spark: SparkProcess, tmp_path: Path) -> None:
    assert spark.run(host.put_kept, str(tmp_path), 3) == 0
    assert places(tmp_path) == Counter([(0, 0), (0, 1), (0, 2)])
    assert spark.run(host.marks, str(tmp_path)) == {"0": 3, "1": 0}


@pytest.mark.long
def test_a_suspended_worker_writes_nothing_after_its_heir(spark: SparkProcess, tmp_path: Path) -> None:
    """The data files of its second batch are written, the commit is not: with the first one, the table that
    its heir has created would be enough to refuse it."""
    ended = spark.run(_interrupted, str(tmp_path), 2 * len(host.STEPS), False, True)
    assert ended == "SinkFencedError"
    assert places(tmp_path) == ALL


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["dies", "goes on"])
def test_each_record_is_there_once_wherever_a_worker_stops(
    spark: SparkProcess, tmp_path: Path, after: bool, goes_on: bool
) -> None:
    turn, ends = 1, Counter[str]()
    while ended := spark.run(_interrupted, str(tmp_path / str(turn)), turn, after, goes_on):
        assert places(tmp_path / str(turn)) == ALL
        ends[ended] += 1
        turn += 1
    assert turn > 2 * len(host.STEPS)
    assert set(ends) <= ({"SinkFencedError", "done"} if goes_on else {"Died"})


@pytest.mark.long
def test_workers_that_die_leave_each_record_once_in_the_table(devbroker: DevBroker, tmp_path: Path) -> None:
    with DeliverySite(devbroker.bootstrap, tmp_path) as site:
        site.produce(400, bad_every=10)
        site.die_and_finish(
            engine="spark",
            handler="site_handler:in_spark",
            spark={"conf": {"spark.master": "local[2]", **delta_conf()}},
            sink={"format": "spark", "sparkFormat": "delta", "options": {"path": str(site.out)}},
        )
        texts = DeltaTable(site.out).to_pyarrow_table()["text"].to_pylist()
        assert sorted(texts) == sorted(text for text in site.produced if text.startswith("v"))
        assert sorted(site.letters()) == sorted(text for text in site.produced if text.startswith("bad"))


@pytest.mark.long
def test_three_workers_at_once(spark: SparkProcess, tmp_path: Path) -> None:
    spark.run(host.at_once, str(tmp_path), 30)
    assert places(tmp_path) == Counter((partition, offset) for partition in (0, 1) for offset in range(30))


@pytest.mark.long
def test_columns_that_the_table_lacks_are_an_error_without_mergeschema(
    spark: SparkProcess, tmp_path: Path
) -> None:
    put(delta_sink("g", str(tmp_path)), rows([0], n=[1]), 0)
    assert spark.run(host.put, str(tmp_path), [{1: (0, 1)}]).startswith("RecordsError")
    assert spark.run(_merging, str(tmp_path)) == ""
    assert set(DeltaFolder(tmp_path).columns) == {"topic", "partition", "offset", "n", "carrier"}


@pytest.mark.long
@pytest.mark.parametrize("mapping", ["none", "name"])
@pytest.mark.parametrize("mode", ["append", "upsert", "changes", "merge"])
def test_rows_that_deletion_vectors_have_deleted_stay_deleted(
    spark: SparkProcess, tmp_path: Path, mode: str, mapping: str
) -> None:
    """deltalake writes rows with the keys 3, which was deleted, and 5, which is there; and compacts."""
    path = str(tmp_path)
    spark.run(host.make_with_deletion_vectors, path, mapping)
    deleted = [each for file in (tmp_path / "_delta_log").glob("*.json") for each in file.open()]
    assert any('"deletionVector":{' in each for each in deleted), "Spark has written one"
    settings: dict[str, Any] = {} if mode == "append" else {"mode": mode, "key": ["k"]}
    if mode == "merge":
        settings["aggregates"] = dict.fromkeys(["topic", "partition", "offset", "carrier"], "min")
    put(delta_sink("g", path, **settings), rows([0, 1], k=[3, 5], carrier=["new", "new"]), 0)
    left = [(key, "spark") for key in (0, 1, 2, 6, 7, 8, 9)]
    former = [(5, "spark")] if mode == "append" else []
    expected = sorted([*left, *former, (3, "new"), (5, "new")])
    assert spark.run(host.carriers, path) == expected
    if mapping == "name":
        with pytest.raises(SinkError, match="Column mapping is not supported .*OPTIMIZE"):
            DeltaMaintenance(path, {}).run(1 << 20, 0)
        return
    for target_bytes in (1, 1 << 20):  # too small for the files that are there, and not
        DeltaMaintenance(path, {}).run(target_bytes, 0)
        assert spark.run(host.carriers, path) == expected


@pytest.mark.long
def test_a_backfill_goes_on_by_the_marks_in_the_table(
    devbroker: DevBroker, spark: SparkProcess, tmp_path: Path
) -> None:
    with GroupSite(
        devbroker.bootstrap, tmp_path, handler=HANDLER, partitions=PARTITIONS, dead_letters=2
    ) as site:
        write(site, range(90), rejected=30)
        site.commit({0: 7, 1: 8, 2: 9})
        sink = {"format": "spark", "sparkFormat": "delta", "options": {"path": str(site.out)}}
        config = site.config(engine="spark", handler="site_handler:transform", sink=sink, retries=0)

        def run(begin: str, **options: Any) -> list[str]:
            return spark.run(backfill_host.run_with, config, [begin], {"batch_rows": 45, **options})

        ended = run(site.topic, end_after="store", after=2)[-1]
        assert "EndedHere" in ended, "after the second batch's dead letter is stored, and before its rows"
        config["handler"] = "site_handler:accepting"
        version = DeltaTable(site.out).version()
        lines = run(site.topic)
        assert f"{site.topic}-0: from 0 up to 30 (not included), goes on at 15" in lines
        assert lines[-1] == "1 batches, 44 rows, 0 letters", "what was rejected stays a dead letter"
        assert DeltaTable(site.out).version() == version + 1, "one commit a batch, and the ends are fixed"
        assert run(site.topic)[-1] == "0 batches, 0 rows, 0 letters"
        rows = DeltaTable(site.out).to_pyarrow_table()
        assert sorted(rows["id"].to_pylist()) == [number for number in range(90) if number % 30]
        assert sorted(letter.source for letter in site.dead_letters()) == [(0, 0), (0, 10), (0, 20)]
        assert site.committed() == {0: 7, 1: 8, 2: 9}

        live = delta_sink(site.group, str(site.out))
        at = {TopicPartition(site.topic, 0): Range(topic_id(site), 0, 5, None)}
        live.stage(rows.slice(0, 0), at).publish()
        refused = run("earliest", name="again")[-1]
        assert f"the group {site.group} has written {site.topic}-0 to this table up to offset 5" in refused


@pytest.mark.long
def test_a_record_that_breaks_a_backfills_batch_becomes_a_dead_letter(
    devbroker: DevBroker, spark: SparkProcess, tmp_path: Path
) -> None:
    with GroupSite(
        devbroker.bootstrap, tmp_path, handler=HANDLER, partitions=PARTITIONS, dead_letters=2
    ) as site:
        write(site, range(6))
        config = site.config(
            engine="spark",
            handler="site_handler:decoded",
            value={"format": "json", "schema": "id LONG, kind STRING"},
            sink={"format": "spark", "sparkFormat": "delta", "options": {"path": str(site.out)}},
        )
        lines = spark.run(backfill_host.run_with, config, ["earliest"], {})
        assert lines[-1] == "1 batches, 5 rows, 1 letters"
        assert sorted(DeltaTable(site.out).to_pyarrow_table()["id"].to_pylist()) == list(range(1, 6))
        assert [letter.source for letter in site.dead_letters()] == [(0, 0)]


def _interrupted(path: str, turn: int, after: bool, goes_on: bool) -> str:
    return host.interrupted(path, turn, after=after, goes_on=goes_on)


def _merging(path: str) -> str:
    return host.put(path, [{1: (0, 1)}], mergeSchema="true")
