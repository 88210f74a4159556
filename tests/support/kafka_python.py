"""How kafka-python's consumer wants to be handled. Imports nothing of it, so that any process can have it."""

from __future__ import annotations

import time
from typing import Any, TypeVar

C = TypeVar("C")
_PATIENCE_S = 60.0


def knowing(consumer: C, *topics: str) -> C:
    """``consumer``, a ``kafka.KafkaConsumer`` of a group, once it knows the partitions of ``topics``.

    To be called before its first ``poll()``. Without it kafka-python (3.0.12) joins before it has asked for
    its topics, gives itself nothing as the leader, and joins again when their metadata is there. When a
    ``poll(timeout_ms)`` ends during that second join, which takes a loaded machine and a short timeout, the
    member is lost: its background task still sends the assignment, and by that
    (``ConsumerCoordinator._perform_assignment``) makes ``need_rejoin()`` false, so that no later ``poll()``
    takes up the answer of the Sync, and the heartbeat stays switched off. It reads nothing from then on, and
    its session runs out. Seen in the request log: Join, Sync, Metadata, Join, Sync, and no Heartbeat or
    OffsetFetch after that. A join for any other reason is taken up again.

    Raises :class:`AssertionError` when a topic has no partitions for a minute.
    """
    asked: Any = consumer
    deadline = time.monotonic() + _PATIENCE_S
    for topic in topics:
        # Asks the cluster, and waits for the answer, as long as it knows none.
        while not asked.partitions_for_topic(topic):
            assert time.monotonic() < deadline, f"kafka-python knows no partitions of {topic}"
            time.sleep(0.05)
    return consumer
