"""Workers that write several tables: each record once in its table, whichever dies between their commits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.pipeline.integration.sinks import test_worker_iceberg as iceberg
from tests.support.delta import DeltaFolder
from tests.support.iceberg.reader import IcebergFiles
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite
from tests.support.workers.tables import WorkersOfTable


class TestRoutes(WorkersOfTable):
    """A worker dies after the first commit of its first batch, which is the Delta table's."""

    def sink(self, site: DeliverySite, **more: Any) -> dict[str, object]:
        return iceberg.sink(site)

    def settings(self, site: DeliverySite) -> dict[str, Any]:
        odd = " or ".join(f"text like '%{digit}'" for digit in (1, 3, 5, 7, 9))
        table = {"format": "delta", "path": str(site.out)}
        return {"sink": self.sink(site), "routes": [{"when": odd, "sink": table}]}

    def places(self, site: DeliverySite) -> Counter[tuple[int, int]]:
        odd, even = DeltaFolder(site.out), IcebergFiles(site.folder / "catalog.db", iceberg.TABLE)
        assert {int(row["text"][-1]) % 2 for row in odd.rows()} == {1}
        assert {int(row["text"][-1]) % 2 for row in even.rows()} == {0}
        return odd.places() + even.places()


@pytest.mark.long
class TestNamedTables(WorkersOfTable):
    """A table for each partition."""

    def sink(self, site: DeliverySite, **more: Any) -> dict[str, object]:
        return {"format": "delta", "path": f"{site.out}/p{{partition}}", "tables": {}}

    def places(self, site: DeliverySite) -> Counter[tuple[int, int]]:
        return sum((DeltaFolder(table).places() for table in site.out.iterdir()), Counter())

    def test_the_worker_counts_the_rows_of_each_table(self, site: DeliverySite) -> None:
        site.produce(40)
        worker = site.worker(sink=self.sink(site))
        site.until_committed(why=site.why)
        tables = [f"{site.out}/p{number}" for number in range(PARTITIONS)]
        assert [worker.metric("slackwater_table_rows_total", table=table) for table in tables] == [10.0] * 4
        assert worker.terminate() == 0

    def test_rows_are_written_again_after_a_rewind(self, site: DeliverySite) -> None:
        """The names of the tables are not known, so that it is refused: tests/pipeline/unit/sinks."""
