"""Workers that write to a PostgreSQL table: each record once, whichever of them dies."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import load
from slackwater_operator.demo import source
from tests.support.postgres import PostgresDatabase
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite

EXAMPLES = Path(__file__).parents[4] / "examples"
MERGE = {
    "mode": "merge",
    "key": ["digit"],
    "aggregates": {"total": "sum", "most": "max", "records": "count"},
}


def sink(database: PostgresDatabase, **more: Any) -> dict[str, object]:
    return {"format": "postgres", "table": "public.flights", "options": database.options(), **more}


def test_workers_that_die_leave_each_record_once_in_the_table(
    site: DeliverySite, database: PostgresDatabase
) -> None:
    site.produce(2000, bad_every=10)
    site.die_and_finish("publish", sink=sink(database))
    assert database.places() == site.good_places()
    texts = [text for (text,) in database.rows("select text from flights")]
    assert sorted(texts) == sorted(text for text in site.produced if text.startswith("v"))
    assert Counter(site.letters()) == Counter(site.bad())


@pytest.mark.long
def test_workers_that_die_add_each_record_up_once(site: DeliverySite, database: PostgresDatabase) -> None:
    site.produce(2000, bad_every=10)
    handler = site.config()["handler"].split(":")[0] + ":totals"
    site.die_and_finish(handler=handler, sink=sink(database, **MERGE))
    numbers = [int(text.split("-")[1]) for text in site.produced if text.startswith("v")]
    of = {digit: [number for number in numbers if number % 10 == digit] for digit in range(10)}
    assert sorted(database.rows("select digit, total, most, records from flights")) == [
        (digit, sum(found), max(found), len(found)) for digit, found in of.items() if found
    ]


@pytest.mark.long
def test_a_record_that_breaks_a_constraint_becomes_a_dead_letter(
    site: DeliverySite, database: PostgresDatabase
) -> None:
    """PostgreSQL finds it when it writes the rows, after the handler and the dead letters before it."""
    database.execute(
        'create table flights (topic text, "partition" int, "offset" bigint, '
        "text text check (text not in ('v-77', 'v-301')))"
    )
    site.produce(400)
    worker = site.worker(sink=sink(database))
    site.until_committed(why=site.why)
    assert worker.terminate() == 0
    letters = site.dead_letters()
    assert sorted((letter.value or b"").decode() for letter in letters) == ["v-301", "v-77"]
    for letter in letters:
        assert b'violates check constraint "flights_text_check"' in letter.headers["slackwater.error"]
    assert database.places() == site.good_places() - Counter([(77 % PARTITIONS, 19), (301 % PARTITIONS, 75)])


@pytest.mark.long
def test_the_example_adds_up_the_flights_of_each_hour(site: DeliverySite, database: PostgresDatabase) -> None:
    """The real records of the example, and a worker that is killed between batches."""
    example = load(EXAMPLES / "flights" / "postgres.yaml").spec.pipeline
    flights = list(itertools.islice(source.read_rows(), 3000))
    values = [source.flight_record(row).value or b"" for row in flights]
    site.write(
        [(number % PARTITIONS, value) for number, value in enumerate([*values, b"{", b'{"origin":1}'])]
    )
    config = {
        "engine": example.engine,
        "handler": example.handler,
        "handlerPath": [str(EXAMPLES)],
        "sink": {
            **sink(database, mode=example.sink.mode, key=list(example.sink.key)),
            "table": example.sink.table,
            "aggregates": dict(example.sink.aggregates),
            "newColumns": example.sink.new_columns,
        },
    }
    first = site.worker(**config)
    first.until("committed")
    first.signal(signal.SIGKILL)
    worker = site.worker(**config)
    site.until_committed(why=site.why)
    assert worker.terminate() == 0
    expected: dict[tuple[str, str], list[str]] = {}
    for row in flights:
        expected.setdefault((row["origin"], row["time_hour"]), []).append(row["dep_delay"])
    delays = {place: [int(text) for text in texts if text != "NA"] for place, texts in expected.items()}
    found = database.rows(
        "select origin, to_char(hour at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), flights, "
        "cancelled, delay_total, delay_most from flights_by_hour"
    )
    assert sorted(found) == sorted(
        (*place, len(texts), len(texts) - len(delays[place]), sum(delays[place]) if delays[place] else None,
         max(delays[place], default=None))
        for place, texts in expected.items()
    )  # fmt: skip
    assert len(site.dead_letters()) == 2


@pytest.mark.long
def test_rows_of_a_postgres_table_are_written_again_after_a_rewind(
    site: DeliverySite, database: PostgresDatabase
) -> None:
    site.produce(400)
    for _ in range(2):
        worker = site.worker(sink=sink(database))
        site.until_committed(why=site.why)
        assert worker.terminate() == 0
        site.remove_members("w-0")
        assert database.places() == site.good_places()
        file = site.folder / "rewind.yaml"
        file.write_text(json.dumps(site.config(sink=sink(database))))
        command = [sys.executable, "-m", "slackwater", "rewind", "--config", str(file), f"{site.topic}:2:60"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[0] == "removed 40 rows"
        left = {place: 1 for place in site.good_places() if place < (2, 60) or place >= (3, 0)}
        assert database.places() == Counter(left)
