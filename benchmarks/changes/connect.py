"""Kafka Connect with Debezium's JDBC sink on the same changes, in a process of its own.

The settings with which it was fastest here: a task for each core, batches as large as ours, folded by key
(`use.reduction.buffer`) and rewritten by PostgreSQL's driver as statements of many rows. The converter has
the schema (KIP-1054), so that the values are as small as ours. It deletes by tombstones, and does not compare
versions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from benchmarks.pipeline.processes import Watch
from slackwater.kafka.admin import KafkaAdmin
from tests.support.kafka.jars import CACHE, fetch_jars, find_java, made_once
from tests.support.processes import ServerProcess

VERSION = "3.3.1.Final"
CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
NAME = "changes"
GROUP = f"connect-{NAME}"
FIELDS = {"id": "int64", "version": "int64", "name": "string", "amount": "double", "city": "string"}
FLUSH_MS = 200
"""How often it commits: the end is seen by that."""
EVERY_S = 0.02


def jars() -> Path:
    """The folder with the jars (71 MB), fetched the first time. Raises KafkaUnavailable without Maven."""
    pom = Path(__file__).with_name("connect.xml")
    return made_once(
        CACHE / f"connect-jdbc-{VERSION}" / "libs",
        lambda target: fetch_jars(
            pom,
            target,
            f"Debezium's JDBC sink {VERSION}",
            f"debezium-connector-jdbc-{VERSION}.jar",
            f"-Ddebezium.version={VERSION}",
        ),
    )


class JdbcSink:
    """A Connect process with the sink, until the block ends.

    Args:
        folder: for its files; must be empty.
        options: the database, as libpq's parameters. Its table is ``t``.
        size: the most records of a batch.
        tasks: how many share the partitions.
    """

    def __init__(
        self, folder: Path, bootstrap: str, topic: str, size: int, options: Mapping[str, str], tasks: int
    ) -> None:
        key = {"type": "int64", "optional": False}
        value = {
            "type": "struct",
            "optional": True,
            "fields": [{"field": name, "type": kind, "optional": True} for name, kind in FIELDS.items()],
        }
        worker = {
            "bootstrap.servers": bootstrap,
            "key.converter": CONVERTER,
            "key.converter.schema.content": json.dumps(key),
            "value.converter": CONVERTER,
            "value.converter.schema.content": json.dumps(value),
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": FLUSH_MS,
            "listeners": "http://127.0.0.1:0",
            "plugin.discovery": "only_scan",
            "connector.client.config.override.policy": "All",
        }
        address = f"jdbc:postgresql://{options['host']}:{options['port']}/{options['dbname']}"
        connector = {
            "name": NAME,
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": tasks,
            "topics": topic,
            "connection.url": f"{address}?reWriteBatchedInserts=true",
            "connection.username": options["user"],
            "connection.password": "not asked for",
            "collection.name.format": "t",
            "transforms": "key",
            "transforms.key.type": "org.apache.kafka.connect.transforms.HoistField$Key",
            "transforms.key.field": "id",
            "insert.mode": "upsert",
            "delete.enabled": "true",
            "primary.key.mode": "record_key",
            "primary.key.fields": "id",
            "schema.evolution": "none",
            "use.reduction.buffer": "true",
            "batch.size": size,
            "consumer.override.max.poll.records": size,
            "consumer.override.auto.offset.reset": "earliest",
        }
        files = []
        for name, properties in (("worker", worker), ("connector", connector)):
            files.append(folder / f"{name}.properties")
            files[-1].write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self._command = [
            str(find_java()), "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", f"{jars()}/*", "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files),
        ]  # fmt: skip
        self._admin = KafkaAdmin(bootstrap_servers=bootstrap)

    def __enter__(self) -> JdbcSink:
        self._process = ServerProcess("Kafka Connect", self._command)
        self.watch = Watch(self._process.process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.stop()
        self._process.kill()
        self._admin.close()

    def await_members(self) -> float:
        """Returns when its tasks have their partitions: the time of the wall clock, in seconds."""
        while not self._stable():
            self._process.check_running()
            time.sleep(EVERY_S)
        return time.time()

    def _stable(self) -> bool:
        group = self._admin.describe_groups([GROUP]).values_ok.get(GROUP)
        return group is not None and group.state == "Stable"

    def await_committed(self, total: int) -> float:
        """Returns when so many records are committed: the time of the wall clock, in seconds. Raises
        RuntimeError where a task has failed."""
        while sum(at.offset for at in self._admin.committed_offsets(GROUP).values()) < total:
            self._process.check_running()
            if "Task is being killed" in (output := self._process.output):
                raise RuntimeError(f"a task of Kafka Connect has failed:\n{output[-3000:]}")
            time.sleep(EVERY_S)
        return time.time()
