"""One record a batch in a warm local Spark session: the engine, and the smallest PySpark programs beside it.

They take turns, so that they can be compared on a machine that others use. The first third of the rounds
warms Java up and is not counted. Prints milliseconds a batch: the least, the 10th percentile and the median.

    python -m benchmarks.pipeline.spark_record --conf spark.sql.execution.arrow.localRelationThreshold=0
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

BATCHES = 20
"""Of one way, before the next has its turn."""


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For ``mapInArrow``."""
    return batches


def main(arguments: list[str] | None = None) -> int:
    """Runs it; without arguments with the defaults. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.spark_record")
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of the session")
    options = parser.parse_args(arguments or [])

    import pyarrow as pa

    from benchmarks.pipeline.load import values
    from slackwater.kafka.records import ARROW_SCHEMA
    from slackwater.pipeline.engines.spark import SparkEngine

    engine = SparkEngine(
        "benchmarks.pipeline.handlers:spark", conf=dict(pair.split("=", 1) for pair in options.conf)
    )
    engine.start()
    engine.warm_up()
    record = dict.fromkeys(ARROW_SCHEMA.names) | {"topic": "t", "partition": 0, "offset": 0}
    table = pa.Table.from_pylist([record | {"value": values(1)[0]}], schema=ARROW_SCHEMA)
    spark = engine.session

    def map_in_arrow() -> object:
        frame = spark.createDataFrame(table)
        return frame.mapInArrow(identity, frame.schema).toArrow()

    ways: dict[str, Callable[[], object]] = {
        "the engine, from_json": lambda: engine.transform(table),
        "createDataFrame, toArrow": lambda: spark.createDataFrame(table).toArrow(),
        "and mapInArrow(identity)": map_in_arrow,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name, run in ways.items():
            for _ in range(BATCHES):
                began = time.perf_counter()
                run()
                if number >= options.rounds // 3:
                    times[name].append((time.perf_counter() - began) * 1000)
    engine.close()
    for name, taken in times.items():
        taken.sort()
        least, tenth, median = taken[0], taken[len(taken) // 10], taken[len(taken) // 2]
        print(f"{name:<26}{least:>8.1f}{tenth:>8.1f}{median:>8.1f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
