"""How many records a batch may have: as many as fit the time that it is to take."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from slackwater.runtime.delivery.pace import FIRST_RECORDS, BatchSize

TARGET_MS = 1_000
MOST_RECORDS, MOST_BYTES = 500_000, 32 * 1024 * 1024


@pytest.fixture
def size() -> BatchSize:
    return BatchSize(TARGET_MS, MOST_RECORDS, MOST_BYTES)


def settle(size: BatchSize, fixed_ms: float, per_record_ms: float, record_bytes: int = 100) -> list[int]:
    """The limits while batches are full, one after another."""
    limits = []
    for _ in range(12):
        limits.append(size.records)
        size.committed(size.records, size.records * record_bytes, fixed_ms + size.records * per_record_ms)
    return limits


def test_it_grows_to_what_fits_the_time_at_most_fourfold_a_batch(size: BatchSize) -> None:
    limits = settle(size, fixed_ms=100, per_record_ms=0.009)
    assert limits[0] == FIRST_RECORDS
    assert all(after <= 4 * before for before, after in pairwise(limits))
    assert limits[-1] == pytest.approx(100_000, rel=0.01)


@pytest.mark.parametrize("per_record_ms", [2, 5_000])
def test_time_makes_no_batch_smaller_than_the_first(size: BatchSize, per_record_ms: float) -> None:
    """But for one of half the size, after which it is known that smaller ones are shorter."""
    assert settle(size, 0, per_record_ms) == [FIRST_RECORDS, FIRST_RECORDS // 2, *[FIRST_RECORDS] * 10]


def test_a_batch_that_is_long_whatever_its_size_grows(size: BatchSize) -> None:
    """As where a table's files are written anew with each: a smaller one would be hardly shorter, and each of
    the records would cost more. They get half of the target on top."""
    assert settle(size, fixed_ms=2_500, per_record_ms=0.01)[-1] == pytest.approx(50_000, rel=0.01)
    assert settle(size, fixed_ms=100, per_record_ms=0.01)[-1] == pytest.approx(90_000, rel=0.01)
    assert settle(size, fixed_ms=2_500, per_record_ms=1)[-1] == FIRST_RECORDS


def test_it_stays_near_where_times_vary(size: BatchSize) -> None:
    rng, records = random.Random(1), 0
    for number in range(200):
        of_records_ms = size.records * 0.01
        assert number < 10 or of_records_ms < 3 * TARGET_MS
        records += size.records
        size.committed(size.records, 0, rng.uniform(0.8, 1.25) * (2_500 + of_records_ms))
    assert 20_000 < records / 200 < 120_000


def test_it_falls_again_when_batches_take_longer(size: BatchSize) -> None:
    settle(size, fixed_ms=100, per_record_ms=0.009)
    limits = settle(size, fixed_ms=100, per_record_ms=0.09)
    assert limits[-1] == pytest.approx(10_000, rel=0.02)


def test_large_records_are_bounded_in_bytes(size: BatchSize) -> None:
    limits = settle(size, fixed_ms=1, per_record_ms=0.0001, record_bytes=10_000)
    assert limits[-1] == MOST_BYTES // 10_000


def test_small_ones_are_bounded_in_number(size: BatchSize) -> None:
    assert settle(size, fixed_ms=1, per_record_ms=0.0001, record_bytes=10)[-1] == MOST_RECORDS


def test_a_property_of_the_consumer_bounds_the_first_batch_too() -> None:
    assert BatchSize(TARGET_MS, 50, MOST_BYTES).records == 50


def test_a_batch_that_is_not_full_says_nothing_of_larger_ones(size: BatchSize) -> None:
    settle(size, fixed_ms=100, per_record_ms=0.009)
    before = size.records
    size.committed(3, 300, 110)  # its rate would be 27 records a second
    assert size.records == before
    size.committed(0, 0, 5)  # all of its partitions were given up
    assert size.records == before


def test_one_that_took_too_long_does(size: BatchSize) -> None:
    settle(size, fixed_ms=100, per_record_ms=0.009)
    size.committed(30_000, 3_000_000, 3_000)
    assert size.records == 10_000


def test_after_a_batch_that_was_too_large_the_next_has_half_and_then_slowly_more(size: BatchSize) -> None:
    size.too_large(4_000)
    assert size.records == 2_000
    limits = settle(size, fixed_ms=1, per_record_ms=0.0001)
    assert all(before < after <= before * 9 / 8 + 1 for before, after in pairwise(limits))
    size.too_large(1)
    assert size.records == 1
    for _ in range(10):
        limits = settle(size, fixed_ms=1, per_record_ms=0.0001)
    assert limits[-1] > FIRST_RECORDS


def test_large_records_make_a_batch_smaller_than_the_first(size: BatchSize) -> None:
    size.committed(FIRST_RECORDS, FIRST_RECORDS * 100_000, 500)
    assert size.records == MOST_BYTES // 100_000


def test_after_a_failure_it_begins_anew(size: BatchSize) -> None:
    settle(size, fixed_ms=100, per_record_ms=0.009)
    size.failed()
    assert size.records == FIRST_RECORDS
    size.committed(FIRST_RECORDS, FIRST_RECORDS * 100_000, 500)
    size.failed()
    assert size.records == MOST_BYTES // 100_000, "it does not grow by that"
