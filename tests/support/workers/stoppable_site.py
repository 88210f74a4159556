"""Workers of a group as processes that can be stopped and continued, and what they wrote, seen from outside.

Records are produced in known numbers; the handler rejects some. In the end each record is a row or a dead
letter, once, as other people's libraries read them.
"""

from __future__ import annotations

import http.client
import json
import secrets
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import confluent_kafka
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from slackwater.kafka import KafkaAdmin
from slackwater.runtime.fault_points import VARIABLE
from slackwater.runtime.takeover.signing import sign_request
from tests.support.peers.librdkafka import read_topic
from tests.support.workers.process import WorkerProcess
from tests.support.workers.takeover_worker import target_at

PARTITIONS = 4
LETTER_PARTITIONS = 2
BAD_EVERY = 7
PATIENCE_S = 120.0
HANDLER = """
def transform(records):
    for record in records:
        text = record.value.decode()
        row = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "text": text}
        yield {**row, "_error": "is bad" if text.startswith("bad") else None}
"""


class StoppablePod(WorkerProcess):
    """The pod ``g-a-0`` is the member ``g-0``."""

    def __init__(
        self, folder: Path, member: str, pod: str, config: dict[str, Any], stop_at: str = ""
    ) -> None:
        self.member, self.pod = member, pod
        super().__init__(
            folder,
            member,
            config,
            SLACKWATER_POD_NAME=pod,
            SLACKWATER_HEALTH_HOST="127.0.0.1",
            **{VARIABLE: stop_at},
        )

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel has it stopped (proc(5))."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def until_stopped(self) -> None:
        """Waits until it has stopped itself."""
        wait_until(lambda: self.is_stopped or not self.runs, lambda: self.why("stopped"))
        assert self.runs, self.why("stopped")

    def until_phase(self, phase: str) -> None:
        """Waits until it is in a phase now."""

        def there() -> bool:
            phases = self.named("phase")
            assert self.runs, self.why(phase)
            return bool(phases) and phases[-1]["phase"] == phase

        wait_until(there, lambda: self.why(phase))

    def stop(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)


def wait_until(
    condition: Callable[[], bool], why: Callable[[], object], timeout_s: float = PATIENCE_S
) -> None:
    """Returns when ``condition`` holds; AssertionError with ``why`` where it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


class StoppableSite:
    """A topic, its dead letters, a folder for the output and the pods of one group; ends them when left."""

    def __init__(self, bootstrap: str, folder: Path, *, session_ms: int = 6_000) -> None:
        self.bootstrap, self.folder, self.session_ms = bootstrap, folder, session_ms
        name = f"s{uuid4().hex[:8]}"
        self.topic, self.letters_topic, self.group = name, f"{name}.dlq", f"g-{name}"
        self.out = folder / "out"
        (folder / "handlers").mkdir(parents=True)
        (folder / "handlers" / "stop_handler.py").write_text(HANDLER)
        self.key = secrets.token_bytes(32)
        self.key_file = folder / "key"
        self.key_file.write_text(self.key.hex() + "\n")
        self.pods: list[StoppablePod] = []
        self.good: Counter[str] = Counter()
        self.bad: Counter[str] = Counter()
        self._stored: dict[tuple[int, int], str] = {}
        """The records of the topic as it is now, by partition and offset."""
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """Where each record was stored, also in topics that are deleted by now."""
        self._rewound: set[str] = set()
        """Those that somebody has had delivered again."""
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._create(NewTopic(self.topic, PARTITIONS, 1), NewTopic(self.letters_topic, LETTER_PARTITIONS, 1))
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.pods:
            pod.__exit__(None, None, None)

    # ---- records and pods

    @property
    def produced(self) -> int:
        """How many records there are."""
        return self.good.total() + self.bad.total()

    def produce(self, count: int) -> None:
        """Stores ``count`` records, evenly over the partitions."""

        def stored(error: object, message: Any) -> None:
            assert error is None, error
            text = message.value().decode()
            (self.bad if text.startswith("bad") else self.good)[text] += 1
            self._stored[message.partition(), message.offset()] = text
            self._places[text].append((message.partition(), message.offset()))

        first = self.produced
        for number in range(first, first + count):
            text = f"{'bad' if number % BAD_EVERY == 0 else 'good'} {number}"
            self._producer.produce(self.topic, text, partition=number % PARTITIONS, on_delivery=stored)
        assert self._producer.flush(60) == 0

    def config(self) -> dict[str, Any]:
        """A pod's configuration."""
        return {
            "groupId": self.group,
            "topics": [self.topic],
            "bootstrapServers": self.bootstrap,
            "properties": {"session.timeout.ms": str(self.session_ms), "heartbeat.interval.ms": "500"},
            "handler": "stop_handler:transform",
            "handlerPath": [str(self.folder / "handlers")],
            "engine": "python",
            "sink": {"format": "parquet", "path": str(self.out)},
            "deadLetterTopic": self.letters_topic,
            "takeover": {"keyFile": str(self.key_file), "deadlineMs": 2_000},
        }

    def start(self, ordinal: int, suffix: str = "a", stop_at: str = "") -> StoppablePod:
        """Starts the pod ``g-SUFFIX-ORDINAL``."""
        folder = self.folder / f"{suffix}-{ordinal}-{len(self.pods)}"
        pod = StoppablePod(folder, f"g-{ordinal}", f"g-{suffix}-{ordinal}", self.config(), stop_at)
        self.pods.append(pod)
        return pod

    def order(self, pod: StoppablePod, predecessor: StoppablePod) -> int:
        """POST /takeover: the status of the answer."""
        address = f"127.0.0.1:{predecessor.until('started')['port']}"
        body = json.dumps({"predecessor": address}).encode()
        now_ms, nonce = int(time.time() * 1000), secrets.token_hex(16)
        target = target_at(pod.until("started")["port"])
        signed = sign_request(self.key, "POST", "/takeover", body, now_ms=now_ms, nonce=nonce, target=target)
        connection = http.client.HTTPConnection("127.0.0.1", pod.until("started")["port"], timeout=60)
        try:
            connection.request("POST", "/takeover", body, {"Authorization": signed})
            return connection.getresponse().status
        finally:
            connection.close()

    # ---- what came of it

    def is_done(self) -> bool:
        """Whether all that was produced is committed."""
        return self.committed() == self._ends()

    def until_done(self) -> None:
        """Waits until it is."""
        wait_until(
            self.is_done,
            lambda: f"{self.committed()}: " + "\n".join(pod.why("") for pod in self.pods),
        )

    def committed(self) -> dict[int, int]:
        """The group's offsets by partition."""
        with KafkaAdmin(self.bootstrap) as admin:
            return {tp.partition: at.offset for tp, at in admin.committed_offsets(self.group).items()}

    def _ends(self) -> dict[int, int]:
        return dict(Counter(partition for partition, _ in self._stored))

    # ---- what an administrator does, with no worker in the group

    def until_empty(self) -> None:
        """Waits until the group has no member, after all workers have ended."""

        def state() -> str:
            with KafkaAdmin(self.bootstrap) as admin:
                return admin.describe_groups([self.group]).unwrap()[self.group].state

        wait_until(lambda: state() in ("Empty", "Dead"), state)

    def rewind(self, partition: int, share: float) -> None:
        """Sets the committed offset of a partition back, to ``share`` of what it is."""
        committed = self.committed().get(partition, 0)
        offset = int(committed * share)
        self._commit({partition: offset})
        self._rewound |= {text for (p, at), text in self._stored.items() if p == partition and at >= offset}

    def recreate(self) -> None:
        """Deletes the topic and creates it again, and has the group begin at the new one's start. Only when
        all of the old one is delivered."""
        self._admin.delete_topics([self.topic])[self.topic].result(60)
        wait_until(
            lambda: self.topic not in self._admin.list_topics(timeout=60).topics, lambda: "it is not deleted"
        )
        self._create(NewTopic(self.topic, PARTITIONS, 1))
        self._stored.clear()
        self._commit(dict.fromkeys(range(PARTITIONS), 0))

    def _create(self, *topics: NewTopic) -> None:
        for made in self._admin.create_topics(list(topics)).values():
            made.result(60)

    def _commit(self, offsets: dict[int, int]) -> None:
        partitions = [confluent_kafka.TopicPartition(self.topic, p, at) for p, at in offsets.items()]
        asked = confluent_kafka.ConsumerGroupTopicPartitions(self.group, partitions)
        errors: list[Any] = []

        def stored() -> bool:
            """A coordinator hears of a new topic a little later than the one who created it."""
            (changed,) = self._admin.alter_consumer_group_offsets([asked]).values()
            errors[:] = [tp.error for tp in changed.result(60).topic_partitions if tp.error is not None]
            unknown = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
            assert all(error.code() == unknown for error in errors), errors
            return not errors

        wait_until(stored, lambda: errors)

    # ---- what there is

    def rows(self) -> Counter[str]:
        """How often each record is in the files, as pyarrow reads the folder."""
        if not any(self.out.glob("*.parquet")):
            return Counter()
        return Counter(ds.dataset(self.out, format="parquet").to_table(columns=["text"])["text"].to_pylist())

    def letters(self) -> Counter[str]:
        """How often each record is among the dead letters, as librdkafka reads them."""
        letters = read_topic(self.bootstrap, self.letters_topic)
        return Counter((letter.value or b"").decode() for letter in letters)

    def differences(self) -> list[str]:
        """A line for each record that is lost, or whose rows or dead letters are too many, but for those that
        somebody has had delivered again: where it was stored, and where it is now."""
        return [*self._differing_rows(), *self._differing_letters()]

    def _differing_rows(self) -> Iterator[str]:
        places: dict[str, list[str]] = defaultdict(list)
        for file in sorted(self.out.glob("*.parquet")):
            table = pq.read_table(file, columns=["text", "partition", "offset"])
            for row in table.to_pylist():
                places[row["text"]].append(
                    f"partition {row['partition']} offset {row['offset']} in {file.name}"
                )
        return self._differing("rows", self.good, places)

    def _differing_letters(self) -> Iterator[str]:
        places: dict[str, list[str]] = defaultdict(list)
        for letter in read_topic(self.bootstrap, self.letters_topic):
            partition, offset = letter.source
            at = f"{self.letters_topic}-{letter.partition} offset {letter.offset}"
            places[(letter.value or b"").decode()].append(f"partition {partition} offset {offset} at {at}")
        return self._differing("dead letters", self.bad, places)

    def _differing(self, what: str, wanted: Counter[str], places: dict[str, list[str]]) -> Iterator[str]:
        for text in sorted(wanted.keys() | places.keys()):
            count, there = wanted[text], places.get(text, [])
            if len(there) != count and not (len(there) > count and text in self._rewound):
                stored = ", ".join(f"partition {p} offset {o}" for p, o in self._places.get(text, []))
                found = "; ".join(there) or "nowhere"
                yield f"{text!r}, stored at {stored or 'no place'}: {len(there)} {what} for {count}: {found}"

    def difference(self) -> tuple[int, int, int]:
        """How many records are lost, how many rows and letters are too many, and how many were written again
        because somebody has set the group's offsets back."""
        lost = doubled = again = 0
        for wanted, found in ((self.good, self.rows()), (self.bad, self.letters())):
            lost += (wanted - found).total()
            more = found - wanted
            asked = sum(count for text, count in more.items() if text in self._rewound)
            doubled, again = doubled + more.total() - asked, again + asked
        return lost, doubled, again

    def check(self) -> None:
        """Each record is a row or a dead letter, once."""
        rows, letters = self.rows(), self.letters()
        assert not self.good - rows, f"lost: {self.good - rows}"
        assert not rows - self.good, f"rows too many: {rows - self.good}"
        assert not self.bad - letters, f"letters lost: {self.bad - letters}"
        assert not letters - self.bad, f"letters too many: {letters - self.bad}"
