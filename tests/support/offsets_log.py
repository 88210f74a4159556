"""Every offset that a group ever committed, in the order in which the broker stored them.

Read from the topic `__consumer_offsets` itself: it does not depend on what a client saw of its answer.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import NamedTuple

from tests.support.librdkafka.topic_reading import read_topic

TOPIC = "__consumer_offsets"


class Commit(NamedTuple):
    """One stored commit; ``place``: (partition of the log, offset in it)."""

    offset: int
    place: tuple[int, int]


def committed_over_time(bootstrap: str, group: str) -> dict[tuple[str, int], list[Commit]]:
    """(topic, partition) -> its commits in their order. The log must not have been compacted yet."""
    found: dict[tuple[str, int], list[Commit]] = defaultdict(list)
    for record in read_topic(bootstrap, TOPIC):
        where = _key(record.key or b"")
        if where is not None and where[0] == group and record.value is not None:
            found[where[1:]].append(Commit(_offset(record.value), (record.partition, record.offset)))
    return found


def _key(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition of an offset's key (versions 0 and 1); None: another kind of record."""
    if len(key) < 2 or int.from_bytes(key[:2], "big") > 1:
        return None
    texts, at = [], 2
    for _ in range(2):
        size = int.from_bytes(key[at : at + 2], "big")
        texts.append(key[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return texts[0], texts[1], int.from_bytes(key[at : at + 4], "big")


def _offset(value: bytes) -> int:
    """The offset in a value of any version: it stands behind the version."""
    offset: int = struct.unpack_from(">q", value, 2)[0]
    return offset
