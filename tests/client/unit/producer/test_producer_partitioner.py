"""Keys go where every other Kafka client sends them."""

from __future__ import annotations

import random

import pytest
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from slackwater.kafka.producer.partitioner import murmur2, next_sticky, partition_for_key


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        # kafka-clients' UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_java_s_own_vectors(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


def test_any_bytes_as_kafka_python_does() -> None:
    rng = random.Random(5)
    for size in [*range(20), 1000]:
        data = rng.randbytes(size)
        assert murmur2(data) == kafka_python_murmur2(data) & 0xFFFFFFFF
        assert 0 <= partition_for_key(data, 7) < 7


def test_sticky_goes_to_another_partition_with_a_leader() -> None:
    rng = random.Random(1)
    assert {next_sticky([1, 3, 5], 6, 3, rng) for _ in range(100)} == {1, 5}
    assert next_sticky([4], 6, 4, rng) == 4
    assert {next_sticky([], 3, None, rng) for _ in range(100)} == {0, 1, 2}
