"""Outcomes of asynchronous commits are told in the order of the commits, whichever is known first."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

from slackwater.kafka.consumer.offsets.committer import CommitFuture, CommitQueue
from slackwater.kafka.errors import KafkaError, KafkaTimeoutError, NotCoordinatorError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

A = TopicPartition("t", 0)


def commit(offset: int) -> tuple[concurrent.futures.Future[None], CommitFuture]:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    return future, CommitFuture(future, {A: OffsetAndMetadata(offset)})


def run(queue: CommitQueue) -> None:
    while (call := queue.next_call()) is not None:
        call()


def test_callbacks_run_in_the_order_of_the_commits() -> None:
    queue = CommitQueue()
    outcomes: list[tuple[int, Any]] = []
    both = [commit(0), commit(1), commit(2)]
    for _, pending in both:
        queue.add(pending, lambda offsets, error: outcomes.append((offsets[A].offset, error)))
    both[2][0].set_result(None)
    run(queue)
    assert outcomes == []
    failure = NotCoordinatorError("gone")
    both[0][0].set_exception(failure)
    run(queue)
    assert outcomes == [(0, failure)]
    both[1][0].cancel()
    run(queue)
    assert [offset for offset, _ in outcomes] == [0, 1, 2]
    assert isinstance(outcomes[1][1], KafkaError)
    assert outcomes[2][1] is None
    assert queue.under_way() == []


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), asyncio.CancelledError()])
def test_a_callback_of_a_commit_that_raises_is_passed_over(error: BaseException) -> None:
    def fails(*_: Any) -> None:
        raise error

    future, pending = commit(1)
    outcomes: list[Any] = []
    pending.add_callback(fails).add_both(outcomes.append)
    future.set_result(None)
    assert outcomes == [None]


def test_a_commit_future_has_the_names_of_kafka_python() -> None:
    future, pending = commit(1)
    outcomes: list[Any] = []
    pending.add_callback(outcomes.append).add_errback(outcomes.append)
    assert (pending.is_done, pending.succeeded(), pending.failed(), pending.exception) == (
        False,
        False,
        False,
        None,
    )
    with pytest.raises(KafkaTimeoutError):
        pending.get(timeout=0.01)
    future.set_result(None)
    assert (pending.is_done, pending.succeeded(), pending.failed(), pending.value) == (
        True,
        True,
        False,
        None,
    )
    pending.get(timeout=0)
    future, other = commit(2)
    other.add_both(outcomes.append)
    failure = NotCoordinatorError("gone")
    future.set_exception(failure)
    assert (other.failed(), other.retriable(), other.exception) == (True, True, failure)
    with pytest.raises(NotCoordinatorError):
        other.get()
    assert outcomes == [None, failure]
