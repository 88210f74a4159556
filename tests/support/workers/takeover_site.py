"""A site for takeovers: pods, two of which may be the same member, under a steady flow of records.

Tests judge what a user would look at: the files, the handler's own log of what it was given, the committed
offsets and the group.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.support.waiting import WAIT_S, wait_until
from tests.support.workers.group_site import GroupSite, GroupTopic
from tests.support.workers.process import WorkerProcess
from tests.support.workers.takeover_worker import TakeoverKey

HANDLER = """
import json, os, signal, time

SLOW_MS = int(os.environ.get("SLOW_MS", "0"))
KILLED = os.environ.get("KILLED", "")
WRONG_ADDRESS = os.environ.get("WRONG_ADDRESS", "")
STALL_MS = int(os.environ.get("STALL_MS", "0"))
LOG = open(os.environ["HANDLED_LOG"], "a", buffering=1)


def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


if KILLED == "before the join":
    from slackwater.kafka import KafkaConsumer
    KafkaConsumer.take_over = killed
if KILLED == "after the join":
    from slackwater.runtime.telemetry.timings import TakeoverRecord
    TakeoverRecord.joined = killed
if WRONG_ADDRESS:
    from slackwater.runtime.takeover import coordinator
    Real = coordinator.TakeoverAttempt
    coordinator.TakeoverAttempt = lambda *a, **k: Real(*a, **{**k, "address": WRONG_ADDRESS})
if STALL_MS:
    from slackwater.pipeline.sinks.parquet.sink import StagedFiles
    publish = StagedFiles.publish

    def stalled(staged):
        StagedFiles.publish = publish
        time.sleep(STALL_MS / 1000)
        publish(staged)

    StagedFiles.publish = stalled


def transform(records):
    began = time.time() * 1000
    spans = {}
    for record in records:
        first, _ = spans.get(record.partition, (record.offset, 0))
        spans[record.partition] = (first, record.offset)
    if records:
        time.sleep(SLOW_MS / 1000)
    rows = [
        {"topic": r.topic, "partition": r.partition, "offset": r.offset, "text": r.value.decode()}
        for r in records
    ]
    if records:
        call = {"pod": os.environ["SLACKWATER_POD_NAME"], "began": began, "ended": time.time() * 1000}
        LOG.write(json.dumps({**call, "spans": spans}) + "\\n")
    return rows
"""


class Flow:
    """Produces to a topic evenly, from :meth:`start` to :meth:`stop`.

    The record at an offset of a partition has the text ``PARTITION:OFFSET``.
    """

    def __init__(self, topic: GroupTopic) -> None:
        self._topic = topic
        self._running = threading.Event()
        self._thread: threading.Thread | None = None
        self._errors: list[str] = []
        self.produced = 0

    def start(self, per_second: int) -> None:
        """Begins to produce so many records a second."""
        self._running.set()
        self._thread = threading.Thread(target=self._produce, args=(per_second,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the flow; everything is stored then. Raises AssertionError if something was not stored."""
        self._running.clear()
        if self._thread is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()
        assert self._errors == []

    def abandon(self) -> None:
        """Ends the flow without waiting for it."""
        self._running.clear()

    def _produce(self, per_second: int) -> None:
        topic = self._topic
        producer = confluent_kafka.Producer({"bootstrap.servers": topic.bootstrap, "linger.ms": 1})
        started_s, base = time.monotonic(), self.produced

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._errors.append(str(error))

        while self._running.is_set():
            due = base + int((time.monotonic() - started_s) * per_second)
            while self.produced < due:
                partition = self.produced % topic.partitions
                text = f"{partition}:{topic.ends[partition]}"
                producer.produce(topic.topic, text.encode(), partition=partition, on_delivery=delivered)
                topic.ends[partition] += 1
                self.produced += 1
            producer.poll(0)
            time.sleep(0.002)  # the grain of the rate
        assert producer.flush(WAIT_S) == 0


class HandlerLog:
    """What the handlers of a site were given, by their own log: a line for each call."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def calls(self) -> list[dict[str, Any]]:
        """The calls in the order of their beginning: pod, began, ended, and spans by partition."""
        lines = self.file.read_text().splitlines()
        return sorted(map(json.loads, lines), key=lambda call: call["began"])

    def handled_twice(self) -> int:
        """How many records a handler was given more than once."""
        return len(self._repeated())

    def calls_with_repeats(self) -> list[dict[str, Any]]:
        """The calls that had a record which another had, too."""
        repeated = self._repeated()
        return [
            call
            for call in self.calls()
            if any(
                (partition, offset) in repeated
                for partition, (first, last) in call["spans"].items()
                for offset in range(first, last + 1)
            )
        ]

    def _repeated(self) -> set[tuple[str, int]]:
        times: Counter[tuple[str, int]] = Counter()
        for call in self.calls():
            for partition, (first, last) in call["spans"].items():
                times.update((partition, offset) for offset in range(first, last + 1))
        return {place for place, count in times.items() if count > 1}

    def pauses_ms(self, before: str, after: str) -> dict[int, float]:
        """For each partition the time without a handler, in a takeover of the pod ``after`` from ``before``.

        From when the handler of ``before`` was done with its last record, which was not stored by then, to
        when that of ``after`` got its first.
        """
        ended: dict[int, float] = {}
        pauses: dict[int, float] = {}
        for call in self.calls():
            for name in call["spans"]:
                if call["pod"] == before:
                    ended[int(name)] = call["ended"]
                elif call["pod"] == after and int(name) in ended and int(name) not in pauses:
                    pauses[int(name)] = call["began"] - ended[int(name)]
        return pauses

    def calls_of(self, pod: str) -> int:
        """How often the handler of a pod was called so far."""
        return sum(call["pod"] == pod for call in self.calls())


class TakeoverSite(GroupSite):
    """A group whose pods take over from each other.

    Attributes:
        key: the group's key, which orders takeovers.
        flow: the steady flow of records.
        handler_log: what the handlers were given.
    """

    def __init__(
        self, bootstrap: str, folder: Path, partitions: int = 12, *, deadline_ms: int = 15_000
    ) -> None:
        super().__init__(bootstrap, folder, handler=HANDLER, partitions=partitions)
        self.deadline_ms = deadline_ms
        self.key = TakeoverKey(folder)
        self.flow = Flow(self)
        self.handler_log = HandlerLog(folder / "handled.jsonl")

    def config(self, **changes: Any) -> dict[str, Any]:
        """A pod's configuration."""
        properties = {"session.timeout.ms": "30000", "heartbeat.interval.ms": "1000"}
        takeover = {"keyFile": str(self.key.file), "deadlineMs": self.deadline_ms}
        return super().config(**{"properties": properties, "takeover": takeover, **changes})

    def start(
        self,
        ordinal: int,
        suffix: str,
        *,
        slow_ms: int = 0,
        killed: str = "",
        wrong_address: str = "",
        stall_ms: int = 0,
        **changes: Any,
    ) -> WorkerProcess:
        """Starts the pod ``g-SUFFIX-ORDINAL`` as the member ``g-ORDINAL``.

        ``slow_ms``: what its handler takes for a batch. ``killed``: where it kills itself, "before the join"
        or "after the join". ``wrong_address``: the address that it gives as its own. ``stall_ms``: how long
        its sink takes to publish its first rows.
        """
        return self.start_worker(
            f"g-{ordinal}",
            self.config(**changes),
            pod=f"g-{suffix}-{ordinal}",
            HANDLED_LOG=str(self.handler_log.file),
            SLOW_MS=str(slow_ms),
            KILLED=killed,
            WRONG_ADDRESS=wrong_address,
            STALL_MS=str(stall_ms),
        )

    def standby(
        self, ordinal: int, suffix: str, partitions: int, *, timeout_s: float = WAIT_S, **changes: Any
    ) -> WorkerProcess:
        """A pod that stands by and reads ``partitions`` partitions ahead."""
        pod = self.start(ordinal, suffix, **changes)
        pod.until_status(
            lambda status: (
                status["standby"] is not None and status["standby"]["prefetched_partitions"] == partitions
            ),
            timeout_s,
        )
        return pod

    def members(self, count: int, **changes: Any) -> list[WorkerProcess]:
        """Pods of the set ``a`` that all work, in one generation that all have been assigned.

        A pod that has its share may still be a generation behind: the follow-up of a cooperative rebalance
        gives the last member its partitions, and the others may learn of it later. By the consumer protocol a
        generation that a pod comes to need not change what it has.
        """
        pods = [self.start(ordinal, "a", **changes) for ordinal in range(count)]
        for pod in pods:
            pod.in_phase("running")
        classic = changes.get("groupProtocol") != "Consumer"
        wait_until(lambda: self._settled(pods, classic), self.why)
        return pods

    def _settled(self, pods: list[WorkerProcess], classic: bool) -> bool:
        """Whether all have their share in one generation, and have reported it."""
        statuses = [pod.status() for pod in pods]
        shares = {len(status["assignment"]) for status in statuses}
        assigned = not classic or all(pod.last("joined", "assigned") == "assigned" for pod in pods)
        generations = {status["generation"] for status in statuses}
        return assigned and shares == {self.partitions // len(pods)} and len(generations) == 1

    def until_done(self, timeout_s: float = WAIT_S) -> None:
        """Waits until everything that was produced is committed."""
        self.until_committed(timeout_s=timeout_s, why=self.why)

    def rows(self) -> Counter[str]:
        """How often each text is in the files."""
        return Counter(self.output.texts())

    def until_handled(self, pod: str, more: int = 1, timeout_s: float = WAIT_S) -> None:
        """Waits until the handler of a pod was called ``more`` times more."""
        before = self.handler_log.calls_of(pod)
        wait_until(lambda: self.handler_log.calls_of(pod) >= before + more, self.why, timeout_s)

    def check(self, *, twice: int = 0) -> None:
        """Each record is in a file, once; handlers were given at most ``twice`` records again."""
        self.flow.stop()
        self.until_done()
        expected = {f"{p}:{offset}" for p, end in self.ends.items() for offset in range(end)}
        rows = self.rows()
        assert rows.keys() >= expected, f"lost: {sorted(expected - rows.keys())[:20]}"
        assert max(rows.values(), default=1) == 1, [text for text, count in rows.items() if count > 1][:20]
        assert rows.keys() == expected
        assert self.handler_log.handled_twice() <= twice, self.handler_log.calls_with_repeats()

    def close(self) -> None:
        """Ends the flow and kills the pods that still run."""
        self.flow.abandon()
        super().close()
