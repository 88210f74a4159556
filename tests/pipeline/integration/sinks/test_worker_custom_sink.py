"""Workers that write by a sink of the user's own."""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from pathlib import Path

from slackwater_operator.api.v1alpha1.consumer_group import load
from slackwater_operator.demo import source
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite

EXAMPLES = Path(__file__).parents[4] / "examples"


def test_workers_that_die_leave_each_flight_once_in_the_examples_database(site: DeliverySite) -> None:
    """One dies between the database's commit and Kafka's, and is followed by one that ends."""
    example = load(EXAMPLES / "flights" / "sqlite.yaml").spec.pipeline
    flights = list(itertools.islice(source.read_rows(), 1500))
    values = [source.flight_record(row).value or b"" for row in flights]
    site.write([(number % PARTITIONS, value) for number, value in enumerate([*values, b"{"])])
    file = site.folder / "flights.db"
    assert example.sink.options == {"file": "/data/flights.db"}
    # This module is the handler: it makes the process die where the site's environment says.
    (site.folder / "dying.py").write_text(f"from {site.config()['handler'].split(':')[0]} import *\n"
                                          "from flights.hourly import transform\n")  # fmt: skip
    config = {
        "engine": example.engine,
        "handler": "dying:transform",
        "handlerPath": [str(site.folder), *site.config()["handlerPath"], str(EXAMPLES)],
        "sink": {
            "format": example.sink.format,
            "implementation": example.sink.implementation,
            "options": {"file": str(file)},
        },
    }
    environment = {"DIE_AFTER": "publish", "DIE_ONCE_FILE": str(site.folder / "died")}
    assert site.worker(environment=environment, **config).wait() != 0
    worker = site.worker(**config)
    site.until_committed(why=site.why)
    assert worker.terminate() == 0
    database = sqlite3.connect(file)
    rows = database.execute('select "partition", "offset", origin, cancelled, delay from flights').fetchall()
    database.close()
    expected = Counter(
        (
            number % PARTITIONS,
            number // PARTITIONS,
            row["origin"],
            int(row["dep_time"] == "NA"),
            None if row["dep_delay"] == "NA" else int(row["dep_delay"]),
        )
        for number, row in enumerate(flights)
    )
    assert Counter(rows) == expected
    assert len(site.dead_letters()) == 1
