"""Workers that write to a Delta table: each record once, whichever of them dies, read without deltalake."""

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
from tests.support.delta import DeltaFolder
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite
from tests.support.workers.tables import WorkersOfKeyedTable

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.mark.long
class TestDelta(WorkersOfKeyedTable):
    def sink(self, site: DeliverySite, **more: Any) -> dict[str, object]:
        by = [] if more else ["partition"]
        return {"format": "delta", "path": str(site.out), "partitionBy": by, **more}

    def places(self, site: DeliverySite) -> Counter[tuple[int, int]]:
        return DeltaFolder(site.out).places()

    def sums(self, site: DeliverySite) -> Sequence[tuple[int, int, int, int]]:
        names = ("digit", "total", "most", "records")
        return [tuple(row[name] for name in names) for row in DeltaFolder(site.out).rows()]


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
