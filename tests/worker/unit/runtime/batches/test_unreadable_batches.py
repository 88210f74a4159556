"""A batch that the client cannot read becomes a dead letter. In virtual time."""

from __future__ import annotations

import hashlib
import json

import pytest

from slackwater.runtime.fault_points import Step
from tests.support.workers.fakes import Bench, corrupt


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Died(Exception):
    """Stands for the end of the process."""


def die_at(bench: Bench, step: Step) -> None:
    def reached(at: Step) -> None:
        if at is step:
            raise Died

    bench.reached = reached
    bench.restart()


def test_it_is_one_letter_with_its_place_and_the_others_are_rows_once(bench: Bench) -> None:
    a, b = bench.produce(0, *(f"v{n}" for n in range(8))), bench.produce(1, "v0")
    bench.cluster.unreadable[a] = range(3, 6)
    bench.assign(a, b)
    bench.until_idle()
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([0, 1, 2, 6, 7], [0])
    assert bench.letters.origins() == ["flights-0@3"]
    ((_, key, value, headers),) = bench.letters.partitions[0]
    assert (key, value) == (None, b"raw")
    assert json.loads(dict(headers)["slackwater.batch"] or b"") == {
        "firstOffset": 3,
        "lastOffset": 5,
        "bytes": 3,
        "sha256": hashlib.sha256(b"raw").hexdigest(),
    }
    assert sum(batch["dead"] for batch in bench.events("batch")) == 1
    assert bench.status.stopped == []


def test_what_is_readable_when_it_is_fetched_again_is_no_letter(bench: Bench) -> None:
    a = bench.produce(0, "v0", "v1")
    bench.assign(a)
    bench.steps(1)
    bench.consumer.poll_errors.append(corrupt(a, bench.consumer.positions[a], range(2)))
    bench.until_idle()
    assert (bench.sink.rows(0), bench.letters.origins()) == ([0, 1], [])


@pytest.mark.parametrize("readable", [False, True])
def test_a_replay_stores_its_letter_once_and_its_rows_if_they_can_be_read_now(
    bench: Bench, readable: bool
) -> None:
    die_at(bench, Step.LETTERS_WRITTEN)
    a = bench.produce(0, "v0", "v1", "v2")
    bench.cluster.unreadable[a] = range(2)
    bench.assign(a)
    with pytest.raises(Died):
        bench.until_idle()
    die_at(bench, Step.COMMITTED)
    if readable:
        bench.cluster.unreadable.clear()
    bench.assign(a)
    with pytest.raises(Died):
        bench.until_idle()
    assert bench.letters.origins() == ["flights-0@0"]
    assert bench.sink.rows(0) == ([0, 1, 2] if readable else [])


@pytest.mark.parametrize("changes", [{"deadLetterTopic": None}, {}], ids=["no topic", "end unknown"])
def test_without_a_place_for_it_its_partition_alone_is_stopped(changes: dict[str, None]) -> None:
    bench = Bench(**changes)
    a, b = bench.produce(0, "v0", "v1"), bench.produce(1, "v0", "v1")
    bench.cluster.unreadable[a] = range(1, 2 if changes else 100)
    bench.assign(a, b)
    bench.steps(30)
    (stopped,) = bench.status.stopped
    assert (stopped["partition"], stopped["reason"]) == ("flights-0", "UnreadableBatch")
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([0], [0, 1])
    assert (bench.cluster.committed[a].offset, bench.letters.origins()) == (1, [])
