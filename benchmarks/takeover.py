"""What takeovers cost, measured at the sink's files: 5 workers, 20 partitions, 1,000 records a second.

All workers are replaced by takeover, one after another, without an operator. Nothing that a worker says is
part of a pause: a file counts from its rename into the sink's folder (inotify). The phases in between are
from the workers' /status; all clocks are one machine's. Printed last: by how much the workers' own report
differs from the files.

With ``--busy N`` all are replaced a second time, while N processes compute beside them: a busy machine
beside its quiet self.

    python -m benchmarks.takeover --rounds 3 --busy 8
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rollouts.measure import Published
from benchmarks.rollouts.sink_watch import SinkWatch
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.support.workers.process import WorkerProcess
from tests.support.workers.takeover_site import TakeoverSite

SETTLE_S = 5.0
"""How long the load runs before the quiet time: brokers that have just begun compile first."""
FETCH_MIN_BYTES = 100_000
"""More than comes within the wait."""
START_S = 300.0
"""How long a successor may take to start: beside many others it takes minutes."""
MARKS = ("drain", "committed", "answered", "joined", "first_record")


@dataclass(frozen=True)
class Move:
    """A partition's way from one process to another. Wall clock, ms.

    ``last_ms``, ``first_ms``: the predecessor's last file and the successor's first, as the folder had them.
    ``said_ms``: the pause by the successor's /status. ``taken``: its takeover there.
    """

    partition: int
    last_ms: float
    first_ms: float
    said_ms: int
    taken: Mapping[str, Any]

    @property
    def pause_ms(self) -> float:
        """From the last file to the first."""
        return self.first_ms - self.last_ms

    def phases(self) -> dict[str, float]:
        """What the pause consists of, in ms."""
        marks = [("last file", self.last_ms)]
        marks += [(name, float(self.taken[f"{name}_ms"])) for name in MARKS]
        marks.append(("first file", self.first_ms))
        pairs = itertools.pairwise(marks)
        return {f"{before} to {after}": end - begin for (before, begin), (after, end) in pairs}


@dataclass(frozen=True)
class Roll:
    """All workers are replaced once.

    ``quiet``, ``rolling``: each partition's longest time between two files before the roll, and in it, in ms.
    """

    moves: Sequence[Move]
    quiet: Sequence[float]
    rolling: Sequence[float]

    def __add__(self, other: Roll) -> Roll:
        return Roll([*self.moves, *other.moves], [*self.quiet, *other.quiet], [*self.rolling, *other.rolling])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the figures of each round, and of all."""
    options = _parser().parse_args(arguments)
    rounds = [_round(options, number) for number in range(1, options.rounds + 1)]
    print("all rounds:")
    for rolls in zip(*rounds, strict=True):
        _tell(functools.reduce(operator.add, rolls))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.takeover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second")
    parser.add_argument("--quiet-s", type=float, default=15, help="how long nothing happens before the roll")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute in a second roll")
    parser.add_argument("--slow-ms", type=int, default=0, help="how long the handler takes for a batch")
    parser.add_argument("--batch-interval-ms", type=int, default=0)
    parser.add_argument("--max-age-ms", type=int, default=0, help="sink.maxAgeMs")
    parser.add_argument(
        "--fetch-wait-ms", type=int, default=0,
        help="how long a broker gathers records for an answer; 0: it answers with the first",
    )  # fmt: skip
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic", help="of the group")
    parser.add_argument("--dev-broker", action="store_true", help="in place of Kafka")
    return parser


def _round(options: argparse.Namespace, number: int) -> list[Roll]:
    """One group, whose workers are all replaced, once or twice."""
    with (
        tempfile.TemporaryDirectory(prefix="takeover-") as folder,
        contextlib.ExitStack() as stack,
    ):
        cluster: DevBroker | KafkaCluster = DevBroker() if options.dev_broker else KafkaCluster(1)
        stack.enter_context(cluster)
        site = stack.enter_context(TakeoverSite(cluster.bootstrap, Path(folder), options.partitions))
        watch = stack.enter_context(SinkWatch(site.out))
        config: dict[str, Any] = {
            "slow_ms": options.slow_ms,
            "batchIntervalMs": options.batch_interval_ms,
            "sink": {"format": "parquet", "path": str(site.out), "maxAgeMs": options.max_age_ms},
        }
        config["groupProtocol"] = options.protocol.capitalize()
        if options.protocol == "consumer":
            config["properties"] = {}
        else:
            config["properties"] = {"session.timeout.ms": "30000", "heartbeat.interval.ms": "1000"}
        if options.fetch_wait_ms:
            config["properties"] |= {
                "fetch.max.wait.ms": str(options.fetch_wait_ms),
                "fetch.min.bytes": str(FETCH_MIN_BYTES),
            }
        pods = site.members(options.workers, **config)
        site.flow.start(options.rate)
        rolls = []
        for suffix, busy in (("b", 0), ("c", options.busy)) if options.busy else (("b", 0),):
            with _others(busy):
                time.sleep(SETTLE_S)
                began = _now_ms()
                time.sleep(options.quiet_s)
                rolled = _now_ms()
                share = options.partitions // options.workers
                replaced = [_replace(site, suffix, at, pod, share, config) for at, pod in enumerate(pods)]
                ended, load = _now_ms(), os.getloadavg()[0]
            pods = [successor for successor, _ in replaced]
            published = watch.published()
            roll = Roll(
                _moves(published, [taken for _, taken in replaced]),
                _longest(published, began, rolled),
                _longest(published, rolled, ended),
            )
            print(f"round {number}, {busy} busy processes, load average {load:.1f}", flush=True)
            _tell(roll)
            rolls.append(roll)
        site.check(twice=sys.maxsize)
        return rolls


@contextlib.contextmanager
def _others(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _replace(
    site: TakeoverSite, suffix: str, ordinal: int, pod: WorkerProcess, share: int, config: Mapping[str, Any]
) -> tuple[WorkerProcess, Mapping[str, Any]]:
    """Has a successor take over; it and its takeover by /status, when all its partitions are served."""
    successor = site.standby(ordinal, suffix, share, timeout_s=START_S, **config)
    code, answer = site.key.order(successor, pod)
    assert code == 202, answer
    wait_until(
        lambda: len((successor.status()["takeover"] or {}).get("pauses_ms", ())) == share,
        site.why,
        120,
        every_s=0.1,
    )
    pod.in_phase("standby")
    assert pod.terminate() == 0, pod.why("")
    taken: Mapping[str, Any] = successor.status()["takeover"]
    assert not taken["forced"], taken
    return successor, taken


def _now_ms() -> float:
    return time.time_ns() / 1e6


def _by_partition(published: Iterable[Published]) -> dict[int, list[float]]:
    times: dict[int, list[float]] = defaultdict(list)
    for file in sorted(published, key=lambda file: file.at_ms):
        times[file.partition].append(file.at_ms)
    return times


def _longest(published: Iterable[Published], began_ms: float, ended_ms: float) -> list[float]:
    """Each partition's longest time between two files that ends in the span."""
    return [
        max(later - earlier for earlier, later in itertools.pairwise(times) if began_ms <= later <= ended_ms)
        for times in _by_partition(published).values()
    ]


def _moves(published: Sequence[Published], taken: Iterable[Mapping[str, Any]]) -> list[Move]:
    times = _by_partition(published)
    moves = []
    for record in taken:
        for name, said_ms in record["pauses_ms"].items():
            partition = int(name.rpartition("-")[2])
            # The predecessor writes nothing after its answer, the successor nothing before its join.
            joined_ms = record["joined_ms"]
            last = max(at for at in times[partition] if at <= joined_ms)
            first = min(at for at in times[partition] if at > joined_ms)
            moves.append(Move(partition, last, first, said_ms, record))
    return moves


def _tell(roll: Roll) -> None:
    moves = roll.moves

    def line(title: str, values: Sequence[float]) -> None:
        print(f"  {title}: median {median(values):.0f} ms, worst {max(values):.0f} ms")

    line("quiet, a partition's longest time between two files", roll.quiet)
    line("roll, the same", roll.rolling)
    line("takeover, last file to first file", [move.pause_ms for move in moves])
    phases = [move.phases() for move in moves]
    for name in phases[0]:
        line(f"  {name}", [each[name] for each in phases])
    line("the workers' report", [float(move.said_ms) for move in moves])
    differences = [move.said_ms - move.pause_ms for move in moves]
    print(f"  the report minus the files: {min(differences):.0f} to {max(differences):.0f} ms")


if __name__ == "__main__":
    sys.exit(main())
