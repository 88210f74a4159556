"""``slackwater backfill``: a handler on Spark over ranges of a topic; table and group afterwards."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from tests.pipeline.integration.engines import backfill_host as host
from tests.pipeline.integration.engines.backfill_site import HANDLER, PARTITIONS, group_rows, ids, write
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.devbroker import DevBroker
from tests.support.peers.librdkafka import read_topic
from tests.support.postgres import PostgresDatabase
from tests.support.workers.group_site import GroupSite

pytestmark = pytest.mark.parts("spark")


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> Iterator[GroupSite]:
    with GroupSite(
        devbroker.bootstrap, tmp_path, handler=HANDLER, partitions=PARTITIONS, dead_letters=2
    ) as made:
        yield made


@pytest.mark.long
def test_each_record_is_once_in_the_table_after_crashes_and_the_group_is_left_alone(
    site: GroupSite, spark: SparkProcess
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


@pytest.mark.long
def test_decoded_values_and_a_record_that_breaks_the_batch(site: GroupSite, spark: SparkProcess) -> None:
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


@pytest.mark.long
def test_engine_arrow_runs_in_the_executors(site: GroupSite, spark: SparkProcess) -> None:
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


@pytest.mark.long
def test_a_table_of_several_gets_its_rows_alone(site: GroupSite, spark: SparkProcess) -> None:
    write(site, range(1, 60))
    low, other = site.folder / "low", site.folder / "other"
    config = site.config(
        engine="arrow",
        handler="site_handler:arrow",
        routes=[{"when": "id < 20", "sink": {"format": "parquet", "path": str(low)}}],
    )
    assert spark.run(host.run_with, config, ["earliest"], {})[-1].startswith("ConfigError: routes")
    assert spark.run(host.run_with, config, ["earliest"], {"route": "0"})[-1].startswith("1 batches")
    assert not site.out.exists()
    elsewhere = {"route": "default", "sink": [f"path={other}"]}
    assert spark.run(host.run_with, config, ["earliest"], elsewhere)[-1].startswith("1 batches")
    for folder, expected in ((low, range(1, 20)), (other, range(20, 60))):
        site.output.folder = folder
        assert ids(site) == list(expected)


@pytest.mark.long
def test_a_record_that_ends_a_process_of_sparks_is_a_dead_letter(
    site: GroupSite, spark: SparkProcess
) -> None:
    write(site, range(60))
    config = site.config(engine="arrow", handler="site_handler:ending", retries=0)
    lines = spark.run(host.run_with, config, ["earliest"], {})
    assert lines[-1].endswith(" 59 rows, 1 letters")
    assert ids(site) == [number for number in range(60) if number != 7]
    (letter,) = site.dead_letters()
    assert json.loads(letter.value or b"")["id"] == 7
    assert letter.headers["slackwater.error"].startswith(b"EndedTheProcess: ")


@pytest.mark.long
def test_a_format_of_sparks_is_written_in_the_cluster_and_goes_on_by_committed_offsets(
    site: GroupSite, spark: SparkProcess
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


def filled(site: GroupSite, spark: SparkProcess, sink: list[str]) -> list[str]:
    """What a backfill prints that is run again after it has ended behind its first batch."""
    write(site, range(90))
    site.commit({0: 7, 1: 8, 2: 9})
    config = site.config(engine="arrow", handler="site_handler:whole")

    def run(**options: Any) -> list[str]:
        return spark.run(host.run_with, config, ["earliest"], {"sink": sink, "batch_rows": 30, **options})

    assert run(end_after="publish")[-1].startswith("EndedHere")
    lines = run()
    assert lines[-1] == "2 batches, 60 rows, 0 letters"
    assert not site.out.exists()
    assert site.committed() == {0: 7, 1: 8, 2: 9}
    return lines


@pytest.mark.long
def test_a_table_of_postgres(site: GroupSite, spark: SparkProcess, database: PostgresDatabase) -> None:
    options = [f"options.{name}={value}" for name, value in database.options().items()]
    filled(site, spark, ["format=postgres", "table=public.orders", *options])
    assert sorted(number for (number,) in database.rows("select id from orders")) == list(range(90))


@pytest.mark.long
def test_a_topic(site: GroupSite, spark: SparkProcess) -> None:
    target = f"{site.topic}.copy"
    site.create_topics(**{target: 1})
    filled(site, spark, ["format=kafka", f"topic={target}"])
    values = [json.loads(record.value or b"") for record in read_topic(site.bootstrap, target)]
    assert sorted(value["id"] for value in values) == list(range(90))


@pytest.mark.long
def test_a_function_of_the_users(site: GroupSite, spark: SparkProcess) -> None:
    file = site.folder / "stored"
    filled(site, spark, ["format=custom", "implementation=site_handler:store", f"options.file={file}"])
    assert sorted(map(int, file.read_text().split())) == list(range(90))
