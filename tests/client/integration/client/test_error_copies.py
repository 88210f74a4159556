"""Errors that are raised in another process."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from slackwater.kafka import errors
from slackwater.kafka.structs import TopicPartition

AT = TopicPartition("t", 3)


def _fails(offset: int) -> None:
    raise errors.RecordDeserializationError(AT, offset, "key", key=b"k")


def test_an_error_comes_out_of_a_process_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(errors.RecordDeserializationError, match="offset 7 of t-3") as raised:
            pool.submit(_fails, 7).result()
        assert (raised.value.topic_partition, raised.value.offset, raised.value.key) == (AT, 7, b"k")
        assert pool.submit(abs, -1).result() == 1
