"""Random runs of three workers that are stopped, continued, killed, restarted and taken over under records;
and of topics that are created again, and offsets that are set back, between two starts of the group.

A seed draws what is done; at which moment that hits a worker is left to the machine. Each run has a topic, a
group and a folder of its own. At its end each record must be a row or a dead letter, once, as other libraries
read them; rows that an offset set back has had delivered again are counted apart. By hand, against a real
Kafka of its own; or one seed again, with what is done::

    python -m tests.chaos.random_runs --runs 200 --seed 1 --jobs 4
    python -m tests.chaos.random_runs --runs 1 --seed 17 --log --keep FOLDER
    python -m tests.chaos.random_runs --hostile arrow/parquet arrow/delta arrow/postgres spark/parquet
    python -m tests.chaos.random_runs --runs 100 --protocol consumer

With ``--hostile`` some records try to break the worker (tests/chaos/hostile_site.py), and each seed has one
of these engines and sinks, in turn.
A run that went wrong tells which records are lost or there too often, with partitions, offsets, files and
dead letters. ``--keep`` keeps its folder: the output, and the events and logs of its workers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from slackwater.pipeline.engines.connect_server import ConnectServer
from slackwater.runtime.fault_points import Step
from tests.chaos.hostile_site import HostileSite, Pipeline
from tests.support.kafka import KafkaCluster
from tests.support.postgres import PostgresServer
from tests.support.waiting import WAIT_S, wait_until
from tests.support.workers.process import WorkerProcess
from tests.support.workers.stoppable_site import PARTITIONS, StoppableSite

SESSION_MS = 4_000
BROKER = {
    "group.initial.rebalance.delay.ms": "150",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}
MEMBERS = 3
MOST_DIFFERENCES = 50
"""So many are told of a run that went wrong."""
ACTIONS = (8, 12)
"""How many are drawn, at least and at most."""
RECORDS = (50, 400)
TRICKLE = (5, 50)
"""Records before each action."""
PAUSE_S = 1.5
STOP_AT_SHARE = 0.3
"""Of the processes, that stop themselves at a step; the others are stopped wherever they are."""


@dataclass
class Outcome:
    """What came of a run. ``error``: what kept it from its end. ``codes``: of processes that ended.

    ``differences``: which records are lost or there too often, and where; the first of them.
    """

    seed: int
    pipeline: str = ""
    records: int = 0
    lost: int = 0
    doubled: int = 0
    again: int = 0
    error: str = ""
    seconds: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether each record is there, once."""
        return not (self.lost or self.doubled or self.error)


class RandomRun:
    """One run. ``say`` is told each action."""

    def __init__(self, site: StoppableSite, rng: random.Random, say: Callable[[str], None]) -> None:
        self._site, self._rng, self._say = site, rng, say
        self._pods: dict[int, WorkerProcess] = {}
        """The pod that is to be each member, as an operator sees it."""
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        """All of it, until everything is committed and all workers have ended."""
        actions = [
            self.produce,
            self.pause,
            self.outlast,
            self.stop,
            self.go_on,
            self.kill,
            self.restart,
            self.take_over,
            self.recreate,
            self.rewind,
        ]
        weights = [6, 6, 2, 8, 4, 4, 2, 4, 1, 1]
        self.produce()
        self._start_all()
        for action in self._rng.choices(actions, weights, k=self._rng.randint(*ACTIONS)):
            self._replace_ended()
            self._site.produce(self._rng.randint(*TRICKLE))
            action()
        self._end()

    # ---- what is done

    def produce(self) -> None:
        """Some records."""
        self._note("produce", "")
        self._site.produce(self._rng.randint(*RECORDS))

    def pause(self) -> None:
        """Some time."""
        self._note("pause", "")
        time.sleep(self._rng.uniform(0, PAUSE_S))

    def outlast(self) -> None:
        """Longer than a session: whoever is stopped has a successor."""
        self._note("outlast", "")
        time.sleep(SESSION_MS / 1000 + 1)

    def stop(self) -> None:
        """SIGSTOP for one that is not stopped."""
        if pod := self._choose(stopped=False):
            self._note("stop", pod.pod)
            pod.stop()

    def go_on(self) -> None:
        """SIGCONT for one that is, by us or by itself."""
        if pod := self._choose(stopped=True):
            self._note("continue", pod.pod)
            pod.go_on()

    def kill(self) -> None:
        """SIGKILL, and the same pod again. One that is stopped may be left as it is, to go on later."""
        member, pod = self._rng.choice(sorted(self._pods.items(), key=lambda item: item[0]))
        if pod.is_stopped and self._rng.random() < 0.5:
            self._note("replace", pod.pod)
        else:
            self._note("kill", pod.pod)
            pod.signal(signal.SIGKILL)
            pod.wait()
        self._start(member, pod.pod.split("-")[1])

    def restart(self) -> None:
        """SIGTERM, and the same pod again."""
        if pod := self._choose(stopped=False):
            self._note("restart", pod.pod)
            pod.signal(signal.SIGTERM)
            deadline = time.monotonic() + 10
            while pod.runs and not pod.is_stopped and time.monotonic() < deadline:
                time.sleep(0.02)
            self._start(int(pod.instance.split("-")[1]), pod.pod.split("-")[1])

    def take_over(self) -> None:
        """A pod of the other set gets ready, and is told to take over from whoever it is, stopped or not."""
        member, pod = self._rng.choice(sorted(self._pods.items(), key=lambda item: item[0]))
        self._note("take over", pod.pod)
        other = "b" if pod.pod.split("-")[1] == "a" else "a"
        successor = self._start(member, other)
        deadline = time.monotonic() + 15
        while successor.runs and not successor.is_stopped and time.monotonic() < deadline:
            phases = successor.phases()
            if phases and phases[-1] == "standby":
                if not pod.named("started"):  # it was stopped before: nobody knows its port
                    return
                try:
                    self._say(f"ordered: {self._site.key.order(successor, pod)[0]}")
                except OSError as exc:  # it has stopped itself, or ended, meanwhile
                    self._say(f"not ordered: {exc}")
                return
            if phases and phases[-1] == "running":
                return
            time.sleep(0.02)

    def recreate(self) -> None:
        """The topic is deleted and created again, when all of it is delivered and all workers have ended."""
        self._note("recreate", "")
        self._end()
        self._site.until_empty()
        self._site.recreate()
        self.produce()
        self._start_all()

    def rewind(self) -> None:
        """A partition's committed offset is set back, when all workers have ended."""
        self._note("rewind", "")
        self._end()
        self._site.until_empty()
        self._site.rewind(self._rng.randrange(PARTITIONS), self._rng.random())
        self._start_all()

    # ---- pods

    def _start_all(self) -> None:
        for member in range(MEMBERS):
            self._start(member, "a")
        pod = self._pods[0]
        wait_until(lambda: bool(pod.named("assigned")) or pod.is_stopped or not pod.runs, lambda: pod.why(""))

    def _start(self, member: int, suffix: str) -> WorkerProcess:
        at = f"{self._rng.choice(list(Step))}:{self._rng.randint(1, 4)}"
        stop_at = at if self._rng.random() < STOP_AT_SHARE else ""
        self._pods[member] = self._site.start(member, suffix, stop_at)
        self._say(f"starts {self._pods[member].pod} {stop_at}")
        return self._pods[member]

    def _choose(self, *, stopped: bool) -> WorkerProcess | None:
        pods = self._site.workers if stopped else list(self._pods.values())
        fit = [pod for pod in pods if pod.runs and pod.is_stopped is stopped]
        return self._rng.choice(fit) if fit else None

    def _replace_ended(self) -> None:
        """As a kubelet does."""
        for member, pod in sorted(self._pods.items(), key=lambda item: item[0]):
            if not pod.runs:
                self._start(member, pod.pod.split("-")[1])

    def _note(self, action: str, pod: str) -> None:
        self.done[action] += 1
        self._say(f"{action} {pod}")

    def _end(self) -> None:
        """Sees to it that each member has a process that goes on, until all is committed. Then the others go
        on, too, and all end.
        """
        deadline, before = time.monotonic() + WAIT_S, None
        while (committed := self._site.committed()) != self._site.ends:
            if committed != before:
                deadline, before = time.monotonic() + WAIT_S, committed
            for pod in self._pods.values():
                if pod.is_stopped:
                    pod.go_on()
            self._replace_ended()
            assert time.monotonic() < deadline, "\n".join(pod.why("") for pod in self._site.workers)
            time.sleep(0.2)
        self._say("all is committed")
        for pod in self._site.workers:
            if pod.runs:
                pod.go_on()
        ending = [pod for pod in self._site.workers if pod.runs]
        for pod in ending:
            pod.signal(signal.SIGTERM)
        for pod in ending:
            while pod.runs:
                if pod.is_stopped:
                    pod.go_on()
                assert time.monotonic() < deadline + 60, pod.why("")
                time.sleep(0.02)


class Sites:
    """Makes the site of each seed. ``hostile``: ENGINE/SINK for the seeds in turn; without it, records are
    plain. ``members``: what :class:`StoppableSite` takes beside. What the sites share starts here: a Connect
    server, PostgreSQL."""

    def __init__(self, bootstrap: str, hostile: Sequence[str] = (), **members: Any) -> None:
        self._bootstrap, self._hostile = bootstrap, hostile
        self._members = {"session_ms": SESSION_MS, **members}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            self._remote, self._postgres = "", None
            if any(name.startswith("spark/") for name in self._hostile):
                log = Path(starting.enter_context(tempfile.TemporaryDirectory())) / "connect.log"
                server = ConnectServer(log_path=log)
                starting.callback(server.stop)
                server.start()
                self._remote = server.remote
            if any(name.endswith("/postgres") for name in self._hostile):
                self._postgres = starting.enter_context(PostgresServer())
            self._open = starting.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def pipeline(self, seed: int) -> str:
        """The engine and the sink of a seed; empty where records are plain."""
        return self._hostile[seed % len(self._hostile)] if self._hostile else ""

    @contextlib.contextmanager
    def site(self, seed: int, folder: Path) -> Iterator[StoppableSite]:
        """The site of a seed, which ends with the block."""
        with contextlib.ExitStack() as ending:
            if not self._hostile:
                yield ending.enter_context(StoppableSite(self._bootstrap, folder, **self._members))
                return
            pipeline = Pipeline.named(self.pipeline(seed), self._remote)
            database = None
            if pipeline.sink == "postgres":
                assert self._postgres is not None
                database = ending.enter_context(self._postgres.database())
            yield ending.enter_context(
                HostileSite(
                    self._bootstrap,
                    folder,
                    pipeline,
                    random.Random(f"values of {seed}"),
                    database=database,
                    **self._members,
                )
            )


def run_one(sites: Sites, seed: int, *, log: bool = False, keep: Path | None = None) -> Outcome:
    """The run of a seed. Where it went wrong, its folder is kept in ``keep``, with the outcome."""
    folder = Path(tempfile.mkdtemp(prefix=f"slackwater-run-{seed}-"))
    outcome, began = Outcome(seed, sites.pipeline(seed)), time.monotonic()

    def say(what: str) -> None:
        if log:
            print(f"{time.monotonic() - began:7.2f} {what}", flush=True)

    try:
        with sites.site(seed, folder) as site:
            run = RandomRun(site, random.Random(seed), say)
            try:
                run.run()
            except Exception as exc:  # also of librdkafka: the other runs go on
                outcome.error = f"{type(exc).__name__}: {exc}"
            outcome.records, outcome.done = site.produced, dict(run.done)
            outcome.codes = dict(Counter(str(pod.process.poll()) for pod in site.workers))
            if not outcome.error:
                outcome.lost, outcome.doubled, outcome.again = site.difference()
                if not outcome.good:
                    outcome.differences = site.differences()[:MOST_DIFFERENCES]
    finally:
        outcome.seconds = round(time.monotonic() - began, 1)
        if keep is not None and not outcome.good:
            kept = keep / f"seed-{seed}"
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            (kept / "outcome.json").write_text(json.dumps(asdict(outcome), indent=2))
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def run_many(sites: Sites, seeds: Iterable[int], *, jobs: int, keep: Path | None = None) -> Iterator[Outcome]:
    """The runs of ``seeds``, ``jobs`` at once, as they end."""
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run_one, sites, seed, keep=keep) for seed in seeds]):
            yield future.result()


def main(arguments: list[str] | None = None) -> int:
    """Prints a JSON line a run, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="the first; the others follow it")
    parser.add_argument("--jobs", type=int, default=4, help="how many runs at once")
    parser.add_argument("--log", action="store_true", help="tell what is done; one run after another")
    parser.add_argument("--keep", type=Path, help="a folder for what a run that went wrong leaves")
    parser.add_argument(
        "--hostile", nargs="+", default=(), metavar="ENGINE/SINK", help="with hostile records"
    )
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic", help="of the group")
    given = parser.parse_args(arguments)
    seeds = range(given.seed, given.seed + given.runs)
    outcomes: list[Outcome] = []
    members = {"consumer_protocol": given.protocol == "consumer"}
    with KafkaCluster(1, BROKER) as cluster, Sites(cluster.bootstrap, given.hostile, **members) as sites:
        runs = (
            (run_one(sites, seed, log=True, keep=given.keep) for seed in seeds)
            if given.log
            else run_many(sites, seeds, jobs=given.jobs, keep=given.keep)
        )
        for outcome in runs:
            outcomes.append(outcome)
            print(json.dumps(asdict(outcome)), flush=True)
    print(
        f"{len(outcomes)} runs, {sum(outcome.records for outcome in outcomes)} records, "
        f"{sum(outcome.lost for outcome in outcomes)} lost, "
        f"{sum(outcome.doubled for outcome in outcomes)} doubled, "
        f"{sum(outcome.again for outcome in outcomes)} again after a rewind, "
        f"{sum(bool(outcome.error) for outcome in outcomes)} not ended"
    )
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
