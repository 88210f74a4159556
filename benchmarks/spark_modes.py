"""Spark for three workers on one machine: a local session in each, or one Connect server for all.

``python -m benchmarks.spark_modes [--batches N] [--workers N]`` prints, for each way: the time from a
worker's start to its first batch, the same for a worker that is started again while the others work,
records a second of all workers together by batch size, and memory. The pipeline is
examples/flights, the records are real.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
BATCH_SIZES = (2_000, 5_000, 10_000)
WARM_BATCHES = 6


def worker(remote: str, source: Path) -> None:
    """A worker's engine, driven by lines on standard input: ``SIZE COUNT`` answers with a line of JSON."""
    import pyarrow as pa

    from slackwater.pipeline.engines.spark import SparkEngine

    with pa.memory_map(str(source)) as file:
        table = pa.ipc.open_file(file).read_all()
    engine = SparkEngine("flights.pipeline:transform", [str(ROOT / "examples")], remote=remote)
    engine.start()
    engine.warm_up()
    for line in sys.stdin:
        size, count = map(int, line.split())
        took = []
        for number in range(count):
            began = time.monotonic()
            out = engine.transform(table.slice(number * size % (table.num_rows - size), size))
            took.append(time.monotonic() - began)
            if out.num_rows != size or out["_error"].null_count != size:
                raise RuntimeError("a flight was lost or rejected")
        print(json.dumps(took), flush=True)
    engine.close()


@dataclass
class Child:
    """A worker's process."""

    process: subprocess.Popen[str]
    began: float

    def ask(self, size: int, count: int) -> None:
        stdin = self.process.stdin
        if stdin is None:
            raise RuntimeError("no pipe")
        stdin.write(f"{size} {count}\n")
        stdin.flush()

    def answer(self) -> list[float]:
        stdout: IO[str] | None = self.process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            raise RuntimeError(f"the worker ended with code {self.process.wait()}")
        took: list[float] = json.loads(line)
        return took

    def first_batch_s(self) -> float:
        """From the process's start to the end of a first batch of 5,000."""
        self.ask(5_000, 1)
        self.answer()
        return time.monotonic() - self.began

    def close(self) -> None:
        self.process.communicate(timeout=30)


def start(remote: str, source: Path) -> Child:
    command = [sys.executable, "-m", "benchmarks.spark_modes", "--worker", str(source), "--remote", remote]
    pipe = subprocess.PIPE
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    return Child(process, began)


def measure(remote: str, source: Path, workers: int, batches: int, server_pid: int | None) -> dict[str, Any]:
    """The figures of one way. ``batches``: how many each worker does of each size."""
    figures: dict[str, Any] = {}
    children = [start(remote, source)]
    figures["first batch of a first worker, s"] = round(children[0].first_batch_s(), 2)
    more = [start(remote, source) for _ in range(workers - 1)]
    figures["first batch of the others at once, s"] = [round(child.first_batch_s(), 2) for child in more]
    children += more
    for child in children:
        child.ask(5_000, WARM_BATCHES)
    for child in children:
        child.answer()
    for size in BATCH_SIZES:
        began = time.monotonic()
        for child in children:
            child.ask(size, batches)
        took = sorted(second for child in children for second in child.answer())
        rate = workers * batches * size / (time.monotonic() - began)
        figures[f"{size} a batch"] = f"{rate:,.0f} records/s, median {took[len(took) // 2] * 1000:.0f} ms"
    figures["memory, MB"] = round(sum(memory_mb(child.process.pid) for child in children))
    if server_pid is not None:
        figures["memory of the server, MB"] = round(memory_mb(server_pid))
    children.pop().close()
    for child in children:
        child.ask(5_000, batches)
    again = start(remote, source)
    figures["first batch of a restarted worker, s"] = round(again.first_batch_s(), 2)
    for child in children:
        child.answer()
    for child in [*children, again]:
        child.close()
    return figures


def memory_mb(pid: int) -> float:
    """Resident memory of a process and its descendants (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if thread.name != str(pid):
            children += (thread / "children").read_text().split()
    return own / 1024 + sum(memory_mb(int(child)) for child in children)


@contextmanager
def records() -> Iterator[Path]:
    """A file with polled records: 100,000 flights, three partitions."""
    import pyarrow as pa

    from slackwater.kafka.records import ARROW_SCHEMA
    from slackwater_operator.demo.source import flight_record, read_rows

    flights = [flight_record(row) for row in islice(read_rows(), 100_000)]
    rows = len(flights)
    table = pa.Table.from_pydict(
        {
            "topic": ["flights"] * rows,
            "partition": [n % 3 for n in range(rows)],
            "offset": [n // 3 for n in range(rows)],
            "timestamp": [flight.timestamp_ms for flight in flights],
            "key": [flight.key for flight in flights],
            "value": [flight.value for flight in flights],
            "headers": [[]] * rows,
        },
        schema=ARROW_SCHEMA,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        yield path


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_modes", description=__doc__)
    parser.add_argument("--batches", type=int, default=8, help="batches of each size a worker")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--only", choices=["local", "connect"])
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--remote", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        worker(options.remote, options.worker)
        return
    from slackwater.pipeline.engines.connect_server import ConnectServer

    with records() as source:
        if options.only != "connect":
            show("a local session in each", measure("", source, options.workers, options.batches, None))
        if options.only != "local":
            began = time.monotonic()
            with ConnectServer(log_path=source.parent / "connect.log") as server:
                ready = {"server ready, s": round(time.monotonic() - began, 2)}
                figures = measure(server.remote, source, options.workers, options.batches, server.pid)
                show("one Connect server for all", ready | figures)


def show(way: str, figures: dict[str, Any]) -> None:
    print(way)
    for name, value in figures.items():
        print(f"  {name}: {value}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
