"""The tables that are changed: how each is made, what a worker is told of it, and what is in it at last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from benchmarks.changes.load import COLUMNS, seeds


class Target(Protocol):
    """A table with rows. ``sink``: where, for a worker."""

    sink: dict[str, Any]

    def content(self) -> pa.Table:
        """Its columns id and version."""


class DeltaTarget:
    """Written by deltalake."""

    def __init__(self, folder: Path, rows: int) -> None:
        from deltalake import write_deltalake

        self._path = str(folder / "delta")
        self.sink = {"format": "delta", "path": self._path}
        for part in seeds(rows):
            write_deltalake(self._path, part, mode="append")

    def content(self) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(self._path).to_pyarrow_table(columns=["id", "version"])


class IcebergTarget:
    """Written by pyiceberg, in a SQL catalog."""

    def __init__(self, folder: Path, rows: int) -> None:
        from pyiceberg.catalog import load_catalog

        options = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        self.sink = {"format": "iceberg", "table": "lake.t", "options": {"type": "sql", **options}}
        self._catalog = load_catalog("default", type="sql", **options)
        self._catalog.create_namespace("lake")
        for part in seeds(rows):
            self._catalog.create_table_if_not_exists("lake.t", part.schema).append(part)

    def content(self) -> pa.Table:
        return self._catalog.load_table("lake.t").scan(selected_fields=("id", "version")).to_arrow()


class PostgresTarget:
    """Written by COPY."""

    def __init__(self, database: Any, rows: int) -> None:
        self._database = database
        self.sink = {"format": "postgres", "table": "public.t", "options": database.options()}
        database.execute(
            "create table t (id bigint primary key, version bigint, name text, amount double precision, "
            'city text, topic text, "partition" int, "offset" bigint)'
        )
        with database.connection() as connection:
            for part in seeds(rows):
                with connection.cursor().copy(f"copy t ({', '.join(COLUMNS)}) from stdin") as copy:
                    for values in zip(*(part[name].to_pylist() for name in COLUMNS), strict=True):
                        copy.write_row(values)
            connection.commit()
        database.execute("analyze t")

    def content(self) -> pa.Table:
        ids, versions = zip(*self._database.rows("select id, version from t"), strict=True)
        return pa.table({"id": ids, "version": versions})


@contextmanager
def target(name: str, folder: Path, rows: int) -> Iterator[Target]:
    """The table of the way ``name``, until the block ends."""
    if name in ("postgres", "connect-jdbc"):
        from tests.support.postgres import PostgresServer

        with PostgresServer() as server, server.database() as database:
            yield PostgresTarget(database, rows)
    else:
        yield IcebergTarget(folder, rows) if name == "iceberg" else DeltaTarget(folder, rows)
