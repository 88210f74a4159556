"""Where a backfill begins and ends."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import pytest

from slackwater.backfill.bounds import bound_of, digest_of, resolve
from slackwater.handler import OffsetRange
from slackwater.kafka.structs import OffsetAndTimestamp, TopicPartition
from slackwater.runtime.errors import ConfigError

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class FakeLog:
    """Two partitions of ``a`` from 10 to 100, one of ``b`` from 0 to 50; a record a second, from time 0."""

    logs: Mapping[TopicPartition, tuple[int, int]] = {A0: (10, 100), A1: (10, 100), B0: (0, 50)}

    def beginning_offsets(self, partitions: Any) -> Mapping[TopicPartition, int]:
        return {tp: self.logs[tp][0] for tp in partitions}

    def end_offsets(self, partitions: Any) -> Mapping[TopicPartition, int]:
        return {tp: self.logs[tp][1] for tp in partitions}

    def offsets_for_times(self, times_ms: Any) -> Mapping[TopicPartition, Any]:
        offsets = {tp: max(self.logs[tp][0], -(-time // 1000)) for tp, time in times_ms.items()}
        return {
            tp: OffsetAndTimestamp(offset, offset * 1000) if offset < self.logs[tp][1] else None
            for tp, offset in offsets.items()
        }


def ranges(begins: list[str], ends: list[str]) -> dict[TopicPartition, tuple[int, int]]:
    resolved = resolve(
        FakeLog(),
        {"a": [A0, A1], "b": [B0]},
        [bound_of(text) for text in begins],
        [bound_of(t) for t in ends],
    )
    assert all(isinstance(span, OffsetRange) for span in resolved.values())
    return {tp: (span.start, span.end) for tp, span in resolved.items()}


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        (["earliest"], [], {A0: (10, 100), A1: (10, 100), B0: (0, 50)}),
        (["latest"], [], {A0: (100, 100), A1: (100, 100), B0: (50, 50)}),
        (["earliest"], ["1970-01-01T00:00:30Z"], {A0: (10, 30), A1: (10, 30), B0: (0, 30)}),
        (["1970-01-01T00:00:30.500Z"], ["latest"], {A0: (31, 100), A1: (31, 100), B0: (31, 50)}),
        (["1970-01-01T00:01:00Z"], ["1970-01-01T00:00:30Z"], {A0: (60, 60), A1: (60, 60), B0: (50, 50)}),
        (["a:0:20"], [], {A0: (20, 100)}),
        (["a:0:20", "b:0:end-5"], ["a:0:30", "b"], {A0: (20, 30), B0: (45, 45)}),
        (["a:0:20"], ["a:1970-01-01T00:00:30Z"], {A0: (20, 30)}),
        (["a"], ["a:end-50"], {A0: (10, 50), A1: (10, 50)}),
        (["a:0:100"], ["a:0:100"], {A0: (100, 100)}),
    ],
)
def test_ranges(begins: list[str], ends: list[str], expected: dict[TopicPartition, tuple[int, int]]) -> None:
    assert ranges(begins, ends) == expected


@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [
        (["a:0:20"], ["a:0:19"], "--to a:0:19 is before --from a:0:20"),
        (["a:0:9"], [], "--from a:0:9 is not in the log of a-0, which goes from 10 to 100"),
        (["a:0:20"], ["a:0:101"], "--to a:0:101 is not in the log of a-0, which goes from 10 to 100"),
        (["a:2:20"], [], "--from: a-2 does not exist: the topic has 2 partitions"),
        (["c:0:20"], [], r"--from names c, which is no topic of the group \(a, b\)"),
        (["a:0:20", "a"], [], "--from names a-0 twice"),
        (["earliest", "a:0:20"], [], "--from earliest is for all partitions: give it alone"),
        (["earliest"], ["a:0:20"], "--to has nothing for a-1, which --from has"),
        (["a:0:20"], ["a:0:30", "a:1:30"], "--to names a-1, for which --from has nothing"),
    ],
)
def test_bounds_that_are_refused(begins: list[str], ends: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ranges(begins, ends)


def test_what_is_no_bound() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="or earliest, latest, a time"):
        bound_of("a:0:")


def test_the_digest_is_of_the_texts_in_any_order() -> None:
    low, high = bound_of("a:0:20"), bound_of("a:1:20")
    assert digest_of([low, high], []) == digest_of([high, low], [])
    assert digest_of([low], [high]) != digest_of([high], [low])
