"""Worker processes that write to a table: each record once, whichever of them dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.workers.delivery_site import DeliverySite

MERGE = {
    "mode": "merge",
    "key": ["digit"],
    "aggregates": {"total": "sum", "most": "max", "records": "count"},
}


class WorkersOfTable:
    """The class that tests a format says which sink writes the table, and reads it without the sink."""

    def sink(self, site: DeliverySite, **more: Any) -> dict[str, object]:
        """The section `sink` of a worker's file."""
        raise NotImplementedError

    def places(self, site: DeliverySite) -> Counter[tuple[int, int]]:
        """How many rows there are of each (partition, offset)."""
        raise NotImplementedError

    def settings(self, site: DeliverySite) -> dict[str, Any]:
        """What a worker's file has of the table."""
        return {"sink": self.sink(site)}

    def test_workers_that_die_leave_each_record_once_in_the_table(self, site: DeliverySite) -> None:
        site.produce(400, bad_every=10)
        site.die_and_finish("publish", **self.settings(site))
        assert self.places(site) == site.good_places()
        assert Counter(site.letters()) == Counter(site.bad())

    @pytest.mark.long
    def test_rows_are_written_again_after_a_rewind(self, site: DeliverySite) -> None:
        site.produce(400)
        for _ in range(2):
            worker = site.worker(**self.settings(site))
            site.until_committed(why=site.why)
            assert worker.terminate() == 0
            site.remove_members("w-0")
            assert self.places(site) == site.good_places()
            file = site.folder / "rewind.yaml"
            file.write_text(json.dumps(site.config(**self.settings(site))))
            command = [sys.executable, "-m", "slackwater", "rewind", "--config", str(file)]
            done = subprocess.run(
                [*command, f"{site.topic}:2:60"], capture_output=True, text=True, check=True
            )
            assert done.stdout.splitlines()[0] == "removed 40 rows"
            left = {place: 1 for place in site.good_places() if place < (2, 60) or place >= (3, 0)}
            assert self.places(site) == Counter(left)


class WorkersOfKeyedTable(WorkersOfTable):
    """The same of a format that has mode `merge`."""

    def sums(self, site: DeliverySite) -> Sequence[tuple[int, int, int, int]]:
        """Digit, total, most and records of each row."""
        raise NotImplementedError

    @pytest.mark.long
    def test_workers_that_die_add_each_record_up_once(self, site: DeliverySite) -> None:
        site.produce(2000, bad_every=10)
        handler = site.config()["handler"].split(":")[0] + ":totals"
        site.die_and_finish(handler=handler, sink=self.sink(site, **MERGE))
        numbers = [int(text.split("-")[1]) for text in site.produced if text.startswith("v")]
        of = {digit: [number for number in numbers if number % 10 == digit] for digit in range(10)}
        assert sorted(self.sums(site)) == [
            (digit, sum(values), max(values), len(values)) for digit, values in of.items() if values
        ]
