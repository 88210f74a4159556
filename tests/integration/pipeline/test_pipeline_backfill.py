"""``slackwater backfill``: a handler on Spark over ranges of a topic; table and group afterwards."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.parquet.sink import ParquetSink
from slackwater.runtime.interfaces import Range
from tests.integration.pipeline import backfill_host as host
from tests.integration.pipeline.spark_source_host import SourceHost
from tests.support.devbroker import DevBroker
from tests.support.workers.group_site import GroupSite

pytestmark = [pytest.mark.parts("spark", "spark-kafka"), pytest.mark.timeout(300)]

PARTITIONS = 3
HANDLER = '''
import json

import pyarrow as pa


def transform(df):
    from pyspark.sql import functions as F

    fields = F.from_json(F.col("value").cast("string"), "id LONG, kind STRING").alias("v")
    rows = df.select("topic", "partition", "offset", fields)
    error = F.when(F.col("v.kind") == "rejected", F.concat(F.lit("rejected "), F.col("v.id").cast("string")))
    return rows.select("topic", "partition", "offset", "v.id", error.alias("_error"))


def number(value):
    return 10 // value


def decoded(df, batch):
    """A value of 0 breaks the batch. The UDF is of this module: executors import it."""
    from pyspark.sql import functions as F

    assert batch.instance in ("backfill", ""), "that of the warm-up has none"
    tenth = F.udf(number, "int")(F.col("value.id"))
    return df.select("topic", "partition", "offset", "value.id", tenth.alias("tenth"))


def arrow(table):
    ids = [json.loads(value)["id"] for value in table["value"].to_pylist()]
    if 0 in ids:
        raise ValueError("id is 0")
    return table.select(["topic", "partition", "offset"]).append_column("id", pa.array(ids, pa.int64()))
'''


@pytest.fixture(scope="module")
def spark() -> Iterator[SourceHost]:
    child = SourceHost()
    yield child
    child.close()


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> Iterator[GroupSite]:
    with GroupSite(
        devbroker.bootstrap, tmp_path, handler=HANDLER, partitions=PARTITIONS, dead_letters=2
    ) as made:
        yield made


def write(site: GroupSite, ids: range, rejected: int = 0) -> None:
    """JSON records in turn to each partition; each ``rejected``-th is one that the handler rejects."""
    site.write(
        (
            (
                number % PARTITIONS,
                json.dumps(
                    {"id": number, "kind": "rejected" if rejected and number % rejected == 0 else "good"}
                ).encode(),
            )
            for number in ids
        ),
        headers={"h": b"x"},
    )


def ids(site: GroupSite) -> list[int]:
    return sorted(row["id"] for row in site.output.rows("id"))


def group_rows(site: GroupSite, count: int) -> ParquetSink:
    """What a worker of the group has written to the table: the first ``count`` records of partition 0."""
    sink = ParquetSink(site.group, str(site.out))
    rows = pa.table(
        {
            "topic": [site.topic] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "id": pa.array(range(0, PARTITIONS * count, PARTITIONS), pa.int64()),
        }
    )
    sink.stage(rows, {TopicPartition(site.topic, 0): Range(topic_id(site), 0, count, None)}).publish()
    return sink


def topic_id(site: GroupSite) -> str:
    from slackwater.kafka import KafkaAdmin
    from slackwater.runtime.delivery.stopped_partitions import id_text

    with KafkaAdmin(site.bootstrap) as admin:
        return id_text(admin.describe_topics([site.topic]).unwrap()[site.topic].topic_id)


def test_each_record_is_once_in_the_table_after_crashes_and_the_group_is_left_alone(
    site: GroupSite, spark: SourceHost
) -> None:
    write(site, range(900), rejected=90)
    site.commit({0: 7, 1: 8, 2: 9})
    live = group_rows(site, 10)
    marks = live.marks([TopicPartition(site.topic, 0)])
    config = site.config(engine="spark", handler="site_handler:transform")
    begins = [f"{site.topic}:{number}:{10 if number == 0 else 0}" for number in range(PARTITIONS)]

    def run(**options: Any) -> list[str]:
        return spark.run(host.run_with, config, begins, {"batch_rows": 300, **options})

    refused = spark.run(host.run_with, config, ["earliest"], {})
    assert f"the group {site.group} has written {site.topic}-0 to this table up to offset 10" in refused[-1]
    assert "EndedHere" in run(end_after="store")[-1]
    assert len(site.output.rows("id")) == 10, "only the group's"
    assert "EndedHere" in run(end_after="publish")[-1]
    after_crash = len(site.output.rows("id"))
    assert 10 < after_crash < 400
    lines = run()
    assert f"{site.topic}-0: from 10 up to 300 (not included), goes on at " in "\n".join(lines)
    write(site, range(900, 960))  # behind the end that the first run has fixed
    assert run()[-2:] == ["nothing is left to do", "0 batches, 0 rows, 0 letters"]

    rejected = [number for number in range(900) if number % 90 == 0 and (number % 3 or number >= 30)]
    assert ids(site) == sorted(set(range(900)) - set(rejected))
    letters = site.dead_letters()
    assert sorted(json.loads(letter.value or b"")["id"] for letter in letters) == rejected
    for letter in letters:
        number = json.loads(letter.value or b"")["id"]
        assert letter.source == (number % PARTITIONS, number // PARTITIONS)
        assert letter.headers["slackwater.error"] == b"rejected %d" % number
        assert letter.headers["h"] == b"x"
    assert site.committed() == {0: 7, 1: 8, 2: 9}
    assert live.marks([TopicPartition(site.topic, 0)]) == marks
    assert site.describe().state == "Empty", "nobody has joined"


def test_decoded_values_and_a_record_that_breaks_the_batch(site: GroupSite, spark: SourceHost) -> None:
    write(site, range(6))
    site.write([(1, b"no json")])
    config = site.config(
        engine="spark",
        handler="site_handler:decoded",
        value={"format": "json", "schema": "id LONG, kind STRING"},
    )
    lines = spark.run(host.run_with, config, ["earliest"], {})
    assert "1 batches, 5 rows, 2 letters" in lines[-1]
    assert ids(site) == list(range(1, 6))
    errors = {letter.value: letter.headers["slackwater.error"].decode() for letter in site.dead_letters()}
    assert "ZeroDivisionError" in errors.pop(b'{"id": 0, "kind": "good"}')
    assert "value" in errors.pop(b"no json")
    assert not errors


def test_engine_arrow_runs_in_the_executors(site: GroupSite, spark: SourceHost) -> None:
    write(site, range(60))
    other = site.folder / "other"
    lines = spark.run(
        host.run_with,
        site.config(engine="arrow", handler="site_handler:arrow"),
        ["earliest"],
        {"sink": [f"path={other}"], "dead_letters": str(site.folder / "letters.jsonl")},
    )
    assert lines[-1] == "1 batches, 59 rows, 1 letters"
    site.output.folder = other
    assert ids(site) == list(range(1, 60))
    (line,) = (site.folder / "letters.jsonl").read_text().splitlines()
    letter = json.loads(line)
    assert json.loads(base64.b64decode(letter["value"]))["id"] == 0
    assert b"ValueError: id is 0" in base64.b64decode(dict(letter["headers"])["slackwater.error"])
    assert site.dead_letters() == []
    assert not site.out.exists()


def test_a_format_of_sparks_is_written_in_the_cluster_and_goes_on_by_committed_offsets(
    site: GroupSite, spark: SourceHost
) -> None:
    write(site, range(90), rejected=30)
    config = site.config(
        engine="spark",
        handler="site_handler:transform",
        sink={"format": "spark", "sparkFormat": "json", "options": {"path": str(site.out)}},
    )
    first = spark.run(
        host.run_with, config, ["earliest"], {"batch_rows": 45, "end_after": "refresh", "after": 2}
    )
    assert first[-1].startswith("EndedHere")
    lines = spark.run(host.run_with, config, ["earliest"], {"batch_rows": 90})
    assert f"{site.topic}-0: from 0 up to 30 (not included), goes on at 15" in lines
    assert lines[-1] == "1 batches, 44 rows, 1 letters"
    rows = [json.loads(line) for file in site.out.glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == [number for number in range(90) if number % 30]
    assert sorted(letter.source for letter in site.dead_letters()) == [(0, 0), (0, 10), (0, 20)]
    assert site.describe().state == "Dead", "there is no such group"
    site.commit({0: 5})
    refused = spark.run(host.run_with, config, ["earliest"], {"name": "again"})
    assert f"the group {site.group} has written {site.topic}-0 to this table up to offset 5" in refused[-1]
