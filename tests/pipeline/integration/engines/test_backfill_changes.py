"""A topic of changes into a new table: the live group from now on, and a backfill of what was before."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.pipeline.integration.engines import backfill_host as host
from tests.pipeline.integration.engines.spark_process import SparkProcess
from tests.support.devbroker import DevBroker
from tests.support.workers.group_site import GroupSite

pytestmark = [pytest.mark.parts("spark", "spark-delta", "spark-kafka"), pytest.mark.long]

PARTITIONS, KEYS = 2, 20
HANDLER = """
import json


def change(records):
    for record in records:
        change = json.loads(record.value)
        source, row = change["source"], change["after"] or change["before"]
        op = "delete" if change["op"] == "d" else "upsert"
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        yield {**place, "id": row["id"], "name": row["name"], "lsn": source["lsn"], "_op": op}


def in_spark(df):
    from pyspark.sql import functions as F

    row = "struct<id: long, name: string>"
    schema = f"op string, before {row}, after {row}, source struct<lsn: long>"
    change = F.from_json(F.col("value").cast("string"), schema)
    row = F.coalesce(change.after, change.before)
    op = F.when(change.op == "d", "delete")
    return df.select(
        "topic", "partition", "offset", row["id"].alias("id"), row["name"].alias("name"),
        change.source.lsn.alias("lsn"), op.alias("_op"),
    )
"""


class Source:
    """A database's table. Its changes go to the topic as Debezium writes them, a key to either partition: the
    order of partitions is none."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self._lsn, self._rng = 0, random.Random(7)

    def changes(self, count: int) -> list[tuple[int, bytes]]:
        return [
            self._change(self._rng.randrange(KEYS), is_delete=self._rng.random() < 0.3) for _ in range(count)
        ]

    def delete_all(self) -> list[tuple[int, bytes]]:
        return [self._change(key, is_delete=True) for key in list(self.rows)]

    def _change(self, key: int, *, is_delete: bool) -> tuple[int, bytes]:
        self._lsn += 1
        before = {"id": key, "name": self.rows.pop(key, "")}
        after = None if is_delete else {"id": key, "name": f"name {self._lsn}"}
        if after:
            self.rows[key] = after["name"]
        change = {
            "op": "d" if is_delete else "u",
            "before": before,
            "after": after,
            "source": {"lsn": self._lsn},
        }
        return self._rng.randrange(PARTITIONS), json.dumps(change).encode()


@pytest.mark.parametrize("merges", ["deltalake", "spark"])
def test_a_backfill_beside_the_live_group_leaves_the_newest_of_each_key(
    devbroker: DevBroker, spark_with_jars: SparkProcess, tmp_path: Path, merges: str
) -> None:
    """``merges``: what writes the backfill's rows."""
    spark = spark_with_jars
    source = Source()
    with GroupSite(devbroker.bootstrap, tmp_path, handler=HANDLER, partitions=PARTITIONS) as site:
        sink = {"format": "delta", "path": str(site.out), "mode": "changes", "key": ["id"], "version": "lsn"}
        config = site.config(
            handler="site_handler:change", sink=sink, properties={"auto.offset.reset": "latest"}
        )
        site.write(source.changes(300))
        begun = dict(site.ends)
        site.start_worker("w-0", config)
        site.until_committed(begun, why=site.why)
        # Its deletes come before what they delete, and the key must not come back.
        site.write(source.delete_all())
        site.write(source.changes(30))
        site.until_committed(why=site.why)

        past = config
        if merges == "spark":
            by_spark = {**sink, "format": "spark", "sparkFormat": "delta", "options": {"path": str(site.out)}}
            del by_spark["path"]
            past = {**config, "engine": "spark", "handler": "site_handler:in_spark", "sink": by_spark}

        def run(**options: Any) -> list[str]:
            return spark.run(host.run_with, past, ["earliest"], {"batch_rows": 100, **options})

        if merges == "deltalake":
            assert "older records would bring back rows that newer ones have deleted" in run()[-1]
        assert run(allow_overlap=True, end_after="refresh", after=2)[-1].startswith("EndedHere")
        site.write(source.changes(30))
        assert run(allow_overlap=True)[-1].endswith(" 0 letters")
        site.write(source.changes(30))
        site.until_committed(why=site.why)
        rows = DeltaTable(site.out).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["name"] for row in rows} == source.rows
    assert len(rows) == len(source.rows)
