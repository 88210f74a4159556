"""Runs the ways one after the other and prints a row for each."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from benchmarks.pipeline.handlers import COLUMNS
from benchmarks.pipeline.load import create, fill, values
from benchmarks.pipeline.ours import Batch, config, worker
from benchmarks.pipeline.processes import report_of
from slackwater.kafka import KafkaProducer
from tests.support.kafka import LONG_LIVED, KafkaCluster

HANDLERS = "benchmarks.pipeline.handlers"
VALUE = {"format": "json", "schema": COLUMNS}
OURS: Mapping[str, dict[str, Any]] = {
    "spark-value": {
        "engine": "spark",
        "handler": f"{HANDLERS}:spark_values",
        "value": VALUE,
    },
    "spark": {"engine": "spark", "handler": f"{HANDLERS}:spark"},
    "connect": {"engine": "spark", "handler": f"{HANDLERS}:spark"},
    "arrow-value": {
        "engine": "arrow",
        "handler": f"{HANDLERS}:arrow_values",
        "value": VALUE,
    },
    "arrow": {"engine": "arrow", "handler": f"{HANDLERS}:arrow"},
    "python": {"engine": "python", "handler": f"{HANDLERS}:python"},
}
"""Name -> fields of the worker's configuration."""
STREAMING = "streaming"
WARM, TIMED = 10, 30
"""Records sent one by one before their time is taken, and while it is."""
SMALL, SMALL_BATCHES = 10_000, 40
"""Records of a small batch, and how many of those are read."""


@dataclass(frozen=True)
class Outcome:
    """One way to read a topic. ``batches``: records and ms of each; the first quarter of them is left out of
    the times that are shown. ``phases``: ms a thousand records."""

    records: int
    seconds: float
    cpu_s: float
    most_mb: float
    batches: Sequence[tuple[int, float]]
    phases: Mapping[str, float]

    def row(self, name: str, peer: Outcome | None) -> str:
        rate, cpu = self.records / self.seconds, self.cpu_s / self.records * 1e6
        warm = self.batches[len(self.batches) // 4 :]
        times = sorted(ms for _, ms in warm)
        size = statistics.median(records for records, _ in warm)
        ratio = f"{rate / (peer.records / peer.seconds):5.2f}x" if peer is not None else " " * 6
        cells = (
            f"{name:<12}{rate / 1e3:>7.0f}k {ratio} {cpu:>7.1f} {self.most_mb:>7.0f} "
            f"{len(self.batches):>5} {size:>9,.0f} {times[len(times) // 2]:>7.0f} {times[-1]:>7.0f}  "
        )
        return cells + ", ".join(f"{phase} {ms:.2f}" for phase, ms in self.phases.items())


HEAD = (
    f"{'':<12}{'rec/s':>8} {'ratio':>6} {'CPU s/M':>7} {'RSS MB':>7} {'batch':>5} {'records':>9} "
    f"{'ms p50':>7} {'ms max':>7}  ms a thousand records by phase"
)


def our_bulk(name: str, bootstrap: str, topic: str, total: int, folder: Path, **fields: Any) -> Outcome:
    """A worker of engine ``name`` reads the whole topic."""
    settings = config(bootstrap, topic, f"{name}-{uuid.uuid4().hex[:6]}", folder, **OURS[name], **fields)
    with worker(settings, folder) as running:
        batches = running.wait(lambda done: sum(batch.records for batch in done) >= total)
        time.sleep(0.3)  # the next sample of the CPU time
        began, ended = batches[0].began, batches[-1].ended
        cpu_s, most_mb = running.watch.cpu_s(began, ended), running.watch.most_mb
    _check(folder, total)
    return Outcome(
        total,
        ended - began,
        cpu_s,
        most_mb,
        [(batch.records, (batch.ended - batch.began) * 1000) for batch in batches],
        _phases(batches),
    )


def _phases(batches: Sequence[Batch]) -> dict[str, float]:
    total = sum(batch.records for batch in batches) / 1000
    names = dict.fromkeys(name for batch in batches for name in batch.ms if name != "handling")
    sums = {name: sum(batch.ms.get(name, 0.0) for batch in batches) / total for name in names}
    return {name: ms for name, ms in sums.items() if ms >= 0.005}


def _check(folder: Path, total: int) -> None:
    """Each record is there, once: as many rows as records, and as many different places."""
    table = ds.dataset(folder / "out", exclude_invalid_files=True).to_table(columns=["partition", "offset"])
    places = table.group_by(["partition", "offset"]).aggregate([]).num_rows
    if (table.num_rows, places) != (total, total):
        raise RuntimeError(f"{table.num_rows} rows of {places} records are in the table, not {total}")


def streaming_bulk(bootstrap: str, topic: str, total: int, folder: Path, per_trigger: int = 0) -> Outcome:
    """Structured Streaming reads the whole topic."""
    arguments = [bootstrap, topic, str(folder), str(per_trigger)]
    report, watch = report_of("benchmarks.pipeline.streaming", arguments, folder)
    _check(folder, total)
    seconds, cpu_s = report["ended"] - report["began"], watch.cpu_s(report["began"], report["ended"])
    return Outcome(total, seconds, cpu_s, watch.most_mb, report["batches"], {})


def one_record(name: str, bootstrap: str, folder: Path, **fields: Any) -> str:
    """How long a warm worker takes from the write of a record to its commit."""
    topic = f"trickle-{name}-{uuid.uuid4().hex[:6]}"
    create(bootstrap, topic)
    (value,) = values(1)
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=0)
    took: list[float] = []
    with worker(config(bootstrap, topic, topic, folder, **OURS[name], **fields), folder) as running:
        for sent in range(1, WARM + TIMED + 1):
            producer.send(topic, value=value).get()
            began = time.time()
            done = running.wait(lambda batches: len(batches) >= sent)  # noqa: B023
            took.append((done[-1].ended - began) * 1000)
    producer.close()
    times = sorted(took[WARM:])
    return f"{name:<12}one record: p50 {times[len(times) // 2]:.0f} ms, max {times[-1]:.0f} ms"


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as folder:
        yield Path(folder)


@contextmanager
def _fields(name: str) -> Iterator[dict[str, Any]]:
    """What the configuration of a way has on top: the address of a Connect server that runs meanwhile."""
    if name != "connect":
        yield {}
        return
    from slackwater.pipeline.engines.connect_server import ConnectServer

    with scratch() as folder, ConnectServer(log_path=folder / "connect.log") as server:
        yield {"spark": {"remote": server.remote}}


def _ways(text: str) -> list[str]:
    """Reads the names of ways, separated by commas."""
    names, known = text.split(","), [STREAMING, *OURS]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(known)}")
    return names


def main(arguments: Sequence[str]) -> int:
    """Runs it with these arguments. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument(
        "--only", type=_ways, default=[STREAMING, *OURS], metavar="WAY,...",
        help=f"all, or some of: {', '.join([STREAMING, *OURS])}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=2, help="how often each way runs; the best counts")
    parser.add_argument("--no-small", action="store_true", help="only the bulk")
    options = parser.parse_args(arguments)
    names = options.only
    with KafkaCluster(java_options=LONG_LIVED) as cluster:
        bootstrap = cluster.bootstrap
        fill(bootstrap, "load", options.records)
        fill(bootstrap, "small", SMALL * SMALL_BATCHES)
        print(HEAD, flush=True)
        best: dict[str, Outcome] = {}
        for name in names * options.rounds:
            outcome = _bulk(name, bootstrap, options.records)
            if name not in best or outcome.seconds < best[name].seconds:
                best[name] = outcome
        _show(names, best)
        if not options.no_small:
            print(f"\nin batches of {SMALL:,} records", flush=True)
            _show(names, {name: _small(name, bootstrap) for name in names})
            print(flush=True)
            for name in names:
                if name != STREAMING:
                    with scratch() as folder, _fields(name) as fields:
                        print(one_record(name, bootstrap, folder, **fields), flush=True)
    return 0


def _show(names: Sequence[str], outcomes: Mapping[str, Outcome]) -> None:
    for name in names:
        print(outcomes[name].row(name, outcomes.get(STREAMING)), flush=True)


def _bulk(name: str, bootstrap: str, total: int) -> Outcome:
    with scratch() as folder, _fields(name) as fields:
        if name == STREAMING:
            return streaming_bulk(bootstrap, "load", total, folder)
        return our_bulk(name, bootstrap, "load", total, folder, **fields)


def _small(name: str, bootstrap: str) -> Outcome:
    total = SMALL * SMALL_BATCHES
    with scratch() as folder, _fields(name) as fields:
        if name == STREAMING:
            return streaming_bulk(bootstrap, "small", total, folder, SMALL)
        properties = {"max.poll.records": str(SMALL)}
        return our_bulk(name, bootstrap, "small", total, folder, properties=properties, **fields)
