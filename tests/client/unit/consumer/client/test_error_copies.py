"""Errors copy and pickle with all they say, whatever their constructors take: also out of a process pool."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from slackwater.kafka import errors, records
from slackwater.kafka.net import RequestTimeoutError
from slackwater.kafka.net.connection import TlsFailure
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import DecodeError, ErrorCode

AT = TopicPartition("t", 3)
SPECIAL: list[Exception] = [
    errors.CommitFailedError(),
    errors.OffsetOutOfRangeNoResetError({AT: 7}),
    errors.LogTruncationError({AT: 7}, {AT: None}),
    errors.RecordDeserializationError(AT, 7, "value", key=b"k", value=b"v", headers=[("h", None)], why="no"),
    errors.KafkaTimeoutError("not in time"),
    RequestTimeoutError("not answered"),
    TlsFailure("no TLS", ValueError("why")),
    records.CorruptBatchError(7, "cut off"),
    records.UnsupportedRecordFormatError("magic 9"),
    DecodeError("too short"),
]
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


def said(error: Exception) -> tuple[Any, ...]:
    attributes = {name: str(value) for name, value in vars(error).items()}
    return type(error), str(error), error.args, attributes, getattr(error, "retriable", None)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("error", SPECIAL, ids=lambda error: type(error).__name__)
def test_a_copy_says_what_the_error_says(error: Exception, how: str) -> None:
    assert said(COPIES[how](error)) == said(error)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_every_broker_error_says_the_same(how: str) -> None:
    for code in [*ErrorCode, 9999]:
        if code == ErrorCode.NONE:
            continue
        error = errors.for_code(int(code), "of t-0", api="Fetch")
        made = COPIES[how](error)
        assert said(made) == said(error)
        assert (made.code, made.name) == (error.code, error.name)
