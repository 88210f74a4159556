"""``format("slackwater")`` beside ``format("kafka")``: the same queries, in one Spark session, in turns.

A real Apache Kafka on this machine holds JSON records of about 170 bytes (columns of real flights) in six
partitions, lz4. Six queries read them all:

- all columns, dropped (Spark's sink `noop`): what reading alone costs;
- the value only, dropped;
- JSON to Parquet by `from_json` in both;
- JSON to Parquet, decoded by `value.schema` in place of `from_json`;
- streams (`trigger(availableNow=True)`): all columns, dropped; and JSON to Parquet, as the line before.

The rows of both are compared first (`exceptAll` both ways on a sample of the offsets). Prints thousands of
records a second, the best of the rounds, their ratio, and CPU seconds a million records of Spark's processes,
without the broker's.

    python -m benchmarks.datasource --records 2000000 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.pipeline.processes import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[1]
OURS, PEER = "slackwater", "kafka"
COMPARED = 20_000
"""Records of each partition whose rows are compared."""


@dataclass(frozen=True)
class Case:
    """A query of both. ``goal``: the least ratio that is aimed at. ``columns``: those that it needs."""

    name: str
    goal: float
    columns: str = ""
    json: bool = False
    decoded: bool = False
    streaming: bool = False


CASES = (
    Case("all columns", 1.5),
    Case("value only", 2.0, columns="value"),
    Case("JSON to Parquet, from_json in both", 1.1, columns="value", json=True),
    Case("JSON to Parquet, value.schema", 1.8, columns="value", json=True, decoded=True),
    Case("stream, all columns", 1.4, streaming=True),
    Case("stream, JSON to Parquet, value.schema", 1.4, "value", json=True, decoded=True, streaming=True),
)


@dataclass(frozen=True)
class Timing:
    """Of one run."""

    seconds: float
    cpu_s: float


class Queries:
    """Runs the cases in one session."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._topic, self._folder = spark, bootstrap, topic, folder
        self._numbers = count()

    def frame(self, case: Case, source: str, **more: str) -> DataFrame:
        """What the case reads from ``source``."""
        from pyspark.sql.functions import col, from_json

        from benchmarks.pipeline.handlers import COLUMNS

        reader = self._spark.readStream if case.streaming else self._spark.read
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
            **more,
        }
        decoded = case.decoded and source == OURS
        if source == OURS and case.columns:
            options["columns"] = case.columns
        if decoded:
            options |= {"value.format": "json", "value.schema": COLUMNS}
        frame = reader.format(source).options(**options).load()
        if not case.json:
            return frame.select(case.columns) if case.columns else frame
        if decoded:
            return frame.select("value.*")
        return frame.select(from_json(col("value").cast("string"), COLUMNS).alias("v")).select("v.*")

    def run(self, case: Case, source: str) -> str:
        """Runs the case once; gives the folder where rows are that are not dropped."""
        frame, folder = self.frame(case, source), str(self._folder / f"out-{next(self._numbers)}")
        sink = "parquet" if case.json else "noop"
        if not case.streaming:
            writer = frame.write.format(sink).mode("overwrite")
            writer.save(folder) if case.json else writer.save()
        else:
            stream = frame.writeStream.format(sink).trigger(availableNow=True)
            stream = stream.option("checkpointLocation", f"{folder}-checkpoint")
            running = stream.start(folder) if case.json else stream.start()
            running.awaitTermination()
        return folder

    def count(self, folder: str) -> int:
        """The rows in ``folder``."""
        return self._spark.read.parquet(folder).count()

    def differing_rows(self) -> int:
        """How many of the first rows of each partition one source has and the other has not."""
        case = Case("", 0)
        ours, peers = (
            self.frame(case, source, includeHeaders="true").where(f"offset < {COMPARED}")
            for source in (OURS, PEER)
        )
        if ours.schema != peers.schema:
            raise RuntimeError(f"{ours.schema} is not {peers.schema}")
        return int(ours.exceptAll(peers).count() + peers.exceptAll(ours).count())


def measure(bootstrap: str, topic: str, total: int, rounds: int, chosen: str) -> None:
    """Runs the cases in a session of this process, and prints the table."""
    from benchmarks.pipeline.streaming import session
    from slackwater.spark import register

    spark = session()
    register(spark)
    watch = Watch(os.getpid())
    with tempfile.TemporaryDirectory(prefix="bench-datasource-") as folder:
        queries = Queries(spark, bootstrap, topic, Path(folder))
        print(f"rows that differ: {queries.differing_rows()}", flush=True)
        print(f"{'':<40}{PEER:>12}{OURS:>12}{'ratio':>8}{'goal':>7}   CPU s/M", flush=True)
        for case in CASES:
            if chosen not in case.name:
                continue
            best: dict[str, Timing] = {}
            for number in range(rounds + 1):
                for source in (PEER, OURS):
                    timing = _timed(queries, case, source, watch, total)
                    # The first round warms up: Java compiles what is run often.
                    if number and (source not in best or timing.seconds < best[source].seconds):
                        best[source] = timing
            peer, ours = best[PEER], best[OURS]
            print(
                f"{case.name:<40}{total / peer.seconds / 1e3:>11.0f}k{total / ours.seconds / 1e3:>11.0f}k"
                f"{peer.seconds / ours.seconds:>7.2f}x{case.goal:>6.1f}x"
                f"{peer.cpu_s / total * 1e6:>8.1f}{ours.cpu_s / total * 1e6:>6.1f}",
                flush=True,
            )
    watch.stop()


def _timed(queries: Queries, case: Case, source: str, watch: Watch, total: int) -> Timing:
    began = time.time()
    folder = queries.run(case, source)
    ended = time.time()
    if case.json and (rows := queries.count(folder)) != total:
        raise RuntimeError(f"{case.name}: {source} has written {rows} rows, not {total}")
    time.sleep(0.3)  # the next sample of the CPU time
    return Timing(ended - began, watch.cpu_s(began, ended))


def main(arguments: list[str] | None = None) -> int:
    """Runs it; without arguments with the defaults. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasource")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="how often each query runs; the best counts")
    parser.add_argument("--only", default="", help="only queries with this in their name")
    parser.add_argument("--brokers", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments or [])
    if not any(options.only in case.name for case in CASES):
        parser.error(
            f"no query has {options.only!r} in its name; there are: {'; '.join(c.name for c in CASES)}"
        )
    topic = "load"
    if options.brokers:  # the process that is measured
        measure(options.brokers, topic, options.records, options.rounds, options.only)
        sys.stdout.flush()
        os._exit(0)
    from benchmarks.pipeline.load import fill
    from tests.support.kafka import LONG_LIVED, KafkaCluster

    with KafkaCluster(java_options=LONG_LIVED) as cluster:
        fill(cluster.bootstrap, topic, options.records)
        command = [sys.executable, "-m", "benchmarks.datasource", "--brokers", cluster.bootstrap]
        command += ["--records", str(options.records), "--rounds", str(options.rounds)]
        return subprocess.run([*command, "--only", options.only], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
