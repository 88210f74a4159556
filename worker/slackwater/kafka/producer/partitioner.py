"""Which partition a record goes to, as Java's producer chooses it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

Partitioner = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""``partitioner(key, all_partitions, available_partitions) -> partition``: kafka-python's interface."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """MurmurHash2 with Kafka's seed, as an unsigned 32-bit number (``Utils.murmur2`` of kafka-clients)."""
    length = len(data)
    h = _SEED ^ length
    aligned = length & ~3
    for i in range(0, aligned, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length != aligned:
        h = (h ^ int.from_bytes(data[aligned:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


@lru_cache(maxsize=65_536)
def partition_for_key(key: bytes, count: int) -> int:
    """The partition of a key among ``count``, the same as every Kafka client's default partitioner."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def next_sticky(available: Sequence[int], count: int, previous: int | None, rng: random.Random) -> int:
    """The next partition for records without a key (KIP-480); differs from ``previous`` if possible.

    ``available``: partitions that have a leader; if there are none, any of ``count`` is taken.
    """
    candidates = [p for p in (available or range(count)) if p != previous]
    if not candidates:
        return previous if previous is not None else 0
    return rng.choice(candidates)
