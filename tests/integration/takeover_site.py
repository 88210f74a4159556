"""Workers in pods of their own, two of which may be the same member, under a steady flow of records.

What is judged is what a user would look at: the files, the handler's own record of what it was given, the
committed offsets and the group.
"""

from __future__ import annotations

import http.client
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic

from slackwater.kafka import KafkaAdmin
from slackwater.kafka.admin.results import GroupDescription
from slackwater.runtime.takeover.signing import ANSWER_HEADER, check_answer, sign_request
from tests.support.workers.process import WorkerProcess
from tests.support.workers.takeover_worker import target_at

HANDLER = """
import json, os, signal, time

SLOW_MS = int(os.environ.get("SLOW_MS", "0"))
KILLED = os.environ.get("KILLED", "")
WRONG_ADDRESS = os.environ.get("WRONG_ADDRESS", "")
LOG = open(os.environ["HANDLED_LOG"], "a", buffering=1)


def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


if KILLED == "before the join":
    from slackwater.kafka import KafkaConsumer
    KafkaConsumer.take_over = killed
if KILLED == "after the join":
    from slackwater.runtime.telemetry.takeover_timings import TakeoverRecord
    TakeoverRecord.joined = killed
if WRONG_ADDRESS:
    from slackwater.runtime.takeover import coordinator
    Real = coordinator.TakeoverAttempt
    coordinator.TakeoverAttempt = lambda *a, **k: Real(*a, **{**k, "address": WRONG_ADDRESS})


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
        told = {"pod": os.environ["SLACKWATER_POD_NAME"], "began": began, "ended": time.time() * 1000}
        LOG.write(json.dumps({**told, "spans": spans}) + "\\n")
    return rows
"""


class Pod(WorkerProcess):
    """A worker's process under a pod's name."""

    def __init__(
        self, folder: Path, member: str, pod: str, config: dict[str, Any], **environment: str
    ) -> None:
        self.member, self.pod = member, pod
        super().__init__(
            folder / pod,
            member,
            config,
            SLACKWATER_POD_NAME=pod,
            SLACKWATER_HEALTH_HOST="127.0.0.1",
            HANDLED_LOG=str(folder / "handled.jsonl"),
            **environment,
        )

    @property
    def port(self) -> int:
        """Of its endpoints."""
        return int(self.until("started")["port"])

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"127.0.0.1:{self.port}"

    def status(self) -> dict[str, Any]:
        """Its /status."""
        document: dict[str, Any] = json.loads(self.ask("GET", "/status"))
        return document

    def until_status(
        self, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 60
    ) -> dict[str, Any]:
        """Its /status as soon as ``condition`` holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                status = self.status()
            except OSError as exc:
                raise AssertionError(self.why("")) from exc
            if condition(status):
                return status
            assert time.monotonic() < deadline, f"{status}\n{self.why('')}"
            time.sleep(0.02)

    def in_phase(self, phase: str) -> dict[str, Any]:
        """Its /status as soon as it is in a phase now, not once before."""
        return self.until_status(lambda status: status["phase"] == phase)

    def phases(self) -> list[str]:
        """All phases so far."""
        return [one["phase"] for one in self.named("phase")]


class TakeoverSite:
    """A topic with a steady flow, a group's pods, and its key."""

    def __init__(
        self, bootstrap: str, folder: Path, partitions: int = 12, *, deadline_ms: int = 15_000
    ) -> None:
        self.bootstrap, self.folder, self.partitions = bootstrap, folder, partitions
        self.deadline_ms = deadline_ms
        name = f"t{uuid4().hex[:8]}"
        self.topic, self.group = name, f"g-{name}"
        self.out = folder / "out"
        (folder / "handlers").mkdir()
        (folder / "handlers" / "flow_handler.py").write_text(HANDLER)
        self.key = secrets.token_bytes(32)
        self.key_file = folder / "key"
        self.key_file.write_text(self.key.hex() + "\n")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        made = admin.create_topics([NewTopic(self.topic, partitions, replication_factor=1)])
        made[self.topic].result(60)
        self.pods: list[Pod] = []
        self.produced = 0
        self.ends = dict.fromkeys(range(partitions), 0)
        self._flowing = threading.Event()
        self._flow: threading.Thread | None = None
        self._failed: list[str] = []

    # ---- records

    def flow(self, per_second: int) -> None:
        """Begins to produce, evenly, until :meth:`ebb`."""
        self._flowing.set()
        self._flow = threading.Thread(target=self._produce, args=(per_second,), daemon=True)
        self._flow.start()

    def _produce(self, per_second: int) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})
        began, base = time.monotonic(), self.produced

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._failed.append(str(error))

        while self._flowing.is_set():
            due = base + int((time.monotonic() - began) * per_second)
            while self.produced < due:
                partition = self.produced % self.partitions
                text = f"{partition}:{self.ends[partition]}"
                producer.produce(self.topic, text.encode(), partition=partition, on_delivery=delivered)
                self.ends[partition] += 1
                self.produced += 1
            producer.poll(0)
            time.sleep(0.002)
        assert producer.flush(60) == 0

    def ebb(self) -> None:
        """Ends the flow; all of it is stored then."""
        self._flowing.clear()
        if self._flow is not None:
            self._flow.join(90)
            assert not self._flow.is_alive()
        assert self._failed == []

    # ---- pods

    def config(self, **changes: Any) -> dict[str, Any]:
        return {
            "groupId": self.group,
            "topics": [self.topic],
            "bootstrapServers": self.bootstrap,
            "properties": {"session.timeout.ms": "30000", "heartbeat.interval.ms": "1000"},
            "handler": "flow_handler:transform",
            "handlerPath": [str(self.folder / "handlers")],
            "engine": "python",
            "sink": {"format": "parquet", "path": str(self.out)},
            "takeover": {"keyFile": str(self.key_file), "deadlineMs": self.deadline_ms},
            **changes,
        }

    def start(
        self,
        ordinal: int,
        suffix: str,
        *,
        slow_ms: int = 0,
        killed: str = "",
        wrong_address: str = "",
        **changes: Any,
    ) -> Pod:
        """The pod ``g-a-0`` is the member ``g-0``. ``killed``: "before the join" or "after the join".
        ``wrong_address``: where it says that it answers.
        """
        made = Pod(
            self.folder,
            f"g-{ordinal}",
            f"g-{suffix}-{ordinal}",
            self.config(**changes),
            SLOW_MS=str(slow_ms),
            KILLED=killed,
            WRONG_ADDRESS=wrong_address,
        )
        self.pods.append(made)
        return made

    def standby(self, ordinal: int, suffix: str, partitions: int, **changes: Any) -> Pod:
        """A pod that stands by, and reads so many partitions ahead."""
        made = self.start(ordinal, suffix, **changes)
        made.until_status(
            lambda status: (
                status["standby"] is not None and status["standby"]["prefetched_partitions"] == partitions
            )
        )
        return made

    def members(self, count: int, **changes: Any) -> list[Pod]:
        """Pods of the set ``a`` that all work, in one generation that all have been assigned.

        Who has its share may still be a generation behind: the follow-up of a cooperative rebalance gives the
        last member its partitions, and the others may hear of that later.
        """
        pods = [self.start(ordinal, "a", **changes) for ordinal in range(count)]
        for pod in pods:
            pod.until_status(lambda status: status["phase"] == "running")
        pods[0].until_status(lambda _: self._settled(pods))
        return pods

    def _settled(self, pods: list[Pod]) -> bool:
        """Whether all have their share in one generation, and have said so."""
        seen = [pod.status() for pod in pods]
        shares = {len(status["assignment"]) for status in seen}
        told = all(pod.last("joined", "assigned") == "assigned" for pod in pods)
        return told and shares == {self.partitions // len(pods)} and len({s["generation"] for s in seen}) == 1

    def order(
        self, pod: Pod, predecessor: Pod | None, *, key: bytes | None = None
    ) -> tuple[int, dict[str, Any]]:
        """POST /takeover; the answer's signature is checked."""
        address = predecessor.address if predecessor is not None else ""
        body = json.dumps({"predecessor": address}).encode()
        nonce = secrets.token_hex(16)
        used = key or self.key
        now_ms, target = int(time.time() * 1000), target_at(pod.port)
        signed = sign_request(used, "POST", "/takeover", body, now_ms=now_ms, nonce=nonce, target=target)
        connection = http.client.HTTPConnection("127.0.0.1", pod.port, timeout=60)
        try:
            connection.request("POST", "/takeover", body, {"Authorization": signed})
            answer = connection.getresponse()
            told = answer.read()
            if key is None:
                assert check_answer(used, nonce, answer.status, told, answer.getheader(ANSWER_HEADER, ""))
            return answer.status, json.loads(told)
        finally:
            connection.close()

    def group_now(self) -> GroupDescription:
        """DescribeGroups."""
        with KafkaAdmin(self.bootstrap) as admin:
            return admin.describe_groups([self.group]).unwrap()[self.group]

    # ---- what came of it

    def until_done(self, timeout_s: float = 60) -> None:
        """Waits until all that was produced is committed."""
        deadline = time.monotonic() + timeout_s
        with KafkaAdmin(self.bootstrap) as admin:
            while True:
                found = admin.committed_offsets(self.group)
                at = {tp.partition: offset.offset for tp, offset in found.items()}
                if {p: at.get(p, 0) for p in self.ends} == self.ends:
                    return
                assert time.monotonic() < deadline, (at, self.ends, [pod.why("") for pod in self.pods])
                time.sleep(0.05)

    def rows(self) -> Counter[str]:
        """The rows of all files."""
        found: Counter[str] = Counter()
        for file in self.out.glob("*.parquet"):
            found.update(pq.read_table(file, columns=["text"]).column("text").to_pylist())
        return found

    def handled(self) -> list[dict[str, Any]]:
        """What the handlers were given, call by call."""
        lines = (self.folder / "handled.jsonl").read_text().splitlines()
        return sorted(map(json.loads, lines), key=lambda call: call["began"])

    def handled_twice(self) -> int:
        """How many records a handler was given more than once."""
        seen: Counter[tuple[str, int]] = Counter()
        for call in self.handled():
            for partition, (first, last) in call["spans"].items():
                seen.update((partition, offset) for offset in range(first, last + 1))
        return sum(1 for times in seen.values() if times > 1)

    def pauses_ms(self, before: str, after: str) -> dict[int, float]:
        """For each partition: from when the handler of the pod ``before`` was done with its last record,
        which was not stored by then, to when that of ``after`` got its first.
        """
        ended: dict[int, float] = {}
        pauses: dict[int, float] = {}
        for call in self.handled():
            for name in call["spans"]:
                if call["pod"] == before:
                    ended[int(name)] = call["ended"]
                elif call["pod"] == after and int(name) in ended and int(name) not in pauses:
                    pauses[int(name)] = call["began"] - ended[int(name)]
        return pauses

    def check(self, *, twice: int = 0) -> None:
        """Each record is in a file, once; handlers were given at most ``twice`` records again."""
        self.ebb()
        self.until_done()
        expected = {f"{p}:{offset}" for p, end in self.ends.items() for offset in range(end)}
        rows = self.rows()
        assert rows.keys() >= expected, f"lost: {sorted(expected - rows.keys())[:20]}"
        assert max(rows.values(), default=1) == 1, [text for text, count in rows.items() if count > 1][:20]
        assert rows.keys() == expected
        assert self.handled_twice() <= twice

    def until_handled(self, pod: str, more: int = 1, timeout_s: float = 60) -> None:
        """Waits until the handler of a pod was called so many times more."""
        deadline = time.monotonic() + timeout_s
        before = sum(call["pod"] == pod for call in self.handled())
        while sum(call["pod"] == pod for call in self.handled()) < before + more:
            assert time.monotonic() < deadline, [one.why("") for one in self.pods]
            time.sleep(0.02)

    def close(self) -> None:
        self._flowing.clear()
        for pod in self.pods:
            pod.__exit__(None, None, None)
