"""Runs the ways one after the other and prints a row for each."""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.changes.connect import JdbcSink
from benchmarks.changes.load import SCHEMA, fill, result
from benchmarks.changes.tables import Target, target
from benchmarks.pipeline.ours import config, worker
from benchmarks.pipeline.processes import report_of
from tests.support.kafka import LONG_LIVED, KafkaCluster

OURS = ("delta", "iceberg", "postgres")
STREAMING = ("streaming", "streaming-dv")
CONNECT = "connect-jdbc"
TOMBSTONES = "changes-by-tombstones"
TASKS = 2
HEAD = (
    f"{'':<14}{'changes/s':>10} {'CPU s/100k':>11} {'RSS MB':>7} {'batches':>8} {'ms p50':>7} {'ms max':>7}"
)


@dataclass(frozen=True)
class Outcome:
    """One way. ``batches``: the times of all but the first, in ms; none: not known."""

    changes: int
    seconds: float
    cpu_s: float
    most_mb: float
    batches: Sequence[float]

    def row(self, name: str) -> str:
        times = sorted(self.batches)
        row = (
            f"{name:<14}{self.changes / self.seconds:>10,.0f} {self.cpu_s / self.changes * 1e5:>11.1f} "
            f"{self.most_mb:>7.0f}"
        )
        if not times:
            return row
        return f"{row} {len(times) + 1:>8} {times[len(times) // 2]:>7.0f} {times[-1]:>7.0f}"


def ours(bootstrap: str, total: int, size: int, folder: Path, table: Target) -> Outcome:
    """A worker that applies the topic's changes to the table."""
    settings = config(
        bootstrap, "changes", f"g-{uuid.uuid4().hex[:6]}", folder,
        engine="arrow",
        value={"format": "json", "schema": SCHEMA},
        properties={"max.poll.records": str(size), "auto.offset.reset": "earliest"},
        sink={**table.sink, "mode": "changes", "key": ["id"], "version": "version"},
    )  # fmt: skip
    with worker(settings, folder) as running:
        batches = running.wait(lambda done: sum(batch.records for batch in done) >= total)
        time.sleep(0.3)  # the next sample of the CPU time
        began, ended = batches[0].began, batches[-1].ended
        cpu_s, most_mb = running.watch.cpu_s(began, ended), running.watch.most_mb
    times = [(batch.ended - batch.began) * 1000 for batch in batches[1:]]
    return Outcome(total, ended - began, cpu_s, most_mb, times)


def streaming(name: str, bootstrap: str, total: int, size: int, folder: Path, table: Target) -> Outcome:
    """Structured Streaming, the same."""
    vectors = "vectors" if name == "streaming-dv" else "none"
    arguments = [bootstrap, "changes", table.sink["path"], str(size), vectors]
    report, watch = report_of("benchmarks.changes.streaming", arguments, folder)
    began, ended = report["began"], report["ended"]
    times = [ms for _, ms in report["batches"][1:]]
    return Outcome(total, ended - began, watch.cpu_s(began, ended), watch.most_mb, times)


def connect(bootstrap: str, total: int, size: int, folder: Path, table: Target) -> Outcome:
    """Kafka Connect with Debezium's JDBC sink, the same."""
    with JdbcSink(folder, bootstrap, TOMBSTONES, size, table.sink["options"], TASKS) as sink:
        began = sink.await_members()
        ended = sink.await_committed(total)
        time.sleep(0.3)  # the next sample of the CPU time
        return Outcome(total, ended - began, sink.watch.cpu_s(began, ended), sink.watch.most_mb, ())


def main(arguments: Sequence[str]) -> int:
    """Runs it with these arguments. Returns the exit code."""
    names = [*STREAMING, *OURS, CONNECT]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.changes")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table at first")
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=20_000, help="the most changes of a batch")
    parser.add_argument("--only", default=",".join(names), help=f"some of: {', '.join(names)}")
    parser.add_argument("--latest", action="store_true", help="at the latest 2 %% of the keys")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no {min(unknown)}; there are {', '.join(names)}")
    expected = result(options.rows, options.changes, latest=options.latest)
    with KafkaCluster(java_options=LONG_LIVED) as cluster:
        fill(cluster.bootstrap, "changes", options.rows, options.changes, latest=options.latest)
        if CONNECT in chosen:
            fill(
                cluster.bootstrap, TOMBSTONES, options.rows, options.changes,
                latest=options.latest, tombstones=True,
            )  # fmt: skip
        print(HEAD, flush=True)
        for name in chosen:
            with (
                tempfile.TemporaryDirectory(prefix="bench-changes-") as scratch,
                target(name, Path(scratch), options.rows) as table,
            ):
                given = cluster.bootstrap, options.changes, options.batch, Path(scratch), table
                if name == CONNECT:
                    outcome = connect(*given)
                else:
                    outcome = ours(*given) if name in OURS else streaming(name, *given)
                if name != "streaming-dv":  # deltalake reads no deletion vectors
                    _check(table, expected)
                print(outcome.row(name), flush=True)
    return 0


def _check(table: Target, expected: set[tuple[int, int]]) -> None:
    """Raises RuntimeError where the table is not what the changes make."""
    content = table.content()
    rows = set(zip(content["id"].to_pylist(), content["version"].to_pylist(), strict=True))
    if rows != expected or content.num_rows != len(expected):
        raise RuntimeError(
            f"the table has {content.num_rows} rows in place of {len(expected)}; "
            f"{len(rows ^ expected)} differ"
        )
