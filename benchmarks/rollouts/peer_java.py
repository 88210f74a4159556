"""Java's consumer for a peer: tests/support/java/Peer.java as a child, with confluent-kafka's interface."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import confluent_kafka

JAVAS_NAMES = {"fetch.wait.max.ms": "fetch.max.wait.ms"}
"""librdkafka's name of a property -> Java's."""
MAX_POLL_RECORDS = 5000
END = "closed"
Listener = Callable[[Any, Sequence[confluent_kafka.TopicPartition]], None]


class JavaRecord(NamedTuple):
    """What a peer reads of a confluent-kafka Message."""

    place: tuple[str, int, int]
    number: int

    def error(self) -> None:
        """There is none: Java's consumer raises, and that ends its process."""

    def topic(self) -> str:
        """The topic."""
        return self.place[0]

    def partition(self) -> int:
        """The partition."""
        return self.place[1]

    def offset(self) -> int:
        """The offset."""
        return self.place[2]

    def value(self) -> bytes:
        """The record's number, without the blanks that follow it."""
        return str(self.number).encode()


class JavaConsumer:
    """``command``: runs the program, without its arguments. ``properties``: librdkafka's.

    Each method raises RuntimeError when the program has ended before :meth:`close`.
    """

    def __init__(self, command: Sequence[str], properties: Mapping[str, Any]) -> None:
        named = {JAVAS_NAMES.get(name, name): value for name, value in properties.items()}
        named["max.poll.records"] = MAX_POLL_RECORDS
        self._command, self._properties = command, [f"{name}={value}" for name, value in named.items()]
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._batch: list[JavaRecord] = []

    def subscribe(
        self, topics: Sequence[str], *, on_assign: Listener, on_revoke: Listener, on_lost: Listener
    ) -> None:
        """Starts the program, which joins the group."""
        [self._topic] = topics
        self._listeners = {"assigned": on_assign, "revoked": on_revoke, "lost": on_lost}
        self._process = subprocess.Popen(
            [*self._command, self._topic, "", *self._properties],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def poll(self, timeout_s: float) -> JavaRecord | None:
        """The first record of a batch, if one is there within the time; calls the listeners."""
        try:
            self._take(self._events.get(timeout=timeout_s))
        except queue.Empty:
            return None
        return self._batch.pop(0) if self._batch else None

    def consume(self, count: int, timeout_s: float) -> list[JavaRecord]:
        """The rest of the batch, however many."""
        batch, self._batch = self._batch, []
        return batch

    def commit(self, offsets: Sequence[confluent_kafka.TopicPartition], asynchronous: bool) -> None:
        """Has the program commit the batch in hand, and waits for the answer. What was refused is left to
        the next batch of the partition."""
        self._say("handled")
        while self._take(self._events.get()) not in ("committed", "refused"):
            pass

    def close(self) -> None:
        """Leaves the group; a batch that has been read and not handled is dropped."""
        self._say("close")
        while self._take(self._events.get()) != END:
            pass

    def _take(self, event: Mapping[str, Any]) -> str:
        kind: str = event["event"]
        if kind == "failed":
            raise RuntimeError(f"Java's consumer has ended: {event['why']}")
        if kind in self._listeners:
            partitions = [
                confluent_kafka.TopicPartition(self._topic, number) for number in event["partitions"]
            ]
            self._listeners[kind](self, partitions)
        elif kind == "read":
            self._batch = [
                JavaRecord((self._topic, int(partition), offset), number)
                for partition, records in event["records"].items()
                for offset, number in records
            ]
        return kind

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put({"event": "failed", "why": "no more output"})
