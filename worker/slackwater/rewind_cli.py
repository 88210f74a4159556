"""``slackwater rewind``: has a group write records again, from offsets on.

A worker begins at the table's mark where that is beyond the group's committed offset, so setting the offset
back is not enough. This removes the rows from the offset on and lowers the mark, in one commit of the table,
and then sets the committed offset.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig, load
from slackwater.runtime.errors import ConfigError, SinkError, StartError, WorkerError

if TYPE_CHECKING:
    from slackwater.kafka.admin import KafkaAdmin


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rewind",
        help="remove rows from an offset on, so that a stopped group writes them again",
        description="Removes the rows from each given offset on, lowers the sink's marks and sets the "
        "group's committed offsets. The group must have no members.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", type=Path, help="the worker's YAML file")
    parser.add_argument(
        "starts",
        nargs="+",
        metavar="TOPIC:PARTITION:OFFSET",
        type=start_of,
        help="where to write again from; several for several partitions",
    )
    parser.set_defaults(run=run)


def start_of(text: str) -> tuple[TopicPartition, int]:
    """The partition and offset in ``TOPIC:PARTITION:OFFSET``. Raises ArgumentTypeError."""
    topic, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION:OFFSET, such as flights:3:4200")
    return TopicPartition(topic, int(partition)), int(offset)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code: that of a worker for the same error."""
    from slackwater.kafka.errors import KafkaError

    starts = dict(args.starts)
    try:
        if len(starts) < len(args.starts):
            raise ConfigError("a partition is named twice: give one offset for each")
        removed = rewind(load(args.config), starts)
    except WorkerError as exc:
        print(f"slackwater rewind: error: {exc}", file=sys.stderr)
        return exc.exit_code
    except KafkaError as exc:
        print(f"slackwater rewind: error: {exc}", file=sys.stderr)
        return 1
    print(f"removed {removed} rows")
    for tp, offset in sorted(starts.items()):
        print(f"{tp}: the group continues at offset {offset}")
    return 0


def rewind(config: WorkerConfig, starts: Mapping[TopicPartition, int]) -> int:
    """Rewinds the group of ``config`` to ``starts``. Returns how many rows were removed.

    The table is changed before the committed offsets: run it again where it fails in between. Raises
    WorkerError and KafkaError.
    """
    if not config.by_record:
        raise SinkError(
            "with lineage: batch the rows do not tell which records they are of, so they cannot be removed. "
            "Start the group with another sink, and let it read all records again"
        )
    from slackwater.kafka import KafkaAdmin, KafkaConsumer
    from slackwater.pipeline import make_sink

    with KafkaAdmin(config.bootstrap_servers, security=config.security.client()) as admin:
        _check_empty(admin, config.group_id)
        ids = _topic_ids(admin, starts)
    removed = make_sink(config).rewind({tp: (ids[tp.topic], offset) for tp, offset in starts.items()})
    consumer = KafkaConsumer(
        bootstrap_servers=config.bootstrap_servers,
        group_id=config.group_id,
        security=config.security.client(),
        enable_auto_commit=False,
    )
    try:
        consumer.assign(list(starts))
        # Without a worker's note: a person has set it.
        consumer.commit({tp: OffsetAndMetadata(offset, "") for tp, offset in starts.items()})
    finally:
        consumer.close()
    return removed


def _check_empty(admin: KafkaAdmin, group_id: str) -> None:
    group = admin.describe_groups([group_id]).unwrap()[group_id]
    if group.members:
        raise StartError(
            f"the group {group_id} has {len(group.members)} members: stop it first (spec.suspend: true, or "
            "end its workers and wait for their session timeout)"
        )


def _topic_ids(admin: KafkaAdmin, starts: Mapping[TopicPartition, int]) -> dict[str, str]:
    from slackwater.runtime.delivery.stopped_partitions import id_text

    topics = admin.describe_topics(sorted({tp.topic for tp in starts})).unwrap()
    for tp in starts:
        count = len(topics[tp.topic].partitions)
        if tp.partition >= count:
            raise ConfigError(f"{tp} does not exist: the topic has {count} partitions")
    return {name: id_text(topic.topic_id) if topic.topic_id.int else "" for name, topic in topics.items()}
