"""What happens to a worker at random, in virtual time: rebalances, refused commits, drains, new records."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from slackwater.kafka.errors import CommitFailedError, KafkaTimeoutError
from slackwater.kafka.structs import TopicPartition
from tests.support.workers.fakes import Bench


def seeds(quick: int, all_of_them: int) -> list[object]:
    """So many seeds of a test; those after the first ``quick`` are long."""
    return [
        *range(quick),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(quick, all_of_them)),
    ]


def disturb(
    bench: Bench,
    rng: random.Random,
    partitions: Sequence[TopicPartition],
    values: Callable[[int], list[str]],
) -> None:
    """Lets a worker that has ``partitions`` go through a random number of events, then read to the end.
    ``values``: of so many new records. Raises AssertionError if an offset is committed whose rows are not in
    the table."""
    generation = 1
    for _ in range(rng.randrange(5, 60)):
        bench.steps(rng.randrange(1, 6))
        tp = rng.choice(partitions)
        event = rng.randrange(7)
        if event == 0 and tp in bench.consumer.positions:
            leave = rng.choice([bench.consumer.revoke, bench.consumer.lose])
            bench.consumer.at_poll.append(partial(leave, tp))
            bench.steps(1)
        elif event == 1 and tp not in bench.consumer.positions:
            generation += 1
            bench.assign(tp, generation=generation)
            bench.steps(1)
        elif event == 2:
            bench.consumer.commit_errors.append(rng.choice([CommitFailedError(), KafkaTimeoutError("slow")]))
        elif event == 3:
            bench.produce(tp.partition, *values(rng.randrange(5)))
        elif event == 4:
            bench.delivery.drain(rng.choice([1, 200, 5_000]))
            bench.delivery.release()
        for partition, at in bench.cluster.committed.items():
            written = bench.sink.table_marks.get((partition, ""), 0)
            assert at.offset <= written, "committed, and not in the table"
    missing = [tp for tp in partitions if tp not in bench.consumer.positions]
    bench.assign(*missing, generation=generation + 1)
    bench.until_idle(5_000)
