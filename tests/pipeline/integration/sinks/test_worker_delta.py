"""Workers that write to a Delta table: each record once, whichever of them dies, read without deltalake."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import load
from slackwater_operator.demo import source
from tests.support.delta import DeltaFolder
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite

EXAMPLES = Path(__file__).parents[4] / "examples"


def sink(site: DeliverySite) -> dict[str, object]:
    return {"format": "delta", "path": str(site.out), "partitionBy": ["partition"]}


def test_workers_that_die_leave_each_record_once_in_the_table(site: DeliverySite) -> None:
    site.produce(400, bad_every=10)
    site.die_and_finish("publish", sink=sink(site))
    assert DeltaFolder(site.out).places() == site.good_places()
    assert Counter(site.letters()) == Counter(site.bad())


@pytest.mark.long
def test_rows_of_a_delta_table_are_written_again_after_a_rewind(site: DeliverySite) -> None:
    site.produce(400)
    for _ in range(2):
        worker = site.worker(sink=sink(site))
        site.until_committed(why=site.why)
        assert worker.terminate() == 0
        site.remove_members("w-0")
        assert DeltaFolder(site.out).places() == site.good_places()
        file = site.folder / "rewind.yaml"
        file.write_text(json.dumps(site.config(sink=sink(site))))
        command = [sys.executable, "-m", "slackwater", "rewind", "--config", str(file), f"{site.topic}:2:60"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[0] == "removed 40 rows"
        left = {place: 1 for place in site.good_places() if place < (2, 60) or place >= (3, 0)}
        assert DeltaFolder(site.out).places() == Counter(left)


@pytest.mark.long
def test_workers_that_die_add_each_record_up_once(site: DeliverySite) -> None:
    site.produce(2000, bad_every=10)
    merge = {
        "format": "delta",
        "path": str(site.out),
        "mode": "merge",
        "key": ["digit"],
        "aggregates": {"total": "sum", "most": "max", "records": "count"},
    }
    handler = site.config()["handler"].split(":")[0] + ":totals"
    site.die_and_finish(handler=handler, sink=merge)
    numbers = [int(text.split("-")[1]) for text in site.produced if text.startswith("v")]
    of = {digit: [number for number in numbers if number % 10 == digit] for digit in range(10)}
    rows = [(row["digit"], row["total"], row["most"], row["records"]) for row in DeltaFolder(site.out).rows()]
    assert sorted(rows) == [
        (digit, sum(values), max(values), len(values)) for digit, values in of.items() if values
    ]


@pytest.mark.long
def test_the_example_keeps_the_last_state_of_each_flight(site: DeliverySite) -> None:
    """Real flights, two corrections of each fifth one, the last of them late, and a worker that is killed."""
    example = load(EXAMPLES / "flights" / "delta.yaml").spec.pipeline
    assert example.value is not None
    flights = list(itertools.islice(source.read_rows(), 1500))
    expected = {(row["time_hour"], row["carrier"], int(row["flight"])): row for row in flights}
    assert len(expected) == len(flights)

    def write(rows: list[source.Row]) -> None:
        """As a producer does it: the records of one tail number are in one partition."""
        records = [source.flight_record(row) for row in rows]
        site.write([(sum(record.key or b"") % PARTITIONS, record.value or b"") for record in records])

    def corrected(row: source.Row, minutes: int) -> source.Row:
        return {**row, "dep_delay": str(minutes), "arr_delay": "NA"}

    config = {
        "engine": example.engine,
        "handler": example.handler,
        "handlerPath": [str(EXAMPLES)],
        "value": {"format": example.value.format, "schema": example.value.schema},
        "sink": {
            "format": example.sink.format,
            "path": str(site.out),
            "mode": example.sink.mode,
            "key": list(example.sink.key),
            "partitionBy": list(example.sink.partition_by),
            "newColumns": example.sink.new_columns,
        },
    }
    write([*flights, *(corrected(row, 111) for row in flights[::5])])
    site.write([(0, b"{"), (1, b'{"carrier": 1}')])
    first = site.worker(**config)
    first.until("committed")
    first.signal(signal.SIGKILL)
    worker = site.worker(**config)
    site.until_committed(why=site.why)
    before = {row["flight"]: row for row in DeltaFolder(site.out).rows()}
    late = [corrected(row, 222) for row in flights[::5]]
    assert before[int(late[0]["flight"])]["dep_delay"] == 111
    write(late)
    site.until_committed(why=site.why)
    assert worker.terminate() == 0
    expected.update({(row["time_hour"], row["carrier"], int(row["flight"])): row for row in late})

    def number(text: str) -> int | None:
        return None if text == source.MISSING else int(text)

    rows = DeltaFolder(site.out).rows()
    assert sorted(
        (row["time_hour"].strftime("%Y-%m-%dT%H:%M:%SZ"), row["carrier"], row["flight"], row["month"],
         row["origin"], row["dep_delay"] is None, row["dep_delay"] or 0, row["arr_delay"] is None)
        for row in rows
    ) == sorted(
        (*key, row["time_hour"][:7], row["origin"], number(row["dep_delay"]) is None,
         number(row["dep_delay"]) or 0, number(row["arr_delay"]) is None)
        for key, row in expected.items()
    )  # fmt: skip
    assert len(site.dead_letters()) == 2
