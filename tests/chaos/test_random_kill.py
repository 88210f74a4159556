"""kill -9 of workers at random moments while records flow: every record is in the output exactly once.

No Spark: the engine `arrow` starts in a second, so that twenty kills take less than a minute. The seed is
printed, and can be given: SLACKWATER_CHAOS_SEED=7.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import confluent_kafka
import pyarrow.dataset as ds
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from slackwater_operator.local.launch import Launch
from slackwater_operator.local.report.views import WorkerRow
from slackwater_operator.local.run import LocalRun, RunSettings
from tests.support.devbroker import DevBroker
from tests.support.peers.librdkafka import read_topic
from tests.support.waiting import WAIT_S

PARTITIONS = 6
LETTER_PARTITIONS = 3
BAD_EVERY = 17
KILLS = 20
PAUSE_S = (0.3, 3.0)
RATE = 500
HANDLER = """\
import random
import time
import pyarrow as pa
import pyarrow.compute as pc
from slackwater.pipeline.sinks.parquet.sink import StagedFiles
from slackwater.runtime.delivery.dead_letters import DeadLetterTopic


def linger_after(owner, name):
    # Where a kill hurts: what was written is not committed yet.
    original = getattr(owner, name)

    def lingering(*args, **kwargs):
        result = original(*args, **kwargs)
        time.sleep(random.uniform(0, 0.06))
        return result

    setattr(owner, name, lingering)


linger_after(StagedFiles, "publish")
linger_after(DeadLetterTopic, "write")


def transform(table):
    if table.num_rows:
        time.sleep(random.uniform(0, 0.1))
    bad = pc.starts_with(table.column("value").cast(pa.string()), "bad")
    errors = pc.if_else(bad, pa.scalar("is bad"), pa.scalar(None, pa.string()))
    return table.select(["topic", "partition", "offset", "value"]).append_column("_error", errors)
"""
RESOURCE = """\
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {{name: {name}}}
spec:
  kafka:
    bootstrapServers: {bootstrap}
    properties: {{session.timeout.ms: "6000", heartbeat.interval.ms: "500", max.poll.records: "{batch}"}}
  topics: [{name}]
  pipeline:
    handler: chaos_handler:transform
    engine: arrow
    sink: {{path: {out}}}
    deadLetterTopic: {name}.dlq
  replicas: 3
"""


class Feed:
    """Produces at a steady rate in a thread; leaving the context ends it, and waits for what is sent."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self.good: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}
        self.bad: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Produces no more."""
        self._end.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """How many records were stored."""
        return sum(map(len, self.good.values())) + sum(map(len, self.bad.values()))

    def _produce(self) -> None:
        number = 0
        while not self._end.wait(0.02):
            for _ in range(RATE // 50):
                bad = number % BAD_EVERY == 0
                self._producer.produce(
                    self._topic,
                    f"{'bad' if bad else 'good'} {number}",
                    partition=number % PARTITIONS,
                    on_delivery=partial(self._stored, self.bad if bad else self.good),
                )
                number += 1
            self._producer.poll(0)
        assert self._producer.flush(WAIT_S) == 0

    def _stored(self, where: dict[int, set[int]], error: object, message: Any) -> None:
        assert error is None
        where[message.partition()].add(message.offset())


@pytest.mark.long
async def test_workers_killed_at_random_moments_lose_and_duplicate_nothing(
    devbroker: DevBroker, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SLACKWATER_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"SLACKWATER_CHAOS_SEED={seed}")
    rng = random.Random(seed)
    name = f"chaos-{uuid4().hex[:8]}"
    file = write_group(tmp_path, devbroker.bootstrap, name, batch=rng.choice([200, 500, 1000]))
    await asyncio.to_thread(make_topics, devbroker.bootstrap, name)
    killed: Counter[str] = Counter()
    with Feed(devbroker.bootstrap, name) as feed:
        # Killed before its first commit five times in a row is no reason to give up here.
        settings = RunSettings(max_failures=1_000)
        async with Launch(file, workdir=tmp_path / "run", settings=settings) as run:
            await run.wait_until_stable(60)
            for number in range(KILLS):
                await asyncio.sleep(rng.uniform(*PAUSE_S))
                # On a busy machine most would be killed while they start.
                killed[await kill_one(run, rng, at_work=number % 3 == 0)] += 1
            await asyncio.to_thread(feed.end)
            await caught_up(run, feed)
    print(f"{feed.count} records, killed in phase: {dict(killed)}")
    assert killed["running"] >= KILLS // 4, "the kills were to hit workers at work"
    assert offsets_of(tmp_path / "out") == {p: Counter(o) for p, o in feed.good.items()}
    assert letters_of(devbroker.bootstrap, f"{name}.dlq") == {p: Counter(o) for p, o in feed.bad.items()}


def write_group(folder: Path, bootstrap: str, name: str, *, batch: int) -> Path:
    """The resource and its handler."""
    (folder / "chaos_handler.py").write_text(HANDLER)
    file = folder / "group.yaml"
    file.write_text(RESOURCE.format(name=name, bootstrap=bootstrap, batch=batch, out=folder / "out"))
    return file


def make_topics(bootstrap: str, name: str) -> None:
    """The topic and that of its dead letters."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, PARTITIONS, 1), NewTopic(f"{name}.dlq", LETTER_PARTITIONS, 1)]
    for made in admin.create_topics(wanted).values():
        made.result(WAIT_S)


async def kill_one(run: LocalRun, rng: random.Random, *, at_work: bool) -> str:
    """Ends a worker's process, whatever it is doing, or waits for one ``at_work``; gives its phase."""

    def fit() -> list[WorkerRow]:
        rows = [row for row in run.snapshot().workers if row.pid is not None]
        return [row for row in rows if row.phase == "running" or not at_work]

    async with asyncio.timeout(WAIT_S):
        while not (alive := fit()):
            await asyncio.sleep(0.01)
    victim = rng.choice(alive)
    assert victim.pid is not None
    with suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
    return victim.phase


async def caught_up(run: LocalRun, feed: Feed) -> None:
    """Waits until everything produced is committed."""
    deadline = time.monotonic() + WAIT_S
    while sum(run.snapshot().positions.values()) < feed.count:
        assert run.failure is None, run.failure
        assert time.monotonic() < deadline, f"not caught up: {run.snapshot()}"
        await asyncio.sleep(0.05)


def offsets_of(out: Path) -> dict[int, Counter[int]]:
    """How often each offset of each partition is in the Parquet."""
    table = ds.dataset(out, format="parquet").to_table(columns=["partition", "offset"])
    offsets: dict[int, Counter[int]] = {p: Counter() for p in range(PARTITIONS)}
    for partition, offset in zip(
        table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True
    ):
        offsets[partition][offset] += 1
    return offsets


def letters_of(bootstrap: str, topic: str) -> dict[int, Counter[int]]:
    """How often each source offset of each source partition is among the dead letters."""
    letters: dict[int, Counter[int]] = {p: Counter() for p in range(PARTITIONS)}
    for letter in read_topic(bootstrap, topic):
        partition, offset = letter.source
        letters[partition][offset] += 1
    return letters


@contextmanager
def reader(bootstrap: str) -> Iterator[confluent_kafka.Consumer]:
    """librdkafka's consumer, outside of any group that matters."""
    options = {"bootstrap.servers": bootstrap, "group.id": "chaos-reader", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(options)
    try:
        yield consumer
    finally:
        consumer.close()
