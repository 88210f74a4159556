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


def test_the_same_first_sequence_with_another_count_is_no_duplicate() -> None:
    assert refusal(states(header(0, 2)), header(0, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


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
