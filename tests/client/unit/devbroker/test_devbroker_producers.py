"""Sequence numbers of idempotent producers (KIP-98)."""

from __future__ import annotations

import pytest

from slackwater.devbroker.storage.producer_states import ProducerError, ProducerStates
from slackwater.kafka.records import BatchHeader, iter_batches
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.wire.rawdata import batch as make_batch


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    batch = make_batch([b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return next(iter_batches(batch))


def states(*appended: BatchHeader) -> ProducerStates:
    made = ProducerStates()
    for offset, batch in enumerate(appended):
        assert made.check(batch) is None
        made.appended(batch, 100 + offset)
    return made


def refusal(made: ProducerStates, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(ProducerError) as caught:
        made.check(batch)
    return caught.value.code


def test_a_batch_without_a_producer_is_nobodys() -> None:
    made = ProducerStates()
    batch = header(-1, producer_id=-1)
    assert made.check(batch) is None
    made.appended(batch, 0)
    assert len(made) == 0


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert states(header(500)).check(header(501)) is None


def test_a_gap_and_a_step_back_are_out_of_order() -> None:
    made = states(header(0, 3))
    assert refusal(made, header(4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(made, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert made.check(header(3)) is None


def test_the_last_five_batches_are_recognised() -> None:
    made = states(*(header(number) for number in range(6)))
    for number in range(1, 6):
        duplicate = made.check(header(number))
        assert duplicate is not None
        assert duplicate.base_offset == 100 + number
    assert refusal(made, header(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_same_first_sequence_with_another_count_is_no_duplicate() -> None:
    assert refusal(states(header(0, 2)), header(0, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_starts_at_zero_and_ends_the_old_one() -> None:
    made = states(header(0), header(1))
    assert refusal(made, header(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    first = header(0, epoch=1)
    assert made.check(first) is None
    made.appended(first, 200)
    assert refusal(made, header(2, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert made.check(header(1, epoch=1)) is None


def test_sequences_wrap_around() -> None:
    last = 2**31 - 1
    made = states(header(last - 1, 2))
    assert made.check(header(0)) is None
    crossing = states(header(last, 3))
    assert crossing.check(header(2)) is None
    assert crossing.check(header(last, 3)) is not None


def test_producers_do_not_mix() -> None:
    made = states(header(0), header(0, producer_id=8))
    assert made.check(header(1)) is None
    assert made.check(header(1, producer_id=8)) is None
