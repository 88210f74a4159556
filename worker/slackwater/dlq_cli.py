"""``slackwater dlq``: lists a group's dead letters, shows them, and sends their records again."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import ConfigError
from slackwater.tools import clients
from slackwater.tools.group_config import add_options, config_of
from slackwater.tools.letters import LetterLog, Selection, StoredLetter, letter_of
from slackwater.tools.positions import time_of
from slackwater.tools.record_text import printable, shortened, table, text_or_hex
from slackwater.tools.replay import Replay, ledgers_of

if TYPE_CHECKING:
    from slackwater.kafka import KafkaConsumer

DEFAULT_SHOWN = 10
MOST_ERRORS = 1000
"""How many different errors are counted apart."""
OTHER_ERRORS = "(other errors)"
MOST_CHARACTERS = 10_000
"""Of a key, a value or a header as it is shown."""
MOST_ERROR = 160


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
        "--limit", type=_count, default=DEFAULT_SHOWN, metavar="N", help=f"(default: {DEFAULT_SHOWN})"
    )
    replay = _add(commands, "replay", "send the records of dead letters again, each once", _replay)
    replay.add_argument("--all", action="store_true", help="all letters of the group; instead of a selection")
    replay.add_argument("--to", metavar="TOPIC", help="where to send to (default: each record's own topic)")
    replay.add_argument(
        "--timestamp",
        choices=("original", "now"),
        default="original",
        help="which time the records get (default: original)",
    )
    replay.add_argument("--limit", type=_count, default=None, metavar="N", help="send at most so many")
    replay.add_argument("--again", action="store_true", help="send also what a replay has sent before")
    replay.add_argument("--dry-run", action="store_true", help="only count what would be sent")


def _add(commands: Any, name: str, text: str, run: Any, *, output: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text.capitalize()}."
    )
    add_options(parser)
    chosen = parser.add_argument_group("selection", "Without any of these, all letters of the group.")
    chosen.add_argument("--topic", help="the rejected record's topic")
    chosen.add_argument("--partition", type=_number, metavar="N", help="the rejected record's partition")
    chosen.add_argument(
        "--offset", type=_number, action="append", default=[], metavar="N", help="its offset; several times"
    )
    chosen.add_argument("--error", metavar="TEXT", help="a part of the error")
    chosen.add_argument(
        "--since", type=_time, metavar="TIME", help="written at this time (ISO 8601) or later"
    )
    chosen.add_argument("--until", type=_time, metavar="TIME", help="written before this time")
    if output:
        parser.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")
    parser.set_defaults(run=run)
    return parser


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not _number(text):
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


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


# -- list ----------------------------------------------------------------------------------------------------


@dataclass
class _Group:
    letters: int = 0
    replayed: int = 0
    first_ms: int = field(default=2**62)
    last_ms: int = -1

    def add(self, letter: StoredLetter, replayed: bool) -> None:
        self.letters += 1
        self.replayed += replayed
        self.first_ms, self.last_ms = (
            min(self.first_ms, letter.written_ms),
            max(self.last_ms, letter.written_ms),
        )


def _list(arguments: argparse.Namespace) -> int:
    groups: dict[tuple[str, int, str], _Group] = {}
    with _Opened(arguments) as opened:
        sent = opened.sent()
        for letter in opened.letters():
            key = (letter.source.topic, letter.source.partition, _without_position(letter))
            if key not in groups and len(groups) >= MOST_ERRORS:
                key = (*key[:2], OTHER_ERRORS)
            groups.setdefault(key, _Group()).add(letter, letter.offset in sent[letter.tp])
        config, topic = opened.config, opened.topic
    total, replayed = (
        sum(getattr(group, name) for group in groups.values()) for name in ("letters", "replayed")
    )
    ordered = sorted(groups.items(), key=lambda item: (-item[1].letters, item[0]))
    if arguments.output == "json":
        listed = [
            {
                "topic": source,
                "partition": partition,
                "error": error,
                "letters": group.letters,
                "replayed": group.replayed,
                "first": _iso(group.first_ms),
                "last": _iso(group.last_ms),
            }
            for (source, partition, error), group in ordered
        ]
        document = {
            "group": config.group_id,
            "deadLetterTopic": topic,
            "letters": total,
            "replayed": replayed,
            "errors": listed,
        }
        print(json.dumps(document, ensure_ascii=False))
        return 0
    if groups:
        names = ("letters", "replayed", "topic", "partition", "first", "last", "error")
        rows = [
            (
                group.letters,
                group.replayed,
                source,
                partition,
                _minute(group.first_ms),
                _minute(group.last_ms),
            )
            for (source, partition, _), group in ordered
        ]
        lines = table(names[:-1], rows)
        errors = [names[-1], *(shortened(printable(error), MOST_ERROR) for (_, _, error), _ in ordered)]
        width = max(map(len, lines))
        print("\n".join(f"{line:{width}}  {error}" for line, error in zip(lines, errors, strict=True)))
    print(f"dead letters of the group {config.group_id} in {topic}: {total}, replayed: {replayed}")
    return 0


def _without_position(letter: StoredLetter) -> str:
    """The error, so that records with the same one are counted together."""
    return letter.error.replace(f", at {letter.source} offset {letter.source_offset}", "")


def _minute(ms: int) -> str:
    return _iso(ms)[:16].replace("T", " ") + "Z"


def _iso(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


# -- show ----------------------------------------------------------------------------------------------------


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
                print(json.dumps(_document(letter, replayed), ensure_ascii=False))
            else:
                print("\n".join(_lines(letter, replayed)) + "\n")
            shown += 1
    if not shown and arguments.output == "text":
        print("no letter is selected")
    return 0


def _document(letter: StoredLetter, replayed: bool) -> dict[str, Any]:
    return {
        "letter": {"topic": letter.tp.topic, "partition": letter.tp.partition, "offset": letter.offset},
        "written": _iso(letter.written_ms),
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


def _lines(letter: StoredLetter, replayed: bool) -> list[str]:
    lines = [
        f"letter {letter.tp} offset {letter.offset}, written {_iso(letter.written_ms)}"
        f"{', replayed' if replayed else ''}",
        f"  record:   {letter.source} offset {letter.source_offset}, {_iso(letter.timestamp_ms)}",
        f"  error:    {printable(letter.error)}",
    ]
    if letter.attempt is not None:
        lines.append(f"  attempt:  {letter.attempt}")
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


# -- replay --------------------------------------------------------------------------------------------------


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
            replay = Replay(
                opened.log,
                consumer,
                lambda: clients.producer(config),
                to=arguments.to,
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
    )
    for topic, count in sorted(counts.by_target.items()):
        print(f"{topic}: {count}")
    return 0


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
        retention = values.get("retention.ms") or "-1"
        by_append = values.get("message.timestamp.type") == "LogAppendTime"
        deletes = "delete" in (values.get("cleanup.policy") or "delete")
        return int(retention) if deletes and not by_append and int(retention) >= 0 else None
