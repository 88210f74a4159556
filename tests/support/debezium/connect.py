"""Debezium's connector for PostgreSQL in Kafka Connect, as a process, for tests."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from tests.support.kafka.jars import CACHE, QUICK_JAVA, fetch_jars, find_java, made_once
from tests.support.postgres import PostgresServer
from tests.support.processes import ServerProcess

VERSION = "3.6.0.Final"
PREFIX = "shop"
"""How the names of the topics begin: ``shop.SCHEMA.TABLE``."""


def jars() -> Path:
    """The folder with the jars (60 MB), fetched the first time. Raises KafkaUnavailable without Maven."""
    pom = Path(__file__).with_name("pom.xml")
    return made_once(
        CACHE / f"debezium-{VERSION}-avro" / "libs",
        lambda target: fetch_jars(
            pom,
            target,
            f"Debezium {VERSION}",
            f"debezium-connector-postgres-{VERSION}.jar",
            f"-Ddebezium.version={VERSION}",
        ),
    )


class DebeziumConnect:
    """Sends the changes of ``database`` until the block ends, first the rows that are there.

    Args:
        folder: for its files; must be empty.
        bootstrap: the brokers.
        server: with ``wal_level`` logical.
        database: its name.
        schemas: whether each key and value has Connect's schema around it.
        registry: the address of Apicurio's API for Confluent's clients: keys and values are Avro. Empty: they
            are JSON.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        server: PostgresServer,
        database: str,
        *,
        schemas: bool = False,
        registry: str = "",
    ) -> None:
        converter = {
            "": "org.apache.kafka.connect.json.JsonConverter",
            "schemas.enable": str(schemas).lower(),
        }
        if registry:
            converter = {
                "": "io.apicurio.registry.utils.converter.AvroConverter",
                "apicurio.registry.url": registry.replace("ccompat/v7", "registry/v2"),
                "apicurio.registry.auto-register": "true",
                "apicurio.registry.as-confluent": "true",
                "apicurio.registry.use-id": "contentId",
                "apicurio.registry.headers.enabled": "false",
                "apicurio.registry.artifact-resolver-strategy": (
                    "io.apicurio.registry.serde.strategy.TopicIdStrategy"
                ),
            }
        worker = {
            "bootstrap.servers": bootstrap,
            **{
                f"{part}.converter.{name}".rstrip("."): value
                for part in ("key", "value")
                for name, value in converter.items()
            },
            "offset.storage.file.filename": folder / "offsets",
            "listeners": "http://127.0.0.1:0",
            "plugin.discovery": "only_scan",
        }
        connector = {
            "name": PREFIX,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "127.0.0.1",
            "database.port": server.port,
            "database.user": "postgres",
            "database.password": "not asked for",
            "database.dbname": database,
            "topic.prefix": PREFIX,
            "plugin.name": "pgoutput",
            "topic.creation.default.partitions": 1,
            "topic.creation.default.replication.factor": 1,
        }
        files = []
        for name, properties in (("worker", worker), ("connector", connector)):
            files.append(folder / f"{name}.properties")
            files[-1].write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self._command = [
            str(find_java()), "-Xmx256m", *QUICK_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", f"{jars()}/*", "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files),
        ]  # fmt: skip

    def __enter__(self) -> DebeziumConnect:
        self._process = ServerProcess("Debezium", self._command)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
