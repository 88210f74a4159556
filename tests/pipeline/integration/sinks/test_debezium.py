"""Tables that follow a PostgreSQL database through Debezium's own connector."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_engine, make_sink
from slackwater.runtime.config.worker_config import WorkerConfig, parse
from slackwater.runtime.handler_output import checked_output
from slackwater.runtime.interfaces import Range
from tests.support.apicurio import ApicurioServer
from tests.support.debezium.connect import PREFIX, DebeziumConnect
from tests.support.devbroker import DevBroker
from tests.support.postgres import PostgresDatabase, PostgresServer
from tests.support.waiting import HANG_S, wait_until

pytestmark = [pytest.mark.parts("postgres", "debezium"), pytest.mark.long]
TOPIC = f"{PREFIX}.public.items"
COLUMNS = {
    "id": ("bigint primary key", "BIGINT NOT NULL"),
    "name": ("text not null", "STRING NOT NULL"),
    "price": ("numeric(12,2)", "DECIMAL(12,2)"),
    "fee": ("money", "DECIMAL(12,2)"),
    "born": ("date", "DATE"),
    "seen": ("timestamp", "TIMESTAMP_NTZ"),
    "at": ("timestamptz", "TIMESTAMP"),
    "j": ("jsonb", "STRING"),
    "u": ("uuid", "STRING"),
    "b": ("bytea", "BINARY"),
    "ok": ("boolean", "BOOLEAN"),
    "r": ("real", "FLOAT"),
    "d": ("double precision", "DOUBLE"),
    "s": ("smallint", "SMALLINT"),
    "tags": ("text[]", "ARRAY<STRING>"),
}
WITH_SCHEMAS = {"big": ("numeric", "DECIMAL(30,9)"), "short": ("timestamp(3)", "TIMESTAMP_NTZ")}
"""Columns whose encoding only Connect's schema tells beside the others."""
END = 1_000_000
"""The id of the row that is written last."""


def row(rng: random.Random, key: int, columns: dict[str, Any]) -> dict[str, str]:
    """A row as SQL."""
    day = f"{rng.randrange(1900, 2100)}-0{rng.randrange(1, 10)}-1{rng.randrange(10)}"
    time = f"{day} 1{rng.randrange(10)}:00:{rng.randrange(10, 60)}"
    values = {
        "id": str(key),
        "name": f"'{rng.choice(['Ann', 'ü€', ''])} {rng.random()}'",
        "price": str(rng.randrange(-(10**9), 10**9) / 100),
        "fee": f"'{rng.randrange(10**6) / 100}'",
        "born": f"'{day}'",
        "seen": f"'{time}.{rng.randrange(10**6):06}'",
        "at": f"'{time}.{rng.randrange(10**6):06}+0{rng.randrange(10)}'",
        "j": f"""'{{"a": [{rng.random()}]}}'""",
        "u": f"'00000000-0000-0000-0000-{rng.randrange(10**12):012}'",
        "b": rf"'\x{rng.randrange(16**6):06x}'",
        "ok": rng.choice(["true", "false"]),
        "r": "1.5",
        "d": str(rng.random()),
        "s": str(rng.randrange(-100, 100)),
        "tags": "'{a,NULL,\"b c\"}'",
        "big": f"{rng.randrange(10**18)}.123456789",
        "short": f"'{time}.{rng.randrange(1000):03}'",
    }
    nullable = [name for name in columns if name not in ("id", "name")]
    return {name: values[name] for name in columns} | {rng.choice(nullable): "null"}


def write(rng: random.Random, source: PostgresDatabase, columns: dict[str, Any]) -> None:
    """Inserts, updates, deletes and changes of keys, each in a transaction of its own or several in one."""
    statements = []
    for _ in range(150):
        key = rng.randrange(30)
        made = row(rng, key, columns)
        names, values = ", ".join(f'"{name}"' for name in made), ", ".join(made.values())
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in made)
        upsert = f"insert into items ({names}) values ({values}) on conflict (id) do update set {changes}"
        moved = f"update items set id = {100 + rng.randrange(10)} where id = {key} and not exists "
        moved += "(select from items where id between 100 and 109)"
        statements.append(rng.choice([upsert, upsert, upsert, f"delete from items where id = {key}", moved]))
    for start in range(0, len(statements), 10):
        source.execute("; ".join(statements[start : start + 10]))


class Follower:
    """Writes what ``consumer`` reads, as a worker with ``config`` does."""

    def __init__(self, consumer: KafkaConsumer, config: WorkerConfig) -> None:
        self._consumer, self._sink = consumer, make_sink(config)
        self.engine: Any = make_engine(config)
        self.engine.start()
        self._mark: int | None = None
        self._tp = TopicPartition(TOPIC, 0)
        consumer.assign([self._tp])
        consumer.seek_to_beginning()
        self._sink.marks([self._tp])

    def until(self, key: int) -> None:
        """Until the row with this key has come."""
        wait_until(lambda: key in self._batch(), "the last row", HANG_S)

    def _batch(self) -> list[int]:
        table = self._consumer.poll_arrow(timeout_ms=500)
        if not table.num_rows:
            return []
        output = checked_output(self.engine.transform(table), {self._tp: table.to_batches()[0]})
        assert not output.dead
        end = table["offset"][-1].as_py() + 1
        self._sink.stage(output.rows, {self._tp: Range("id", self._mark or 0, end, self._mark)}).publish()
        self._mark = end
        return list(output.rows["id"].to_pylist())


def rows_of(database: PostgresDatabase, columns: dict[str, Any]) -> list[tuple[Any, ...]]:
    texts = [f'"{name}"::numeric' if name == "fee" else f'"{name}"' for name in columns]
    casts = {'"j"': '"j"::jsonb', '"u"': '"u"::text', '"big"': '"big"::numeric'}
    texts = [casts.get(name, name) for name in texts]
    return database.rows(f"select {', '.join(texts)} from items order by id")


@contextmanager
def followed(
    folder: Path, columns: dict[str, Any], value: dict[str, Any], key: dict[str, Any], **converter: Any
) -> Iterator[tuple[PostgresDatabase, PostgresDatabase, Follower]]:
    """A source with rows, a target, and what follows the one in the other."""
    with (
        PostgresServer(settings={"wal_level": "logical"}) as server,
        DevBroker() as broker,
        server.database() as source,
        server.database() as target,
    ):
        declared = ", ".join(f'"{name}" {kinds[0]}' for name, kinds in columns.items())
        source.execute(f"create table items ({declared})")
        write(random.Random(3), source, columns)
        with DebeziumConnect(folder, broker.bootstrap, server, source.name, **converter):
            with KafkaAdmin(broker.bootstrap) as admin:
                wait_until(lambda: TOPIC in admin.list_topics(), "the topic", HANG_S, every_s=0.2)
            config = parse(
                {
                    "groupId": "g", "topics": [TOPIC], "bootstrapServers": broker.bootstrap,
                    "engine": "arrow", "deadLetterTopic": "dlq",
                    "value": {"format": "debezium", "source": "lsn BIGINT", **value},
                    "key": {"format": "debezium", **key},
                    "sink": {
                        "format": "postgres", "table": "public.items", "mode": "changes", "key": ["id"],
                        "version": "_lsn", "options": target.options(),
                    },
                }
            )  # fmt: skip
            with KafkaConsumer(bootstrap_servers=broker.bootstrap, max_poll_records=50) as consumer:
                follower = Follower(consumer, config)
                yield source, target, follower
                follower.engine.close()


@pytest.mark.parametrize("schemas", [True, False], ids=["with schemas", "without"])
def test_a_table_is_its_source(tmp_path: Path, schemas: bool) -> None:
    columns = COLUMNS | (WITH_SCHEMAS if schemas else {})
    value = {"schema": ", ".join(f"{name} {kinds[1]}" for name, kinds in columns.items())}
    value |= {} if schemas else {"timestampUnit": "microseconds"}
    key = {"schema": "id BIGINT NOT NULL"}
    with followed(tmp_path, columns, value, key, schemas=schemas) as (source, target, follower):
        write(random.Random(4), source, columns)
        source.execute(f"insert into items (id, name) values ({END}, 'last')")
        follower.until(END)
        assert rows_of(target, columns) == rows_of(source, columns)
        assert len(rows_of(target, columns)) > 10


@pytest.mark.parts("registry")
def test_a_table_gets_the_columns_of_its_source_by_avro(tmp_path: Path) -> None:
    """Also those that come, go and change while it is followed: no schema is declared."""
    columns = COLUMNS | WITH_SCHEMAS
    with ApicurioServer() as registry:
        value, key = (
            {"registry": {"url": registry.url, "subject": f"{TOPIC}-{part}"}} for part in ("value", "key")
        )
        with followed(tmp_path, columns, value, key, registry=registry.url) as (source, target, follower):
            source.execute(f"insert into items (id, name) values ({END}, 'last')")
            follower.until(END)
            assert rows_of(target, columns) == rows_of(source, columns)
            source.execute(
                "alter table items add column note text, drop column name, drop column fee, "
                "alter column s type bigint"
            )
            left = {name: kinds for name, kinds in columns.items() if name not in ("name", "fee")}
            write(random.Random(4), source, left)
            source.execute(
                f"update items set note = 'new', s = {2**40} where id < 10",
                f"insert into items (id, note) values ({END + 1}, 'last')",
            )
            follower.until(END + 1)
            left["note"] = ("text", "STRING")
            assert rows_of(target, left) == rows_of(source, left)
            assert target.rows("select count(*) from items where note = 'new'")[0][0] > 3
            assert target.rows(f"select name from items where id = {END + 1}") == [(None,)]
