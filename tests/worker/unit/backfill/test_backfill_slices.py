"""The parts of a backfill: their order, that nothing is left out, and their size."""

from __future__ import annotations

import pytest

from slackwater.backfill.slices import FIRST, LEAST, TARGET_BYTES, TARGET_MS, BackfillBatchSize, Work
from slackwater.handler import OffsetRange
from slackwater.kafka.structs import TopicPartition

P0, P1, P2 = (TopicPartition("a", number) for number in range(3))


def test_all_offsets_are_taken_once_and_all_partitions_end_together() -> None:
    work = Work({P0: OffsetRange(0, 1000), P1: OffsetRange(500, 600), P2: OffsetRange(7, 7)})
    work.advance({P0: 100})
    taken: dict[TopicPartition, list[int]] = {P0: [], P1: []}
    parts = 0
    while part := work.take(100):
        assert set(part) == {P0, P1}
        for tp, span in part.items():
            taken[tp] += range(span.start, span.end)
        work.advance({tp: span.end for tp, span in part.items()})
        parts += 1
    assert taken == {P0: list(range(100, 1000)), P1: list(range(500, 600))}
    assert (work.done, work.total) == (1100, 1100)
    assert 10 <= parts <= 11


@pytest.mark.parametrize("bad", [(P0, 0), (P1, 30_000), (P2, 29_999)], ids=str)
def test_a_record_that_each_batch_fails_with_is_taken_alone(bad: tuple[TopicPartition, int]) -> None:
    """Whatever its partition is."""
    work = Work({tp: OffsetRange(0, 30_001) for tp in (P0, P1, P2)})
    size, alone = BackfillBatchSize(1_000_000), []
    for _ in range(100):
        part = work.take(size.offsets)
        offsets = sum(span.end - span.start for span in part.values())
        fails = bad[0] in part and part[bad[0]].start <= bad[1] < part[bad[0]].end
        if fails and offsets > 1:
            size.failed(offsets)
            work.failed(part)
            continue
        alone += [part] if fails else []
        work.advance({tp: span.end for tp, span in part.items()})
        size.succeeded(offsets, 1, 1)
    assert alone == [{bad[0]: OffsetRange(bad[1], bad[1] + 1)}]
    assert work.done == work.total


def test_marks_outside_of_a_range_do_not_move_it() -> None:
    work = Work({P0: OffsetRange(10, 20), P1: OffsetRange(10, 20)})
    work.advance({P0: 5, P1: 90})
    assert work.left == {P0: OffsetRange(10, 20)}
    assert work.take(100) == {P0: OffsetRange(10, 20)}


def test_the_size_grows_up_to_the_limit_and_shrinks_with_bytes_and_time() -> None:
    size = BackfillBatchSize(1_000_000)
    assert size.offsets == FIRST
    size.succeeded(FIRST, 1, 1)
    assert size.offsets == 4 * FIRST
    for _ in range(3):
        size.succeeded(size.offsets, 1, 1)
    assert size.offsets == 1_000_000
    size.succeeded(1_000_000, 2 * TARGET_BYTES, 1)
    assert size.offsets == 500_000
    size.succeeded(500_000, 1, 5 * TARGET_MS)
    assert size.offsets == 100_000
    size.succeeded(100_000, 10**12, 1)
    assert size.offsets == LEAST
    assert BackfillBatchSize(70).offsets == 70


def test_a_batch_that_fails_is_halved_as_long_as_that_helps() -> None:
    size = BackfillBatchSize(100_000)
    assert size.can_halve(FIRST)
    size.failed(FIRST)
    assert size.offsets == FIRST // 2
    assert not size.can_halve(LEAST)


def test_a_batch_that_fails_for_its_size_is_halved_to_one_offset() -> None:
    size = BackfillBatchSize(100_000)
    size.offsets, tried = LEAST, []
    for _ in range(14):
        tried.append(size.offsets)
        size.failed(size.offsets)
    assert tried[:3] == [LEAST, LEAST // 2, LEAST // 4]
    assert tried[-1] == 1
    for _ in range(10):
        size.succeeded(size.offsets, 1, 1)
    assert size.offsets >= LEAST
