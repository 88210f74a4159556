"""A ConsumerGroup's files, a topic, a producer and a check of the output, for the tests of LocalRun."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import pyarrow.dataset as ds

from slackwater.kafka import KafkaAdmin, KafkaProducer
from slackwater.kafka.admin import NewTopic

PARTITIONS = 12
HANDLER = """\
import pathlib
import time


def keep(table):
    return table


def fail(table):
    if table.num_rows:
        raise ValueError("this handler always fails")
    return table


def hang(table):
    if table.num_rows:
        pathlib.Path(__file__).with_name("hangs").touch()
        time.sleep(600)
    return table
"""


def write_group(
    folder: Path,
    bootstrap: str,
    *,
    handler: str = "passing:keep",
    replicas: int = 3,
    strategy: str = "Restart",
    preflight: bool = True,
) -> Path:
    """Writes a ConsumerGroup `NAME` with topic `NAME`, both new, and its handler; gives the YAML's path."""
    name = f"run-{uuid4().hex[:8]}"
    (folder / "passing.py").write_text(HANDLER, encoding="utf-8")
    path = folder / "group.yaml"
    path.write_text(
        f"""\
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {{name: {name}}}
spec:
  kafka:
    bootstrapServers: {bootstrap}
    properties: {{session.timeout.ms: "60000", heartbeat.interval.ms: "500"}}
  topics: [{name}]
  pipeline:
    handler: {handler}
    engine: arrow
    sink: {{path: {folder / "out"}}}
  replicas: {replicas}
  rollout: {{strategy: {strategy}, preflight: {{enabled: {str(preflight).lower()}}}}}
""",
        encoding="utf-8",
    )
    return path


def create_topic(bootstrap: str, name: str) -> None:
    """Makes a topic and waits until it can be used."""
    with KafkaAdmin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)]).unwrap()
        admin.wait_for_topic(name, PARTITIONS)


class Feed:
    """Produces without end in a thread; leaving the context ends it. `count`: how many were produced."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.count = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _produce(self) -> None:
        with KafkaProducer(bootstrap_servers=self._bootstrap) as producer:
            while not self._end.wait(0.2):
                for _ in range(4 * PARTITIONS):
                    producer.send(self._topic, value=b"x" * 64, partition=self.count % PARTITIONS)
                    self.count += 1
                producer.flush()


def rows_by_partition(folder: Path) -> dict[int, Counter[int]]:
    """How often each offset of each partition is in the output."""
    table = ds.dataset(folder, format="parquet").to_table(columns=["partition", "offset"])
    rows_by_partition: dict[int, Counter[int]] = {}
    for partition, offset in zip(
        table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True
    ):
        rows_by_partition.setdefault(partition, Counter())[offset] += 1
    return rows_by_partition
