"""A confluent-kafka consumer as its user would write it for Kubernetes, at the settings that suit it best.

The first process of a pod, also where the consumer is Java's (`peer_java.py`); configured by its environment
(:class:`Settings`). What it does to a batch is what ours does with the engine ``python``, or ``spark`` for a
handler on Spark (`peer_spark.py`): one call of the handler with all that is there, one Parquet file for each
partition (written, synced, renamed, the folder synced), one commit of all of them, then the next.

For it, so that a rollout costs it as little as can be:

- It commits after each batch, waits for the answer, and repeats what was refused: before the next batch's
  commit, when its partitions are revoked, and at the end.
- SIGTERM: the batch in hand is finished and committed, then ``close()``: a dynamic member leaves the group at
  once, a static one stays in it (KIP-345).
- It imports everything before it joins: partitions never wait for a member that isn't ready to work. With a
  handler on Spark it has also opened the session by then, the worker's own with its settings, and has handled
  a first small batch: a surge pod of a Deployment joins warm.
- An error after which the client does not go on ends it: its container is restarted.
- Ready when it holds partitions, so that the next pod goes only then.
- ``poll`` until something is there, then ``consume`` what else is: ``consume`` alone waits for a full batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.rollouts.work import handle
from slackwater.pipeline.engines.python import table_of
from slackwater.pipeline.sinks.parquet.folder import sync_folder

POLL_S = 0.05
BATCH = 5000
PORT = 8080


class Record(NamedTuple):
    """A message with the attributes that the handler reads."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True)
class Settings:
    """From the environment variable ``PEER``, JSON. ``static``: whether its group.instance.id is the pod's
    name. ``spark_handler``: ``module:function`` that takes and gives a Spark data frame, on a local session
    with ``spark_conf``; empty: the handler in Python. ``java``: the command of Java's consumer; empty:
    confluent-kafka's."""

    bootstrap: str
    topic: str
    group: str
    sink: str
    properties: dict[str, Any]
    static: bool = False
    spark_handler: str = ""
    spark_conf: dict[str, str] = field(default_factory=dict)
    java: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Settings:
        """Raises TypeError for a field that it doesn't know."""
        return cls(**json.loads(text))


def consumer_properties(settings: Settings, pod: str) -> dict[str, Any]:
    """The consumer's configuration for the pod of that name."""
    own = {"group.instance.id": pod} if settings.static else {}
    return {
        "bootstrap.servers": settings.bootstrap,
        "group.id": settings.group,
        "client.id": pod,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 1,
        **settings.properties,
        **own,
    }


Parts = Mapping[tuple[str, int], Sequence[Record]]
"""A batch: the records of each (topic, partition), in their order."""


class Handling(Protocol):
    """How the handler is called."""

    def start(self) -> None:
        """Returns when it is warm: the next batch takes no longer than a later one."""

    def tables(self, parts: Parts) -> list[pa.Table]:
        """The handler's rows of each part, in the parts' order."""

    def close(self) -> None:
        """Ends what :meth:`start` has started."""


class PythonHandling:
    """Calls `work.handle`."""

    def start(self) -> None:
        """There is nothing to start: it has been imported."""

    def tables(self, parts: Parts) -> list[pa.Table]:
        """One call with all records."""
        rows = table_of(handle([record for part in parts.values() for record in part]), None, "work:handle")
        tables, at = [], 0
        for part in parts.values():
            tables.append(rows.slice(at, len(part)))
            at += len(part)
        return tables

    def close(self) -> None:
        """There is nothing to end."""


def handling_of(settings: Settings, pod: str) -> Handling:
    """How the peer in the pod of that name calls the handler; nothing is started yet."""
    if not settings.spark_handler:
        return PythonHandling()
    # Loaded here: a peer without Spark is to start with as few imports as before.
    from benchmarks.rollouts.peer_spark import SparkHandling
    from slackwater.pipeline.engines.spark import SparkEngine

    engine = SparkEngine(settings.spark_handler, conf=settings.spark_conf)
    return SparkHandling(engine, settings.group, pod if settings.static else "")


def consumer_of(settings: Settings, pod: str) -> Any:
    """confluent-kafka's Consumer, or one with as much of its interface as a peer needs."""
    properties = consumer_properties(settings, pod)
    if not settings.java:
        return confluent_kafka.Consumer(properties)
    from benchmarks.rollouts.peer_java import JavaConsumer

    return JavaConsumer(settings.java, properties)


class Peer:
    """One member, from its start to its end. ``ready``: whether it has had partitions."""

    def __init__(self, settings: Settings, pod: str, handling: Handling) -> None:
        self._settings, self._handling = settings, handling
        self._folder = Path(settings.sink)
        self._consumer = consumer_of(settings, pod)
        self._uncommitted: dict[tuple[str, int], int] = {}
        self._stopping = threading.Event()
        self.ready = False

    def run(self) -> None:
        """Until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())
        try:
            self._handling.start()
            say("warm")
            if not self._stopping.is_set():
                self._consume()
        finally:
            self._handling.close()
        say("closed")

    def _consume(self) -> None:
        self._consumer.subscribe(
            [self._settings.topic],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        while not self._stopping.is_set():
            messages = self._poll()
            if messages:
                self._work(messages)
            else:
                self._commit()
        say("stopping")
        self._commit()
        self._consumer.close()

    # The client carries out the (incremental) assignment itself when the callbacks have returned.

    def _assigned(self, _: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        say("assigned", partitions=[partition.partition for partition in partitions])
        self.ready = self.ready or bool(partitions)

    def _revoked(self, _: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        say("revoked", partitions=[partition.partition for partition in partitions])
        self._commit()
        self._forget(partitions)

    def _lost(self, _: Any, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        say("lost", partitions=[partition.partition for partition in partitions])
        self._forget(partitions)

    def _forget(self, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        for partition in partitions:
            self._uncommitted.pop((partition.topic, partition.partition), None)

    def _poll(self) -> list[confluent_kafka.Message]:
        first = self._consumer.poll(POLL_S)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(BATCH - 1, 0)]
        for message in messages:
            if (error := message.error()) is not None:
                say("error", what=str(error))
                if error.code() == confluent_kafka.KafkaError._FATAL:
                    raise confluent_kafka.KafkaException(error)
        return [message for message in messages if message.error() is None]

    def _work(self, messages: Sequence[confluent_kafka.Message]) -> None:
        records = [record_of(message) for message in messages]
        parts: dict[tuple[str, int], list[Record]] = {}
        for record in records:
            parts.setdefault((record.topic, record.partition), []).append(record)
        for (place, part), rows in zip(parts.items(), self._handling.tables(parts), strict=True):
            write(rows, self._folder, f"{place[0]}-{place[1]}-{part[0].offset:020d}.parquet")
        sync_folder(self._folder)
        self._uncommitted |= {place: part[-1].offset + 1 for place, part in parts.items()}
        self._commit()

    def _commit(self) -> None:
        """Commits what isn't yet. Refused in the middle of a rebalance, it is left for the next time."""
        if not self._uncommitted:
            return
        offsets = [
            confluent_kafka.TopicPartition(topic, partition, offset)
            for (topic, partition), offset in self._uncommitted.items()
        ]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException as exc:
            say("refused", why=str(exc))
        else:
            self._uncommitted.clear()


def write(rows: pa.Table, folder: Path, name: str) -> None:
    """One Parquet file, which readers see when it is whole."""
    temporary = folder / f".{name}"
    with temporary.open("wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / name)


def record_of(message: confluent_kafka.Message) -> Record:
    """Raises AssertionError for a message without a place, which a consumer doesn't give."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    value = message.value()
    return Record(topic, partition, offset, None if value is None else bytes(value))


def say(event: str, **fields: Any) -> None:
    """One line on stdout."""
    print(json.dumps({"ts_ms": time.time_ns() // 1_000_000, "event": event, **fields}), flush=True)


def serve(peer: Peer, address: str) -> None:
    """``/healthz`` and ``/readyz`` at the pod's address, from a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" or peer.ready else 503)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (as above)
            """Says nothing."""

    server = ThreadingHTTPServer((address, PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    """Raises KeyError where the environment lacks ``PEER``, ``POD_NAME`` or ``POD_IP``."""
    say("started")
    settings = Settings.of(os.environ["PEER"])
    Path(settings.sink).mkdir(parents=True, exist_ok=True)
    pod = os.environ["POD_NAME"]
    peer = Peer(settings, pod, handling_of(settings, pod))
    serve(peer, os.environ["POD_IP"])
    peer.run()


if __name__ == "__main__":
    main()
    sys.exit(0)
