"""A topic on the dev broker, a ConsumerGroup for it with the engine `arrow`, and what became of it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pyarrow.dataset as ds
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.peers.librdkafka import write_topic

PARTITIONS = 4
HANDLERS = """\
import time
import pyarrow as pa


def keep(table):
    return table


def fails(table):
    if table.num_rows:
        raise ValueError("cannot take it")
    return table


def hangs(table):
    if table.num_rows:
        time.sleep(600)
    return table


def no_offset(table):
    return table.drop_columns(["offset"])


def no_table(table):
    return 42


def no_offset_later(table):
    return table.drop_columns(["offset"]) if table.num_rows else table


def no_offset_in_spark(df):
    return df.drop("offset")


def exits(table):
    raise SystemExit(0)


a_number = 42
"""
BROKEN = "from collections import NoSuchThing\n"
RESOURCE = """\
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {{name: {name}}}
spec:
  kafka:
    bootstrapServers: {bootstrap}
    properties: {{session.timeout.ms: "10000", heartbeat.interval.ms: "500", max.poll.records: "50"}}
  topics: [{name}]
  pipeline:
    handler: handlers:keep
    engine: arrow
    sink: {{path: {out}}}
  replicas: 1
"""


class Site:
    """`file` is the resource, `out` its sink; the topic has :data:`PARTITIONS` partitions."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self.name = f"e2e-{uuid4().hex[:8]}"
        self.file = folder / "group.yaml"
        self.out = folder / "out"
        self.work = folder / "work"
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        (folder / "handlers.py").write_text(HANDLERS)
        (folder / "broken.py").write_text(BROKEN)
        self.file.write_text(RESOURCE.format(name=self.name, bootstrap=bootstrap, out=self.out))

    def change(self, old: str, new: str) -> None:
        """Replaces a text of the resource, which must be there once."""
        text = self.file.read_text()
        assert text.count(old) == 1, (old, text)
        self.file.write_text(text.replace(old, new))

    def arguments(self, *more: str | Path) -> list[str | Path]:
        """`slackwater local run` of the resource."""
        return ["local", "run", "-f", self.file, "--workdir", self.work, *more]

    def make_topic(self) -> None:
        """Makes the topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(self.name, PARTITIONS, 1)]).values():
            made.result(60)

    def produce(self, sizes: list[int]) -> None:
        """Produces a record of random bytes for each of ``sizes``, in turn to each partition."""
        rng = random.Random(len(sizes))
        records = [(number % PARTITIONS, rng.randbytes(size)) for number, size in enumerate(sizes)]
        write_topic(self.bootstrap, self.name, records)
        for partition, _ in records:
            self.ends[partition] += 1

    def committed(self) -> dict[int, int]:
        """The group's committed offset of each partition, 0 where there is none, read by librdkafka."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        try:
            asked = [confluent_kafka.TopicPartition(self.name, p) for p in range(PARTITIONS)]
            return {tp.partition: max(0, tp.offset) for tp in consumer.committed(asked, 60)}
        finally:
            consumer.close()

    def rows(self) -> dict[int, Counter[int]]:
        """How often each offset of each partition is in the Parquet files that count as done."""
        found: dict[int, Counter[int]] = {p: Counter() for p in range(PARTITIONS)}
        if not any(self.out.glob("*.parquet")):
            return found
        table = ds.dataset(self.out, format="parquet").to_table(columns=["partition", "offset"])
        for partition, offset in zip(*(table.column(n).to_pylist() for n in table.column_names), strict=True):
            found[partition][offset] += 1
        return found

    def check_nothing_done(self) -> None:
        """Nothing was written that counts, nothing half-written is left, and no offset has moved."""
        assert sum(self.committed().values()) == 0
        files = [path for path in self.out.rglob("*") if path.is_file()] if self.out.is_dir() else []
        assert files == []

    def check_consistent(self) -> None:
        """What is committed is in the files, each record once."""
        for partition, offset in self.committed().items():
            rows = self.rows()[partition]
            assert [o for o in range(offset) if rows[o] != 1] == []

    def check_complete(self) -> None:
        """Every record is in the files once, and committed."""
        assert self.committed() == self.ends
        assert self.rows() == {p: Counter(range(end)) for p, end in self.ends.items()}
