"""Five tables of a database under load, followed by one group into Iceberg, Delta, PostgreSQL and Parquet,
while its workers are killed and replaced, and the group is rewound: each table is its source.

Length and seed: SLACKWATER_CHAOS_SECONDS=600 SLACKWATER_CHAOS_SEED=7. By itself:
``python -m pytest tests/chaos/test_change_data.py -m long -s``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, TopicPartition
from slackwater.kafka.admin import NewTopic
from slackwater_operator.local.launch import Launch
from slackwater_operator.local.run import LocalRun
from slackwater_operator.local.source import read_source
from tests.support.apicurio import ApicurioServer
from tests.support.debezium.connect import PREFIX, DebeziumConnect
from tests.support.delta import DeltaFolder
from tests.support.iceberg.reader import IcebergFiles
from tests.support.kafka import KafkaCluster
from tests.support.postgres import PostgresDatabase, PostgresServer
from tests.support.waiting import wait_until_async

SECONDS = float(os.environ.get("SLACKWATER_CHAOS_SECONDS", "60"))
CATCH_UP_S = 180.0
KINDS = {"kill", "takeover", "rewind"}
"""Of what happens to the group, each at least once."""
TABLES = {
    "customers": "id bigint primary key, name text, balance numeric(12,2)",
    "orders": "id bigint primary key, customer bigint, total numeric(12,2), at timestamptz",
    "items": '"order" bigint, line int, sku text, amount int, primary key ("order", line)',
    "stock": "sku text primary key, amount int",
    "visits": "id bigint primary key, page text",
}
KEYS = {"items": ["order", "line"], "stock": ["sku"]}
_COLUMNS = "select attname from pg_attribute where attrelid = '{}'::regclass and attnum > 0 order by attnum"


class Load:
    """Changes of all tables, by transactions of one to five statements, until it is stopped."""

    def __init__(self, source: PostgresDatabase, seed: int) -> None:
        self._source, self._rng = source, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.transactions = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with self._source.connection() as connection:
                while not self._stop.wait(0.005):
                    with connection.transaction():
                        for _ in range(self._rng.randint(1, 5)):
                            connection.execute(self._statement())
                    self.transactions += 1
        except BaseException as exc:
            self.error = exc

    def _statement(self) -> str:
        rng = self._rng
        key, other, money = rng.randrange(200), rng.randrange(200, 220), rng.randrange(10**6) / 100
        return rng.choice(
            [
                f"insert into customers values ({key}, 'ü {money}', {money}) "
                f"on conflict (id) do update set balance = {money}",
                f"delete from customers where id = {key}",
                # a change of the key: Debezium sends a delete and an insert
                f"update customers set id = {other} where id = {key} and not exists "
                f"(select from customers where id = {other})",
                f"insert into orders values ({key}, {other}, {money}, now()) "
                "on conflict (id) do update set total = excluded.total, at = excluded.at",
                f"update orders set customer = null where id = {key}",
                f"delete from orders where id = {key}",
                f"insert into items values ({key}, {rng.randrange(4)}, 's{other}', 1) "
                'on conflict ("order", line) do update set amount = items.amount + 1',
                f'delete from items where "order" = {key}',
                f"insert into stock values ('s{other}', {key}) "
                f"on conflict (sku) do update set amount = stock.amount + 1",
                f"delete from stock where sku = 's{other}'",
                f"insert into visits select coalesce(max(id), 0) + 1, '/{key}' from visits",
            ]
        )


def routes(folder: Path, target: PostgresDatabase) -> list[dict[str, Any]]:
    """A route for each table, whose fields are the columns."""
    changes = {"mode": "changes", "version": "_lsn"}
    lake = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
    sinks: dict[str, dict[str, Any]] = {
        "customers": {"format": "postgres", "table": "public.customers", "options": target.options()},
        "orders": {"format": "delta", "path": f"{folder}/orders"},
        "items": {"format": "delta", "path": f"{folder}/items"},
        "stock": {"format": "iceberg", "table": "shop.stock", "options": lake},
    }
    made = [
        {"fieldsOf": table, "sink": {**sink, **changes, "key": KEYS.get(table, ["id"])}}
        for table, sink in sinks.items()
    ]
    return [*made, {"fieldsOf": "visits", "sink": {"format": "parquet", "path": f"{folder}/visits"}}]


def group(
    bootstrap: str, registry: str, folder: Path, target: PostgresDatabase, protocol: str
) -> dict[str, Any]:
    subjects = {table: f"{PREFIX}.public.{table}-value" for table in TABLES}
    value = {
        "format": "debezium",
        "source": "lsn BIGINT",
        "registry": {"url": registry, "subjects": subjects},
    }
    return {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "shop"},
        "spec": {
            "kafka": {
                "bootstrapServers": bootstrap,
                "groupProtocol": protocol,
                "properties": {"auto.offset.reset": "earliest"},
            },
            "topics": [f"{PREFIX}.public.{table}" for table in TABLES],
            "pipeline": {
                "engine": "arrow",
                "value": value,
                "routes": routes(folder, target),
                "sink": {"format": "parquet", "path": f"{folder}/rest"},
                "deadLetterTopic": "shop.dlq",
            },
            "delivery": {"batchInterval": "500ms"},
            "replicas": 3,
            "rollout": {"strategy": "Takeover"},
        },
    }


@contextmanager
def place(folder: Path) -> Iterator[tuple[KafkaCluster, ApicurioServer, PostgresDatabase, PostgresDatabase]]:
    """A broker, a registry, the source, whose changes are sent, and an empty database."""
    connect = folder / "connect"
    connect.mkdir()
    with (
        KafkaCluster(1, {}) as kafka,
        ApicurioServer() as registry,
        PostgresServer(settings={"wal_level": "logical"}) as server,
        server.database() as source,
        server.database() as target,
    ):
        source.execute(*(f"create table {name} ({columns})" for name, columns in TABLES.items()))
        with KafkaAdmin(kafka.bootstrap) as admin:
            admin.create_topics([NewTopic(f"{PREFIX}.public.{name}", 1, 1) for name in TABLES])
            admin.create_topics([NewTopic("shop.dlq", 1, 1)])
        with DebeziumConnect(connect, kafka.bootstrap, server, source.name, registry=registry.url):
            yield kafka, registry, source, target


async def disturb(run: LocalRun, rng: random.Random, source: PostgresDatabase, file: Path) -> Counter[str]:
    """Kills and takeovers, a change of two tables in the middle, and later a rewind of all topics."""
    done: Counter[str] = Counter()
    began, changed = time.monotonic(), False
    while time.monotonic() - began < SECONDS or len(done) < len(KINDS):
        await asyncio.sleep(rng.uniform(0.5, 4))
        if not done["rewind"] and time.monotonic() - began > SECONDS * 0.7:
            done["rewind"] = 1
            starts = " ".join(f"{PREFIX}.public.{table}:start" for table in TABLES)
            resource = json.loads(file.read_text())
            resource["metadata"]["annotations"] = {"slackwater.dev/rewind": starts}
            file.write_text(json.dumps(resource))
            assert (await run.apply(read_source(file, file.parent))).outcome == "done"
        elif not changed and time.monotonic() - began > SECONDS / 2:
            changed = True
            await asyncio.to_thread(
                source.execute,
                "alter table orders add column note text",
                "alter table stock alter amount type bigint",
                "update orders set note = 'seen' where id < 50",
                f"insert into stock values ('large', {2**40})",
            )
        elif done["kill"] and (not done["takeover"] or rng.random() < 0.4):
            assert (await run.takeover()).rebalances == 0
            done["takeover"] += 1
        else:
            await run.kill(f"shop-{rng.randrange(3)}")
            done["kill"] += 1
    return done


def differences(folder: Path, source: PostgresDatabase, target: PostgresDatabase) -> dict[str, str]:
    """By table, how it differs from its source."""
    tables = {
        "orders": DeltaFolder(folder / "orders").rows(),
        "items": DeltaFolder(folder / "items").rows(),
        "stock": IcebergFiles(folder / "catalog.db", "shop.stock").rows(),
        "visits": ds.dataset(folder / "visits", format="parquet").to_table().to_pylist(),
    }
    different = {}
    for table in TABLES:
        names = [name for (name,) in source.rows(_COLUMNS.format(table))]
        has = Counter(source.rows(f"select * from {table}"))
        if table in tables:
            got = Counter(tuple(row.get(name) for name in names) for row in tables[table])
        else:
            got = Counter(target.rows(f"select {', '.join(names)} from {table}"))
        if has != got:
            missing, extra = has - got, got - has
            different[table] = (
                f"missing {missing.total()}: {[*missing][:2]}, extra {extra.total()}: {[*extra][:2]}"
            )
    return different


@pytest.mark.long
@pytest.mark.parts("kafka", "postgres", "debezium", "registry")
@pytest.mark.timeout(SECONDS + 600)
def test_each_table_is_its_source(tmp_path: Path) -> None:
    seed = int(os.environ.get("SLACKWATER_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    rng = random.Random(seed)
    protocol = rng.choice(["Classic", "Consumer"])
    print(f"SLACKWATER_CHAOS_SEED={seed}, {protocol}, {SECONDS:.0f} s")
    out = tmp_path / "out"
    out.mkdir()
    with place(tmp_path) as (kafka, registry, source, target), Load(source, seed) as load:
        file = tmp_path / "group.yaml"
        file.write_text(json.dumps(group(kafka.bootstrap, registry.url, out, target, protocol)))
        done = asyncio.run(
            follow(file, tmp_path / "work", rng, load, source, lambda: differences(out, source, target))
        )
        assert differences(out, source, target) == {}
        print(f"{load.transactions} transactions, {dict(done)}, rows: {rows_of(source)}")
        assert not list((out / "rest").glob("*.parquet")), "each row has a route"
        with KafkaConsumer("shop.dlq", bootstrap_servers=kafka.bootstrap) as dead:
            assert dead.end_offsets(dead.assignment() or [TopicPartition("shop.dlq", 0)]) == {
                TopicPartition("shop.dlq", 0): 0
            }
    assert done.keys() == KINDS


def rows_of(source: PostgresDatabase) -> dict[str, int]:
    return {table: source.rows(f"select count(*) from {table}")[0][0] for table in TABLES}


async def follow(
    file: Path, workdir: Path, rng: random.Random, load: Load, source: PostgresDatabase, differ: Any
) -> Counter[str]:
    async with Launch(file, workdir=workdir) as run:
        await run.wait_until_stable()
        done = await disturb(run, rng, source, file)
        await asyncio.to_thread(load.stop)
        assert load.error is None

        def caught_up() -> bool:
            try:
                return not differ()
            except (FileNotFoundError, AssertionError):
                return False

        await wait_until_async(caught_up, lambda: str(differ()), CATCH_UP_S, every_s=2)
        return done
