"""Tasks of a query, and ends of a stream's batches."""

from __future__ import annotations

import random

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import TopicOffsetRange
from slackwater.pipeline.datasource.planning import limited, split
from tests.pipeline.unit.datasource.fakes import ORDERS


def part(start: int, stop: int, number: int = 0) -> TopicOffsetRange:
    return TopicOffsetRange(TopicPartition("orders", number), start, stop, "id")


def test_one_task_a_partition_and_none_for_an_empty_one() -> None:
    assert split([part(0, 9), part(5, 5, 1), part(7, 3, 2)], 1) == [part(0, 9)]


def test_a_large_partition_is_cut_into_pieces() -> None:
    assert split([part(0, 90), part(0, 10, 1)], 5) == [
        part(0, 18), part(18, 36), part(36, 54), part(54, 72), part(72, 90), part(0, 10, 1),
    ]  # fmt: skip


def test_no_piece_is_empty() -> None:
    assert split([part(4, 6)], 10) == [part(4, 5), part(5, 6)]


@pytest.mark.parametrize("seed", range(30))
def test_pieces_are_the_ranges_and_at_least_as_many_as_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    ranges = [part(start, start + rng.randrange(200), n) for n in range(4) for start in [rng.randrange(99)]]
    least = rng.randrange(1, 40)
    pieces = split(ranges, least)
    offsets = sum(whole.stop - whole.start for whole in ranges)
    assert len(pieces) >= min(least, offsets)
    for whole in ranges:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        covered = [offset for piece in own for offset in range(piece.start, piece.stop)]
        assert covered == list(range(whole.start, whole.stop))
        sizes = [piece.stop - piece.start for piece in own]
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_limit_is_shared_by_what_each_partition_has() -> None:
    starts, latest = {ORDERS[0]: 100, ORDERS[1]: 0}, {ORDERS[0]: 1000, ORDERS[1]: 100}
    assert limited(starts, latest, 100) == {ORDERS[0]: 190, ORDERS[1]: 10}
    assert limited(starts, latest, 1000) == latest


def test_a_small_partition_gets_on_below_any_limit() -> None:
    starts, latest = {ORDERS[0]: 0, ORDERS[1]: 5}, {ORDERS[0]: 1_000_000, ORDERS[1]: 6}
    assert limited(starts, latest, 10) == {ORDERS[0]: 9, ORDERS[1]: 6}
    assert limited(starts, latest, 1) == {ORDERS[0]: 1, ORDERS[1]: 6}


def test_a_partition_without_news_stays() -> None:
    starts, latest = {ORDERS[0]: 0, ORDERS[1]: 7}, {ORDERS[0]: 50, ORDERS[1]: 7}
    assert limited(starts, latest, 10) == {ORDERS[0]: 10, ORDERS[1]: 7}
