"""A group of several workers, and a load on it, for the tests of LocalRun."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from slackwater.kafka import KafkaAdmin, KafkaProducer
from tests.support.workers.local_run_site import LocalRunSite

PARTITIONS = 6


def group_of_workers(
    bootstrap: str,
    folder: Path,
    *,
    replicas: int = 3,
    strategy: str = "Restart",
    preflight: bool = True,
    protocol: str = "Classic",
) -> LocalRunSite:
    """A ConsumerGroup with so many workers, and its topic, both new."""
    site = LocalRunSite(bootstrap, folder, partitions=PARTITIONS)
    site.change('session.timeout.ms: "10000"', 'session.timeout.ms: "60000"')
    if protocol == "Consumer":
        join_by_consumer_protocol(site)
    rollout = f"{{strategy: {strategy}, preflight: {{enabled: {str(preflight).lower()}}}}}"
    site.change("replicas: 1", f"replicas: {replicas}\n  rollout: {rollout}")
    site.group.create_topic()
    with KafkaAdmin(bootstrap) as admin:
        admin.wait_for_topic(site.name, PARTITIONS)
    return site


def join_by_consumer_protocol(site: LocalRunSite) -> None:
    """Changes the file; `LocalRun.roll` makes it so."""
    site.change('session.timeout.ms: "60000", heartbeat.interval.ms: "500", ', "")
    site.change("    properties:", "    groupProtocol: Consumer\n    properties:")


class Feed:
    """Produces without end in a thread; leaving the context ends it. `count`: how many were produced."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.count = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _produce(self) -> None:
        with KafkaProducer(bootstrap_servers=self._bootstrap) as producer:
            while not self._end.wait(0.5):
                for _ in range(4 * PARTITIONS):
                    producer.send(self._topic, value=b"x" * 64, partition=self.count % PARTITIONS)
                    self.count += 1
                producer.flush()
