"""Workers that write to a PostgreSQL table: each record once, whichever of them dies."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import load
from slackwater_operator.demo import source
from tests.support.postgres import PostgresDatabase
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite
from tests.support.workers.tables import WorkersOfKeyedTable

EXAMPLES = Path(__file__).parents[4] / "examples"


def sink(database: PostgresDatabase, **more: Any) -> dict[str, object]:
    return {"format": "postgres", "table": "public.flights", "options": database.options(), **more}


class TestPostgres(WorkersOfKeyedTable):
    @pytest.fixture(autouse=True)
    def tables(self, database: PostgresDatabase) -> None:
        self.database = database

    def sink(self, site: DeliverySite, **more: Any) -> dict[str, object]:
        return sink(self.database, **more)

    def places(self, site: DeliverySite) -> Counter[tuple[int, int]]:
        return self.database.places()

    def sums(self, site: DeliverySite) -> Sequence[tuple[int, int, int, int]]:
        return self.database.rows("select digit, total, most, records from flights")


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
