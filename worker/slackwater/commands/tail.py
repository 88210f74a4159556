"""``slackwater tail``: prints records of topics, the last ones or from a position on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from slackwater.commands.arguments import whole_number
from slackwater.commands.connection import CommandClients, add_options
from slackwater.commands.display import terminal
from slackwater.kafka.structs import TopicPartition
from slackwater.tools.positions import spans_of
from slackwater.tools.record_text import iso_time, printable, text_or_hex
from slackwater.tools.starts import SYNTAX, Start, start_of

if TYPE_CHECKING:
    from rich.text import Text

    from slackwater.kafka import ConsumerRecord, KafkaConsumer

DEFAULT_LAST = 10
_POLL_MS = 500
_IDLE_POLLS = 20
"""So many polls in a row without a record of a log that has some: what is left are no records."""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tail",
        help="print the last records of topics, or those from a position on",
        description="Prints records; joins no group and commits nothing. Without a position, the last "
        f"{DEFAULT_LAST} of each partition.",
    )
    add_options(parser)
    parser.add_argument("starts", nargs="+", metavar=SYNTAX, type=_start_of, help="where to begin")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as records come")
    parser.add_argument(
        "--limit", type=whole_number(1), default=None, metavar="N", help="print at most N records"
    )
    parser.add_argument(
        "--output",
        choices=("text", "json", "value"),
        default="text",
        help="text: position, time, key and value; value: as it was sent (default: text)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code. Raises KafkaError, ConfigError, StartError."""
    console = terminal() if args.output == "text" else None

    def print_record(record: ConsumerRecord) -> None:
        line = line_of(record, args.output)
        if console is None:
            print(line, flush=args.follow)
            return
        place, time, rest = line.split("  ", 2)
        console.print(_styled(place, time, rest), soft_wrap=True)

    with CommandClients(args).consumer() as consumer:
        spans = spans_of(consumer, args.starts)
        for number, record in enumerate(records(consumer, spans, follow=args.follow)):
            if args.limit is not None and number >= args.limit:
                break
            print_record(record)
    return 0


def _start_of(text: str) -> Start:
    return start_of(text if ":" in text else f"{text}:end-{DEFAULT_LAST}")


def records(
    consumer: KafkaConsumer, spans: dict[TopicPartition, tuple[int, int]], *, follow: bool
) -> Iterator[ConsumerRecord]:
    """The records of ``spans``, or with ``follow`` all from their starts on, as they come."""
    left = {tp: end for tp, (start, end) in spans.items() if follow or start < end}
    if not left:
        return
    assigned = list(left)
    consumer.assign(assigned)
    for tp in assigned:
        consumer.seek(tp, spans[tp][0])
    idle = 0
    while left and (follow or idle < _IDLE_POLLS):
        polled = consumer.poll(_POLL_MS)
        idle = 0 if polled else idle + 1
        for tp, batch in polled.items():
            yield from (record for record in batch if follow or record.offset < left.get(tp, 0))
        if not follow:
            left = {tp: end for tp, end in left.items() if consumer.position(tp) < end}
            consumer.pause(*(tp for tp in assigned if tp not in left))


def _styled(place: str, time: str, rest: str) -> Text:
    from rich.text import Text

    return Text.assemble((place, "cyan"), "  ", (time, "dim"), "  ", rest)


def line_of(record: ConsumerRecord, output: str) -> str:
    """The line for a record."""
    key, value = text_or_hex(record.key), text_or_hex(record.value)
    if output == "value":
        return value or ""
    if output == "json":
        headers = [[name, text_or_hex(content)] for name, content in record.headers]
        return json.dumps(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp,
                "key": key,
                "value": value,
                "headers": headers,
            }
        )
    shown = "null" if value is None else printable(value)
    position = f"{record.topic}:{record.partition}:{record.offset}"
    return f"{position}  {iso_time(record.timestamp)}  {'-' if key is None else printable(key)}  {shown}"
