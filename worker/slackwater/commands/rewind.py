"""``slackwater rewind``: has a group write records again, from offsets on.

A worker begins at the table's mark where that is beyond the group's committed offset, so setting the offset
back is not enough. This sets the committed offset, and then removes the rows from there on and lowers the
mark, in one commit of the table.

If it ends in between, the table is as before, and so is the group: it begins at the mark. The other way
round, the committed offset would be beyond the mark, and the records between the two would be missing.

The operator runs it, too, for the annotation ``slackwater.dev/rewind``: with ``--check`` while the workers
still run, and then without.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig, load
from slackwater.runtime.errors import SinkError, StartError, WorkerError
from slackwater.tools.clients import reader
from slackwater.tools.positions import spans_of
from slackwater.tools.starts import REWIND_SYNTAX, Start, rewind_start_of

if TYPE_CHECKING:
    from slackwater.kafka.admin import KafkaAdmin


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rewind",
        help="remove rows from an offset on, so that a stopped group writes them again",
        description="Removes the rows from each given start on, lowers the sink's marks and sets the "
        "group's committed offsets. The group must have no members.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", type=Path, help="the worker's YAML file")
    parser.add_argument(
        "--check", action="store_true", help="check the starts and the sink, and change nothing"
    )
    parser.add_argument(
        "starts",
        nargs="+",
        metavar="START",
        type=rewind_start_of,
        help=f"where to write again from; several for several partitions. {REWIND_SYNTAX}; start is the "
        "log's start, and a time is in UTC unless it names a zone",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code: that of a worker for the same error."""
    from slackwater.kafka.errors import KafkaError
    from slackwater.runtime.telemetry.events import write_termination_message

    try:
        config = load(args.config)
        if args.check:
            report = [
                f"{tp}: the group would continue at offset {offset}"
                for tp, offset in sorted(check(config, args.starts).items())
            ]
        else:
            removed, offsets = rewind(config, args.starts)
            continues = [
                f"{tp}: the group continues at offset {offset}" for tp, offset in sorted(offsets.items())
            ]
            report = [f"removed {removed} rows", *continues]
    except (WorkerError, KafkaError) as exc:
        print(f"slackwater rewind: error: {exc}", file=sys.stderr)
        write_termination_message(str(exc), os.environ)
        return exc.exit_code if isinstance(exc, WorkerError) else 1
    print("\n".join(report))
    write_termination_message("; ".join(report), os.environ)
    return 0


def check(config: WorkerConfig, starts: Iterable[Start]) -> dict[TopicPartition, int]:
    """Checks that the group of ``config`` can be rewound to ``starts``, and changes nothing.

    The group may have members. Returns the offset of each partition. Raises WorkerError and KafkaError.
    """
    from slackwater.pipeline import make_sink

    _check_lineage(config)
    offsets = _offsets(config, starts)
    make_sink(config).rewind({})  # a sink that cannot remove rows refuses that as well
    return offsets


def rewind(config: WorkerConfig, starts: Iterable[Start]) -> tuple[int, dict[TopicPartition, int]]:
    """Rewinds the group of ``config`` to ``starts``. Returns how many rows were removed, and the offsets.

    The table is changed last, so that a group whose rewind fails continues as before. Raises WorkerError and
    KafkaError.
    """
    from slackwater.kafka import KafkaAdmin
    from slackwater.pipeline import make_sink

    _check_lineage(config)
    with KafkaAdmin(config.bootstrap_servers, security=config.security.client()) as admin:
        _check_empty(admin, config.group_id)
        offsets = _offsets(config, starts)
        ids = _topic_ids(admin, offsets)
    sink = make_sink(config)
    sink.rewind({})  # raises where it cannot remove rows
    _commit(config, offsets)
    removed = sink.rewind({tp: (ids[tp.topic], offset) for tp, offset in offsets.items()})
    return removed, offsets


def _commit(config: WorkerConfig, offsets: Mapping[TopicPartition, int]) -> None:
    from slackwater.kafka import KafkaConsumer

    with KafkaConsumer(
        bootstrap_servers=config.bootstrap_servers,
        group_id=config.group_id,
        security=config.security.client(),
        enable_auto_commit=False,
    ) as consumer:
        consumer.assign(list(offsets))
        # Without a worker's note: a person has set it.
        consumer.commit({tp: OffsetAndMetadata(offset, "") for tp, offset in offsets.items()})


def _check_lineage(config: WorkerConfig) -> None:
    if not config.by_record:
        raise SinkError(
            "with lineage: batch the rows do not tell which records they are of, so they cannot be removed. "
            "Start the group with another sink, and let it read all records again"
        )


def _offsets(config: WorkerConfig, starts: Iterable[Start]) -> dict[TopicPartition, int]:
    with reader(config) as consumer:
        return {tp: start for tp, (start, _) in spans_of(consumer, starts, at_end=True).items()}


def _check_empty(admin: KafkaAdmin, group_id: str) -> None:
    group = admin.describe_groups([group_id]).unwrap()[group_id]
    if group.members:
        raise StartError(
            f"the group {group_id} has {len(group.members)} members: stop it first (spec.suspend: true, or "
            "end its workers and wait for their session timeout)"
        )


def _topic_ids(admin: KafkaAdmin, partitions: Iterable[TopicPartition]) -> dict[str, str]:
    from slackwater.runtime.delivery.stopped_partitions import id_text

    topics = admin.describe_topics(sorted({tp.topic for tp in partitions})).unwrap()
    return {name: id_text(topic.topic_id) for name, topic in topics.items()}
