"""A site some of whose records try to break the worker: numbers, texts, names of folders, nesting and bytes
that libraries have failed on. Each is a row or a dead letter, once; all others are where they belong.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.delta import DeltaFolder
from tests.support.postgres import PostgresDatabase
from tests.support.workers.stoppable_site import StoppableSite

SCHEMA = "city STRING, d DECIMAL(10,2), big DECIMAL(38,18), f DOUBLE, i INT, at TIMESTAMP, tags ARRAY<STRING>"
FIELDS = ("city", "d", "big", "f", "i", "at", "tags")
HANDLER = f"""
FIELDS = {FIELDS!r}


def transform(table):
    import pyarrow as pa
    import pyarrow.compute as pc
    text = table["key"].cast(pa.string())
    output = table.select(["topic", "partition", "offset"]).append_column("text", text)
    value = table["value"].combine_chunks()
    for name in FIELDS:
        output = output.append_column(name, pc.struct_field(value, name))
    errors = pc.if_else(pc.starts_with(text, "bad"), pa.scalar("is bad"), pa.scalar(None, pa.string()))
    return output.append_column("_error", errors)


def in_spark(df):
    from pyspark.sql import functions as F
    text = F.col("key").cast("string")
    error = F.when(text.startswith("bad"), "is bad")
    return df.select("topic", "partition", "offset", text.alias("text"), "value.*", error.alias("_error"))
"""
HOSTILE_EVERY = 9
PLAIN = {
    "city": "Bern",
    "d": 1.25,
    "big": "0.5",
    "f": 1.5,
    "i": 1,
    "at": "2026-01-01T00:00:00Z",
    "tags": ["a"],
}
_CITIES: tuple[str | None, ...] = (
    "", None, ".", "..", "/", "a/../../b", "__HIVE_DEFAULT_PARTITION__", "a=b%2Fc", "%00", "\0", "\n", " a ",
    "a.", "CON", "Bern/", "bern", "\u202eneB", "e\u0301", "\u00e9", "\U0001f30d", "\ud800", "\uffff",
    "'\"`;--", "{}", "_hidden", ".hidden", "city=Bern", "\u6771" * 28, "\u6771" * 84, "a" * 255, "a" * 256,
    "a" * 70_000,
)  # fmt: skip
"""A folder of the table is named after each, where the sink has folders."""
_NUMBERS = (
    "1e-999999999", "1e999999999", "1e400", "-1e400", "-0", "-0.0", "1e30", "1e-19", "1e38", "12.345",
    "1e2147483648", "9" * 39, "9" * 5_000, "0." + "0" * 5_000 + "1", "1" + "0" * 40 + "e-40", "2147483648",
    "9223372036854775808", "NaN", "Infinity", "1e", "01", "0x1", '"1"', "true", "null", "[]", "{}",
)  # fmt: skip
_TIMES = (
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "10000-01-01T00:00:00Z", "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00+99:99", "2016-12-31T23:59:60Z", "1582-10-10T00:00:00Z", "-0044-03-15T00:00:00Z",
    "2026-01-01T00:00:00." + "9" * 5_000 + "Z", "",
)  # fmt: skip
_BYTES: tuple[bytes | None, ...] = (
    None, b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf{}", b"{", b"null", b"[]", b"{}{}", b"\x1f\x8b\x08", b"PAR1",
    b'{"city":"a","city":"b"}', b'{"tags":' + b"[" * 100_000, b'{"a":' * 300 + b"1" + b"}" * 300,
    b'{"a":1,"b":[' + b"[]," * 201 + b'"' + b'\\"' * 20_000, b'{"x":"' + b"y" * 900_000 + b'"}',
    b'{"tags":[' + b'"",' * 20_000 + b'""]}', b'{"i":' + b" " * 200_000 + b"1}",
)  # fmt: skip


def hostile_value(rng: random.Random) -> bytes | None:
    """A record's value."""
    field = rng.choice(("city", "city", "d", "big", "f", "i", "at", "bytes"))
    if field == "bytes":
        return rng.choice(_BYTES)
    if field == "city":
        text = json.dumps(rng.choice(_CITIES), ensure_ascii=rng.random() < 0.5)
    elif field == "at":
        text = json.dumps(rng.choice(_TIMES))
    else:
        text = rng.choice(_NUMBERS)
    fields = {name: json.dumps(value) for name, value in PLAIN.items()} | {field: text}
    document = "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"
    return document.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Pipeline:
    """What the workers run on. ``remote``: the Connect server of the engine spark."""

    engine: str
    sink: str
    remote: str = ""

    @classmethod
    def named(cls, name: str, remote: str = "") -> Pipeline:
        """By ``ENGINE/SINK``."""
        engine, _, sink = name.partition("/")
        assert engine in ("arrow", "spark"), name
        assert sink in ("parquet", "delta", "postgres"), name
        return cls(engine, sink, remote)


class HostileSite(StoppableSite):
    """Each :data:`HOSTILE_EVERY`-th record has a value of :func:`hostile_value`. ``database``: of the sink
    postgres. ``members``: further arguments of :class:`StoppableSite`."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        pipeline: Pipeline,
        rng: random.Random,
        *,
        database: PostgresDatabase | None = None,
        **members: Any,
    ) -> None:
        super().__init__(bootstrap, folder, handler=HANDLER, **members)
        self._pipeline, self._rng, self._database = pipeline, rng, database

    def kind(self, number: int) -> str:
        """Of the record with this number."""
        return "either" if number % HOSTILE_EVERY == 0 else super().kind(number)

    def value(self, text: str) -> bytes | None:
        """Of the record with this text as its key."""
        return hostile_value(self._rng) if text.startswith("either") else json.dumps(PLAIN).encode()

    def config(self, **changes: Any) -> dict[str, Any]:
        """A worker's configuration."""
        sink: dict[str, Any] = {"format": self._pipeline.sink}
        if self._database is not None:
            sink |= {"table": "public.cities", "options": self._database.options()}
        else:
            sink |= {"path": str(self.out), "partitionBy": ["city"]}
        spark = self._pipeline.engine == "spark"
        return super().config(
            engine=self._pipeline.engine,
            handler="site_handler:in_spark" if spark else "site_handler:transform",
            value={"format": "json", "schema": SCHEMA},
            sink=sink,
            **({"spark": {"remote": self._pipeline.remote}} if spark else {}),
            **changes,
        )

    def stored_rows(self) -> list[dict[str, Any]]:
        """All rows, as something else than the sink reads them."""
        columns = ["text", "partition", "offset"]
        if self._database is not None:
            if self._database.rows("select to_regclass('public.cities')") == [(None,)]:
                return []
            found = self._database.rows('select text, "partition", "offset" from public.cities')
            return [dict(zip(columns, row, strict=True), file="public.cities") for row in found]
        if self._pipeline.sink == "delta":
            return [{**row, "file": "the table"} for row in DeltaFolder(self.out).rows()]
        files = [path for path in self.out.rglob("*.parquet") if ".slackwater" not in path.parts]
        return [
            {**row, "file": str(path.relative_to(self.out))}
            for path in files
            for row in pq.ParquetFile(path).read(columns=columns).to_pylist()
        ]
