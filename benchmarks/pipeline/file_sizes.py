"""How many files a worker writes, with and without `sink.maxAge`: of a backlog, and of a trickle.

`python -m benchmarks.pipeline.file_sizes [--records 2200000] [--format parquet]`
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.pipeline.load import create, fill, values
from benchmarks.pipeline.ours import Batch, Worker, config, worker
from benchmarks.pipeline.run import OURS, scratch
from slackwater.kafka import KafkaProducer
from tests.support.kafka import LONG_LIVED, KafkaCluster

MIB = 1024 * 1024
BACKLOG: Sequence[Mapping[str, int]] = (
    {},
    {"maxAgeMs": 10_000, "targetFileBytes": 8 * MIB},
    {"maxAgeMs": 10_000},
)
TRICKLE: Sequence[Mapping[str, int]] = ({}, {"maxAgeMs": 10_000})
"""Fields of the section `sink`."""
PER_SECOND = 50


def files(folder: Path) -> list[tuple[int, int]]:
    """Bytes and rows of each file."""
    paths = [path for path in (folder / "out").rglob("*.parquet") if ".slackwater" not in path.parts]
    return [(path.stat().st_size, pq.read_metadata(path).num_rows) for path in paths]


def row(name: str, folder: Path, total: int, rate: float, most_mb: float) -> str:
    """A line of the table. Raises RuntimeError if a row is missing or there twice."""
    sizes = files(folder)
    rows = sum(count for _, count in sizes)
    if rows != total:
        raise RuntimeError(f"{rows} rows of {total} records")
    mean = sum(size for size, _ in sizes) / len(sizes)
    largest = max(size for size, _ in sizes)
    return (
        f"{name:<42} {len(sizes):>6} {mean / MIB:>9.3f} {largest / MIB:>9.3f} "
        f"{rate / 1e3:>8.2f}k {most_mb:>7.0f}"
    )


HEAD = f"{'':<42} {'files':>6} {'mean MiB':>9} {'most MiB':>9} {'rec/s':>9} {'RSS MB':>7}"


def backlog(bootstrap: str, topic: str, total: int, engine: str, sink: Mapping[str, Any]) -> str:
    """A worker reads ``topic`` to its end, and is stopped."""
    with scratch() as folder:
        settings = config(bootstrap, topic, f"files-{uuid.uuid4().hex[:6]}", folder, **OURS[engine])
        settings["sink"] = {**settings["sink"], **sink}
        with worker(settings, folder) as running:
            batches = _read(running, total)
            # Without the last one, which may have waited until it was old enough.
            counted = batches[:-1] or batches
            rate = sum(batch.records for batch in counted) / (counted[-1].ended - running.assigned)
        return row(_name("backlog", sink), folder, total, rate, running.watch.most_mb)


def _read(running: Worker, total: int) -> list[Batch]:
    return running.wait(lambda done: sum(batch.records for batch in done) >= total)


def trickle(bootstrap: str, seconds: int, engine: str, sink: Mapping[str, Any]) -> str:
    """A worker reads records that come evenly, and is stopped."""
    topic, total = f"trickle-{uuid.uuid4().hex[:6]}", seconds * PER_SECOND
    create(bootstrap, topic)
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=0)
    with scratch() as folder:
        settings = config(bootstrap, topic, topic, folder, **OURS[engine])
        settings["sink"] = {**settings["sink"], **sink}
        with worker(settings, folder) as running:
            began = time.time()
            for number, value in enumerate(values(total)):
                time.sleep(max(0.0, began + number / PER_SECOND - time.time()))
                producer.send(topic, value=value)
            producer.flush()
            _read(running, total)
            rate = total / (time.time() - began)
        producer.close()
        return row(_name(f"{PER_SECOND} a second", sink), folder, total, rate, running.watch.most_mb)


def _name(what: str, sink: Mapping[str, Any]) -> str:
    age, size = sink.get("maxAgeMs", 0), sink.get("targetFileBytes", 64 * MIB)
    return f"{what}, " + (f"maxAge {age // 1000}s, targetFileSize {size // MIB}Mi" if age else "each batch")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each setting."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.file_sizes")
    parser.add_argument("--records", type=int, default=2_200_000)
    parser.add_argument("--engine", default="arrow-value", choices=list(OURS))
    parser.add_argument("--seconds", type=int, default=30, help="how long the trickle lasts")
    options = parser.parse_args(arguments)
    with KafkaCluster(java_options=LONG_LIVED) as cluster:
        fill(cluster.bootstrap, "load", options.records)
        print(HEAD, flush=True)
        for sink in BACKLOG:
            print(backlog(cluster.bootstrap, "load", options.records, options.engine, sink), flush=True)
        for sink in TRICKLE:
            print(trickle(cluster.bootstrap, options.seconds, options.engine, sink), flush=True)


if __name__ == "__main__":
    main()
