"""What other members of a group send is bounded: a member can be as hostile as a broker."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from slackwater.kafka.protocol.assignors.ownership import decode_sticky, encode_sticky
from slackwater.kafka.protocol.consumer_protocol import (
    MAX_MEMBER_BYTES,
    MemberSubscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    read_assignment,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import DecodeError, MemoryLimitError

MANY = tuple(TopicPartition(f"topic-{n % 100}", n // 100) for n in range(20_000))
FLOOD = struct.pack(">h", 1)
"""A version; behind it arrays with as many elements as bytes allow."""


def test_a_large_group_is_read() -> None:
    subscription = MemberSubscription(tuple(f"topic-{n}" for n in range(5_000)), MANY, 3)
    assert set(decode_subscription(encode_subscription(subscription)).owned) == set(MANY)
    assert set(read_assignment(encode_assignment(MANY)).partitions) == set(MANY)
    assert set(decode_sticky(encode_sticky(MANY, 4))[0]) == set(MANY)


@pytest.mark.parametrize("read", [decode_subscription, read_assignment])
def test_too_many_bytes_of_one_member_are_refused(read: Callable[[bytes], object]) -> None:
    with pytest.raises(DecodeError, match=f"{MAX_MEMBER_BYTES + 1} bytes of one member"):
        read(FLOOD + bytes(MAX_MEMBER_BYTES - 1))


def _empty_topics(count: int) -> bytes:
    """Topics without a name and without partitions: six bytes each."""
    return struct.pack(">hi", 0, count) + bytes(6 * count) + struct.pack(">i", -1)


def test_an_assignment_of_empty_topics_is_refused_before_it_is_made() -> None:
    data = _empty_topics(100_000)
    tracemalloc.start()
    with pytest.raises(MemoryLimitError, match="array of 100000"):
        read_assignment(data)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 100_000


@pytest.mark.parametrize("count", [-1, 1 << 30, (1 << 31) - 1])
def test_user_data_with_an_impossible_count_is_no_claim(count: int) -> None:
    data = struct.pack(">i", count) + bytes(1000)
    assert decode_sticky(data) == ((), -1)
    assert decode_sticky(struct.pack(">ih", 1, 1) + b"t" + data) == ((), -1)


def test_user_data_beyond_the_bound_is_no_claim() -> None:
    names = struct.pack(">i", 20_000) + bytes(6 * 20_000)
    tracemalloc.start()
    assert decode_sticky(names) == ((), -1)
    assert decode_sticky(bytes(MAX_MEMBER_BYTES + 1)) == ((), -1)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 32 * len(names) + 2 * MAX_MEMBER_BYTES
