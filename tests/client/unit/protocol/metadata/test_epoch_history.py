"""The leader epochs that are stored with committed offsets: those of the records before them, or none."""

from __future__ import annotations

import random

from slackwater.kafka.protocol.subscription import EpochHistory


def test_each_offset_has_the_epoch_of_the_record_before_it() -> None:
    history = EpochHistory()
    history.begin(10, 2)
    history.extend([(15, 2), (30, 4)], 20)
    assert [history.before(offset) for offset in (9, 10, 11, 15, 16, 20, 21)] == [-1, 2, 2, 2, 4, 4, -1]
    history.extend([(30, 4)], 30)
    assert (history.before(30), history.end) == (4, 30)


def test_before_anything_is_read_the_committed_epoch_is_kept() -> None:
    history = EpochHistory()
    history.begin(10, 2)
    assert [history.before(offset) for offset in (9, 10, 11)] == [-1, 2, -1]


def test_a_seek_back_keeps_what_is_known() -> None:
    history = EpochHistory()
    history.begin(10, 2)
    history.extend([(15, 2), (30, 4)], 30)
    history.begin(20, -1)
    assert [history.before(offset) for offset in (10, 15, 20, 21)] == [2, 2, 4, -1]
    history.begin(40, -1)
    assert [history.before(offset) for offset in (20, 40)] == [-1, -1]
    history.extend([(50, 5)], 50)
    assert [history.before(offset) for offset in (40, 41, 50)] == [-1, 5, 5]


def test_another_place_with_its_epoch_forgets_what_was_known() -> None:
    """A leader has said that the log was cut off: what was read behind it is gone."""
    history = EpochHistory()
    history.begin(10, 2)
    history.extend([(30, 2)], 30)
    history.begin(20, 3)
    assert [history.before(offset) for offset in (15, 20, 30)] == [-1, 3, -1]


def test_the_epoch_that_is_committed_is_learned_where_reading_began() -> None:
    history = EpochHistory()
    history.begin(10, -1)
    history.learn(11, 7)
    assert history.before(10) == -1
    history.learn(10, 3)
    history.extend([(20, 4)], 20)
    assert [history.before(offset) for offset in (10, 20)] == [3, 4]
    history.learn(10, 9)
    assert history.before(10) == 3


def test_a_gap_at_the_end_belongs_to_the_last_batch() -> None:
    history = EpochHistory()
    history.begin(0, -1)
    history.extend([(10, 1)], 12)
    assert history.before(12) == 1


def test_it_takes_bounded_memory() -> None:
    history = EpochHistory()
    history.begin(0, 0)
    for position in range(1, 10_000):
        history.extend([(position, position)], position)
    assert history.before(9_999) == 9_999
    assert len(history._ends) == 64


def test_it_agrees_with_a_list_of_all_records() -> None:
    rng = random.Random(320)
    for _ in range(200):
        history, of_record, position = EpochHistory(), {-1: 0}, 0
        history.begin(0, 0)
        epoch = 0
        for _ in range(rng.randrange(20)):
            epochs = []
            for _ in range(rng.randrange(1, 3)):
                epoch += rng.randrange(2)
                count = rng.randrange(1, 4)
                of_record |= {position + n: epoch for n in range(count)}
                position += count
                epochs.append((position, epoch))
            history.extend(epochs, position)
            if rng.random() < 0.2:
                position = rng.randrange(position + 1)
                epoch = of_record[position - 1]
                history.begin(position, -1)
            assert history.before(position) == of_record[position - 1]
        assert all(history.before(at) == of_record[at - 1] for at in range(1, position + 1))
