"""``slackwater try``: runs a group's handler on real records, and writes nothing.

It reads through a consumer without a group: no member joins, no offset is committed, no table is opened.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater.commands.arguments import whole_number
from slackwater.commands.display import ProgressLines, print_table
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.delivery.pace import FIRST_RECORDS
from slackwater.runtime.errors import EXIT_HANDLER_OR_SINK, EXIT_OK, ConfigError
from slackwater.tools import clients
from slackwater.tools.group_config import add_options, config_of
from slackwater.tools.positions import spans_of
from slackwater.tools.record_text import plain, printable, shortened, text_or_hex
from slackwater.tools.starts import SYNTAX, Start, start_of

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka import KafkaConsumer
    from slackwater.kafka.records import RecordColumns
    from slackwater.runtime.delivery.dead_letters import Letter

ShowProgress = Callable[[int, int, str], None]

DEFAULT_LIMIT = 100
MOST = 100_000
MOST_BYTES = 1024**3
"""The most records of a run, and bytes in them: they are all in memory."""
MOST_VALUE = 200
"""Characters of a dead letter's value."""
SHOWN = 20
"""How many rows, and how many dead letters, a terminal shows without ``--all``."""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "try",
        help="run a group's handler on real records, and write nothing",
        description="Reads records of the brokers, runs the group's handler on them and prints the result. "
        "It joins no group, commits nothing and writes to no table.",
    )
    add_options(parser)
    parser.add_argument(
        "--from",
        dest="starts",
        action="append",
        required=True,
        metavar=SYNTAX,
        type=start_of,
        help="where to begin: an offset, the log's start (the default), N records before its end, or a time; "
        "without a partition in each one. Several times for several topics or partitions",
    )
    parser.add_argument(
        "--limit",
        type=whole_number(1, MOST),
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"how many records to read of all partitions together (default: {DEFAULT_LIMIT})",
    )
    parser.add_argument(
        "--output",
        type=_output,
        default="table",
        metavar="table|json|FILE.arrow",
        help="table (the default), one JSON document, or an Arrow IPC file of the rows beside the counts",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"print all rows and dead letters on a terminal, too, which shows the first {SHOWN} of each",
    )
    parser.set_defaults(run=run)


def _output(text: str) -> str:
    if text not in ("table", "json") and not text.endswith(".arrow"):
        raise argparse.ArgumentTypeError(f"must be table, json or a file FILE.arrow, not {text!r}")
    return text


@dataclass(frozen=True)
class Tried:
    """What came out. ``rows``: as a new table holds them. ``tables``: of a group with several, the rows of
    each, by its name. ``read_ms``, ``handler_ms``: how long it took."""

    records: Mapping[TopicPartition, RecordColumns]
    rows: pa.Table
    tables: Mapping[str, pa.Table]
    letters: list[tuple[TopicPartition, Letter]]
    read_ms: float
    handler_ms: float

    @property
    def count(self) -> int:
        """How many records were read."""
        return sum(len(part) for part in self.records.values())

    @property
    def dropped(self) -> int | None:
        """How many records have neither a row nor a dead letter; None: rows do not tell their records."""
        if "offset" not in self.rows.column_names:
            return None
        places = zip(*(self.rows[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        with_row = {((topic, partition), offset) for topic, partition, offset in places}
        with_row |= {((tp.topic, tp.partition), letter.offset) for tp, letter in self.letters}
        return self.count - len(with_row)


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 0, or 4 where a worker would end for want of a dead-letter topic.

    Raises WorkerError with the code of a worker for the same error, and KafkaError.
    """
    config = config_of(arguments)
    with ProgressLines(bar_only=True) as lines:
        tried = try_handler(config, arguments.starts, arguments.limit, lines.progress)
    most = SHOWN if sys.stdout.isatty() and not arguments.all else MOST
    if arguments.output == "json":
        print(json.dumps(_document(tried)))
    else:
        if arguments.output == "table":
            for name, rows in tried.tables.items():
                print(f"{name}:")
                _print_rows(rows, most)
            if not tried.tables:
                _print_rows(tried.rows, most)
        else:
            _write(tried.rows, Path(arguments.output))
        _print_summary(tried, most)
    if tried.letters and not config.dead_letter_topic:
        why = "no deadLetterTopic is configured: a worker would end with code 4 at the first dead letter"
        print(why, file=sys.stderr)
        return EXIT_HANDLER_OR_SINK
    return EXIT_OK


def try_handler(config: WorkerConfig, starts: list[Start], limit: int, progress: ShowProgress) -> Tried:
    """Reads up to ``limit`` records and runs the handler on them.

    Args:
        config: the group's configuration.
        starts: where to begin.
        limit: how many records to read.
        progress: is told how many records of how many were read, then handled.

    Raises:
        WorkerError: as of a worker.
        KafkaError: the brokers cannot be reached, or refuse.
    """
    clock = SYSTEM_CLOCK
    began = clock.mono_ms()
    clients.check_reachable(config)
    consumer = clients.reader(config)
    try:
        records = _read(consumer, starts, limit, progress)
    finally:
        consumer.close()
    read_ms = clock.mono_ms() - began
    from slackwater.pipeline import make_engine, rows_by_table
    from slackwater.pipeline.trial import Trial
    from slackwater.runtime.config.pipeline_config import several_tables
    from slackwater.runtime.startup import warm_up

    engine = make_engine(config)
    try:
        engine.start()
        warm_up(engine, config.handler)
        began = clock.mono_ms()
        trial = Trial(
            engine, config.handler, group_id=config.group_id, instance="try", by_record=config.by_record
        )
        rows, letters = _handle(trial, records, min(FIRST_RECORDS, config.max_poll_records), progress)
        handler_ms = clock.mono_ms() - began
        tables = rows_by_table(config, rows) if several_tables(config) else {}
        return Tried(records, rows, tables, letters, read_ms, handler_ms)
    finally:
        engine.close()


def _read(
    consumer: KafkaConsumer, starts: list[Start], limit: int, progress: ShowProgress
) -> dict[TopicPartition, RecordColumns]:
    from slackwater.kafka.records import concat
    from slackwater.runtime.delivery.log_reading import read_log

    spans = spans_of(consumer, starts)
    read: dict[TopicPartition, RecordColumns] = {}
    size = done = 0
    shares = _shares({tp: end - start for tp, (start, end) in spans.items()}, limit)
    total = sum(shares.values())
    for tp, share in shares.items():
        start, end = spans[tp]
        parts: list[RecordColumns] = []
        for columns in read_log(consumer, tp, start, end, SYSTEM_CLOCK, share):
            parts.append(columns.slice(0, share))
            share -= len(parts[-1])
            done += len(parts[-1])
            progress(done, total, "read")
            size += parts[-1].to_arrow(tp.topic, tp.partition).nbytes
            if size > MOST_BYTES:
                raise ConfigError(
                    f"the records have more than {MOST_BYTES} bytes: give a smaller --limit than {limit}"
                )
            if not share:
                break
        if parts:
            read[tp] = concat(parts)
    return read


def _shares(sizes: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """How many records to read of each partition: equally many, but no more than it has."""
    shares: dict[TopicPartition, int] = {}
    left = limit
    for done, (tp, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        shares[tp] = min(size, left // (len(sizes) - done))
        left -= shares[tp]
    return {tp: shares[tp] for tp in sorted(shares) if shares[tp]}


def _handle(
    trial: Any, records: Mapping[TopicPartition, RecordColumns], most: int, progress: ShowProgress
) -> tuple[pa.Table, list[tuple[TopicPartition, Letter]]]:
    """Batches of at most ``most`` records, whose rows go into one table."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    letters: list[tuple[TopicPartition, Letter]] = []
    done, total = 0, sum(map(len, records.values()))
    for batch in _batches(records, most):
        outcome = trial.run(batch, schema=tables[-1].schema if tables else None)
        letters += outcome.letters
        if outcome.fitted.num_rows:
            tables.append(outcome.fitted)
        done += sum(map(len, batch.values()))
        progress(done, total, "handled")
    if not tables:
        tables.append(trial.run({}).fitted)
    return pa.concat_tables(tables, promote_options="default"), letters


def _batches(
    records: Mapping[TopicPartition, RecordColumns], most: int
) -> Iterator[dict[TopicPartition, RecordColumns]]:
    batch: dict[TopicPartition, RecordColumns] = {}
    room = most
    for tp, columns in records.items():
        at = 0
        while at < len(columns):
            batch[tp] = columns.slice(at, at + room)
            at += len(batch[tp])
            room -= len(batch[tp])
            if not room:
                yield batch
                batch, room = {}, most
    if batch:
        yield batch


# -- what is printed -----------------------------------------------------------------------------------------


def _document(tried: Tried) -> dict[str, Any]:
    return {
        "rows": [plain(row) for row in tried.rows.to_pylist()],
        "deadLetters": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": letter.offset,
                "error": letter.error,
                "key": text_or_hex(letter.key),
                "value": text_or_hex(letter.value),
            }
            for tp, letter in tried.letters
        ],
        "read": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "records": len(part),
                "first": part.first_offset,
                "next": part.next_offset,
            }
            for tp, part in tried.records.items()
        ],
        "counts": {
            "records": tried.count,
            "rows": tried.rows.num_rows,
            "deadLetters": len(tried.letters),
            "dropped": tried.dropped,
            **(
                {"tables": {name: rows.num_rows for name, rows in tried.tables.items()}}
                if tried.tables
                else {}
            ),
        },
        "ms": {"read": round(tried.read_ms), "handler": round(tried.handler_ms)},
    }


def _print_rows(rows: pa.Table, most: int) -> None:
    if not rows.num_rows:
        return
    print_table(rows.column_names, [list(row.values()) for row in rows.slice(0, most).to_pylist()])
    _say_left_out(rows.num_rows - most, "rows")
    print()


def _say_left_out(count: int, what: str) -> None:
    if count > 0:
        print(f"and {count} more {what}; --all prints them")


def _write(rows: pa.Table, file: Path) -> None:
    import pyarrow as pa

    try:
        with pa.OSFile(str(file), "wb") as out, pa.ipc.new_file(out, rows.schema) as writer:
            writer.write_table(rows)
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror or exc}", file=str(file)) from exc
    print(f"{rows.num_rows} rows are in {file}")


def _print_summary(tried: Tried, most: int) -> None:
    for tp, letter in tried.letters[:most]:
        value = text_or_hex(letter.value)
        print(f"dead letter {tp} offset {letter.offset}: {printable(letter.error)}")
        print(f"  value: {'null' if value is None else shortened(printable(value), MOST_VALUE)}")
    _say_left_out(len(tried.letters) - most, "dead letters")
    for tp, part in tried.records.items():
        print(f"read {tp} from offset {part.first_offset} up to {part.next_offset}: {len(part)}")
    dropped = "" if tried.dropped is None else f", records without a row: {tried.dropped}"
    print(f"records: {tried.count}, rows: {tried.rows.num_rows}, dead letters: {len(tried.letters)}{dropped}")
    print(f"reading took {tried.read_ms:.0f} ms, the handler {tried.handler_ms:.0f} ms")
