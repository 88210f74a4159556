"""Reads a request to rewind."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from slackwater.kafka.structs import TopicPartition
from slackwater.tools.starts import Start, rewind_start_of

CHECK_MS = 300_000
"""How long the check of a rewind may take, including the image pull."""
START_MS = 300_000
"""How long the rewind's pod may take to start, while no worker runs."""
RUN_MS = 3_600_000
"""How long a rewind may take: it may write large files anew."""


class RequestError(ValueError):
    """A request that cannot be carried out. The message says what is wrong."""


def arguments_of(request: str) -> tuple[str, ...]:
    """The starts of a request, as `slackwater rewind` takes them.

    A word that begins with # makes a request another one than before, and names nothing.

    Raises:
        RequestError: the request has none.
    """
    words = tuple(word for word in request.split() if not word.startswith("#"))
    if not words:
        raise RequestError("it names no partition: write it as flights:3:4200, several separated by spaces")
    return words


def check_request(
    request: str, partitions: Sequence[TopicPartition], ends: Mapping[TopicPartition, int]
) -> None:
    """Checks a request against what was observed of the topics.

    Args:
        request: the annotation's value.
        partitions: the partitions of the group's topics.
        ends: their end offsets, where known.

    Raises:
        RequestError: it cannot be carried out.
    """
    by_topic: dict[str, set[int]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, set()).add(tp.partition)
    chosen: set[TopicPartition] = set()
    for word in arguments_of(request):
        try:
            start = rewind_start_of(word)
        except argparse.ArgumentTypeError as error:
            raise RequestError(str(error)) from None
        for tp in _partitions(start, by_topic):
            if tp in chosen:
                raise RequestError(f"{tp} is named twice: give one start for each partition")
            chosen.add(tp)
            end = ends.get(tp)
            if start.offset is not None and end is not None and start.offset > end:
                raise RequestError(f"{word}: the log of {tp} ends at offset {end}; name an earlier offset")


def _partitions(start: Start, by_topic: Mapping[str, set[int]]) -> list[TopicPartition]:
    numbers = by_topic.get(start.topic)
    if numbers is None:
        raise RequestError(
            f"the group does not read the topic {start.topic}; its topics: {', '.join(sorted(by_topic))}"
        )
    if start.partition is None:
        return [TopicPartition(start.topic, number) for number in sorted(numbers)]
    if start.partition not in numbers:
        raise RequestError(
            f"{start.topic}-{start.partition} does not exist: the topic has {len(numbers)} partitions"
        )
    return [TopicPartition(start.topic, start.partition)]
