"""``slackwater produce``: sends the lines of the standard input as records."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, BinaryIO

from slackwater.commands.arguments import separator, topic_name, whole_number
from slackwater.commands.connection import CommandClients, add_options
from slackwater.commands.display import ProgressLines
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import ConfigError
from slackwater.tools.topics import described, no_partition

if TYPE_CHECKING:
    from slackwater.kafka import KafkaProducer
    from slackwater.kafka.producer.batch import FutureRecordMetadata

_MOST_PENDING = 10_000
"""So many records may be under way; then the oldest is waited for."""
_MOST_LINE = 1024 * 1024
_SHOWN_EVERY = 1_000
"""So many records are sent between two updates of the count on a terminal."""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "produce",
        help="send the lines of the standard input as records",
        description="Sends each line of the standard input as the value of a record, without its line end.",
    )
    add_options(parser)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC", help="an existing topic")
    parser.add_argument(
        "--key-separator",
        type=separator,
        metavar="TEXT",
        help="separates the key from the value in each line (default: records without keys)",
    )
    parser.add_argument(
        "--partition", type=whole_number(), metavar="N", help="send all records to this partition"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code. Raises KafkaError, ConfigError."""
    connection = CommandClients(args)
    with connection.admin() as admin:  # a producer would wait for a topic that does not exist
        partitions = described(admin, [args.topic])[args.topic].partitions
    if args.partition is not None and args.partition not in partitions:
        raise ConfigError(no_partition(TopicPartition(args.topic, args.partition), len(partitions)))
    with connection.producer() as producer, ProgressLines(bar_only=True) as lines:
        count = send(producer, sys.stdin.buffer, args.topic, args.key_separator, args.partition, lines)
    print(f"sent {count} records to {args.topic}")
    return 0


def send(
    producer: KafkaProducer,
    source: BinaryIO,
    topic: str,
    separator: str | None,
    partition: int | None,
    progress: ProgressLines,
) -> int:
    """Sends each line of ``source``, and waits until they are stored. Returns how many.

    Raises:
        ConfigError: a line has no ``separator``, or is too long; the lines before it are sent.
        KafkaError: a record could not be stored.
    """
    pending: deque[FutureRecordMetadata] = deque()
    count = 0
    while line := source.readline(_MOST_LINE + 1):
        value = line.removesuffix(b"\n").removesuffix(b"\r")
        key = None
        problem = ""
        if len(value) > _MOST_LINE:
            problem = f"has more than {_MOST_LINE} bytes"
        elif separator is not None:
            key, given, value = value.partition(separator.encode())
            problem = "" if given else f"has no key: it lacks {separator!r}"
        if problem:
            _finish(pending)
            raise ConfigError(f"line {count + 1} {problem}; the lines before it were sent")
        pending.append(producer.send(topic, value, key, partition=partition))
        count += 1
        if count % _SHOWN_EVERY == 0:
            progress.progress(count, 0, f"{count:,} records sent")
        if len(pending) >= _MOST_PENDING:
            pending.popleft().get()
    producer.flush()
    _finish(pending)
    return count


def _finish(pending: deque[FutureRecordMetadata]) -> None:
    while pending:
        pending.popleft().get()
