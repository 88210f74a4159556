"""``slackwater dlq``: lists a group's dead letters, shows them, and sends their records again."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater.commands.arguments import topic_name, whole_number
from slackwater.commands.display import ProgressLines, print_table
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import ConfigError
from slackwater.tools import clients
from slackwater.tools.group_config import add_options, config_of
from slackwater.tools.letter_counts import COLUMNS, MOST_ERROR, LetterCounts
from slackwater.tools.letters import LetterLog, Selection, StoredLetter, letter_of
from slackwater.tools.record_text import iso_time, printable, shortened, text_or_hex
from slackwater.tools.replay import Replay, ledgers_of
from slackwater.tools.starts import time_of
from slackwater.tools.topics import no_topic

if TYPE_CHECKING:
    from slackwater.kafka import KafkaConsumer

DEFAULT_SHOWN = 10
_SHOWN_EVERY = 1_000
"""So many letters are read between two updates of the count on a terminal."""
MOST_CHARACTERS = 10_000
"""Of a key, a value or a header as it is shown."""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "dlq",
        help="list and show dead letters, and send their records again",
        description="Works with the letters that a group has written to its dead-letter topic.",
    )
    commands = parser.add_subparsers(dest="dlq_command", metavar="COMMAND", required=True)
    _add(commands, "list", "count dead letters by topic, partition and error", _list, output=True)
    show = _add(commands, "show", "show dead letters", _show, output=True)
    show.add_argument(
        "--limit",
        type=whole_number(1),
        default=DEFAULT_SHOWN,
        metavar="N",
        help=f"(default: {DEFAULT_SHOWN})",
    )
    replay = _add(commands, "replay", "send the records of dead letters again, each once", _replay)
    replay.add_argument("--all", action="store_true", help="all letters of the group; instead of a selection")
    replay.add_argument(
        "--to", type=topic_name, metavar="TOPIC", help="where to send to (default: each record's own topic)"
    )
    replay.add_argument(
        "--timestamp",
        choices=("original", "now"),
        default="original",
        help="which time the records get (default: original)",
    )
    replay.add_argument(
        "--limit", type=whole_number(1), default=None, metavar="N", help="send at most so many"
    )
    replay.add_argument("--again", action="store_true", help="send also what a replay has sent before")
    replay.add_argument("--dry-run", action="store_true", help="only count what would be sent")


def _add(commands: Any, name: str, text: str, run: Any, *, output: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text.capitalize()}."
    )
    add_options(parser)
    chosen = parser.add_argument_group("selection", "Without any of these, all letters of the group.")
    chosen.add_argument("--topic", help="the rejected record's topic")
    chosen.add_argument(
        "--partition", type=whole_number(), metavar="N", help="the rejected record's partition"
    )
    chosen.add_argument(
        "--offset",
        type=whole_number(),
        action="append",
        default=[],
        metavar="N",
        help="its offset; several times",
    )
    chosen.add_argument("--error", metavar="TEXT", help="a part of the error")
    chosen.add_argument(
        "--since", type=_time, metavar="TIME", help="written at this time (ISO 8601) or later"
    )
    chosen.add_argument("--until", type=_time, metavar="TIME", help="written before this time")
    if output:
        parser.add_argument(
            "--output", choices=("text", "json"), default="text", help="output format (default: text)"
        )
    parser.set_defaults(run=run)
    return parser


def _time(text: str) -> int:
    try:
        return time_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a time such as 2026-01-31T12:00:00Z, not {text!r}"
        ) from None


def _selection(arguments: argparse.Namespace, config: WorkerConfig) -> Selection:
    return Selection(
        config.group_id,
        arguments.topic,
        arguments.partition,
        frozenset(arguments.offset),
        arguments.error,
        arguments.since,
        arguments.until,
    )


class _Opened:
    """The dead-letter topic of a group, and a consumer to read it with."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raises WorkerError, KafkaError."""
        self.config = config_of(arguments)
        topic = self.config.dead_letter_topic
        if topic is None:
            raise ConfigError(f"the group {self.config.group_id} has no deadLetterTopic")
        self.topic: str = topic
        self.selection = _selection(arguments, self.config)
        clients.check_reachable(self.config)
        self.consumer: KafkaConsumer = clients.reader(self.config)
        try:
            self.log = LetterLog(self.consumer, topic)
        except BaseException:
            self.consumer.close()
            raise

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def letters(self) -> Iterator[StoredLetter]:
        """The selected letters."""
        for tp in self.log.partitions:
            for record in self.log.records(tp):
                letter = letter_of(record)
                if letter is not None and self.selection.has(letter):
                    yield letter

    def sent(self) -> dict[TopicPartition, set[int]]:
        """Which letters replays have sent, as far as they have ended."""
        return {tp: ledger.sent for tp, ledger in ledgers_of(self.log).items()}


def _list(arguments: argparse.Namespace) -> int:
    counts = LetterCounts()
    with _Opened(arguments) as opened, ProgressLines(bar_only=True) as lines:
        sent = opened.sent()
        for letter in opened.letters():
            counts.add(letter, letter.offset in sent[letter.tp])
            if counts.letters % _SHOWN_EVERY == 0:
                lines.progress(counts.letters, 0, f"{counts.letters:,} dead letters read")
        group, topic = opened.config.group_id, opened.topic
    if arguments.output == "json":
        document = {
            "group": group,
            "deadLetterTopic": topic,
            "letters": counts.letters,
            "replayed": counts.replayed,
            "errors": counts.document(),
        }
        print(json.dumps(document))
        return 0
    if counts.letters:
        print_table(COLUMNS, counts.rows(), most=MOST_ERROR)
    print(f"dead letters of the group {group} in {topic}: {counts.letters}, replayed: {counts.replayed}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    shown = 0
    with _Opened(arguments) as opened:
        sent = opened.sent()
        for letter in opened.letters():
            if shown == arguments.limit:
                if arguments.output == "text":
                    print(f"there are more: raise --limit ({arguments.limit}), or select")
                break
            replayed = letter.offset in sent[letter.tp]
            if arguments.output == "json":
                print(json.dumps(document_of(letter, replayed)))
            else:
                print("\n".join(lines_of(letter, replayed)) + "\n")
            shown += 1
    if not shown and arguments.output == "text":
        print("no letter is selected")
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    with _Opened(arguments) as opened:
        if opened.selection.everything and not arguments.all:
            raise ConfigError(
                "say which letters: --topic, --partition, --offset, --error, --since, --until, or --all"
            )
        config = opened.config
        if arguments.to == opened.topic:
            raise ConfigError(f"--to {arguments.to} is the dead-letter topic: name another one")
        with clients.reader(config) as consumer:
            if arguments.to and not consumer.partitions_for_topic(arguments.to):
                raise ConfigError(no_topic(arguments.to))
            replay = Replay(
                opened.log,
                consumer,
                lambda: clients.producer(config),
                to=arguments.to,
                is_source=_is_source(config),
                keep_timestamp=arguments.timestamp == "original",
                again=arguments.again,
                dry_run=arguments.dry_run,
                oldest_ms=_Retention(config).oldest_ms,
                progress=lambda line: print(line, flush=True),
            )
            counts = replay.run(opened.selection, arguments.limit)
    would = "would be " if arguments.dry_run else ""
    print(
        f"selected: {counts.selected}, {would}sent: {counts.sent}, sent before: {counts.before}"
        + (f", left out because they may have been sent before: {counts.unknown}" if counts.unknown else "")
        + (f", left out because they are cut: {counts.cut}" if counts.cut else "")
        + (
            f", left out because they are batches that cannot be read: {counts.batches}"
            if counts.batches
            else ""
        )
    )
    for topic, count in sorted(counts.by_target.items()):
        print(f"{topic}: {count}")
    return 0


def _is_source(config: WorkerConfig) -> Callable[[str], bool]:
    """Whether the group consumes a topic."""
    if config.topic_pattern is None:
        return set(config.topics).__contains__
    from slackwater.kafka.topic_pattern import TopicPattern

    return TopicPattern(config.topic_pattern).matches


class _Retention:
    """Which records the retention of topics would delete at once."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._known: dict[str, int | None] = {}

    def oldest_ms(self, topic: str) -> int | None:
        """The time below which ``topic`` deletes records by their own time; None: it does not, or this client
        may not read its settings."""
        if topic not in self._known:
            retention = self._retention_ms(topic)
            self._known[topic] = None if retention is None else SYSTEM_CLOCK.wall_ms() - retention
        return self._known[topic]

    def _retention_ms(self, topic: str) -> int | None:
        from slackwater.kafka import KafkaAdmin
        from slackwater.kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        with KafkaAdmin(self._config.bootstrap_servers, security=self._config.security.client()) as admin:
            settings = admin.describe_configs([resource]).values_ok.get(resource, {})
        values = {name: entry.value for name, entry in settings.items()}
        retention = settings["retention.ms"].number if "retention.ms" in settings else None
        by_append = values.get("message.timestamp.type") == "LogAppendTime"
        deletes = "delete" in (values.get("cleanup.policy") or "delete")
        return retention if deletes and not by_append and (retention or 0) >= 0 else None


# -- a letter as it is shown ------------------------------------------------------------


def document_of(letter: StoredLetter, replayed: bool) -> dict[str, Any]:
    """For JSON: bytes as text, or hex where they are none, and in Base64."""
    return {
        "letter": {"topic": letter.tp.topic, "partition": letter.tp.partition, "offset": letter.offset},
        "written": iso_time(letter.written_ms),
        "source": {
            "topic": letter.source.topic,
            "partition": letter.source.partition,
            "offset": letter.source_offset,
            "timestampMs": letter.timestamp_ms,
        },
        "error": letter.error,
        "attempt": letter.attempt,
        "stack": letter.stack or None,
        "replayed": replayed,
        "cut": letter.cut or None,
        "batch": letter.batch or None,
        "key": text_or_hex(letter.key),
        "keyBase64": _base64(letter.key),
        "value": text_or_hex(letter.value),
        "valueBase64": _base64(letter.value),
        "headers": [
            {"key": name, "value": text_or_hex(value), "valueBase64": _base64(value)}
            for name, value in letter.headers
        ],
    }


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def lines_of(letter: StoredLetter, replayed: bool) -> list[str]:
    """For a terminal."""
    lines = [
        f"letter {letter.tp} offset {letter.offset}, written {iso_time(letter.written_ms)}"
        f"{', replayed' if replayed else ''}",
        f"  record:   {letter.source} offset {letter.source_offset}, {iso_time(letter.timestamp_ms)}",
        f"  error:    {printable(letter.error)}",
    ]
    if letter.attempt is not None:
        lines.append(f"  attempt:  {letter.attempt}")
    if letter.cut:
        lines.append(f"  cut:      {printable(letter.cut)}")
    if letter.batch:
        lines.append(f"  batch:    {printable(letter.batch)}")
    lines.append(f"  key:      {_bytes(letter.key)}")
    lines.append(f"  value:    {_bytes(letter.value)}")
    lines += [f"  header:   {printable(name)}: {_bytes(value)}" for name, value in letter.headers]
    if letter.stack:
        lines.append("  stack:")
        lines += [f"    {printable(line)}" for line in letter.stack.splitlines()]
    return lines


def _bytes(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = printable(text_or_hex(value) or "")
    return f"{shortened(text, MOST_CHARACTERS)} ({len(value)} B)"
