"""``slackwater topics``: lists topics, and creates one."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slackwater.commands.connection import Connection, add_options
from slackwater.kafka.structs import TopicPartition
from slackwater.tools.record_text import table

if TYPE_CHECKING:
    from slackwater.kafka import KafkaAdmin


@dataclass(frozen=True)
class Topic:
    """A topic as it is listed. ``replicas``: of each partition. ``offsets``: between the start and the end of
    its log; a compacted or transactional topic has fewer records."""

    topic: str
    partitions: int
    replicas: int
    offsets: int


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "topics",
        help="list topics with their partitions and records, or create one",
        description="Lists topics with their partitions, replicas and offsets.",
    )
    add_options(parser)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="only these (default: all)")
    parser.add_argument("--create", metavar="TOPIC", help="create this topic instead")
    parser.add_argument(
        "--partitions", type=int, default=-1, metavar="N", help="of --create (default: the broker's)"
    )
    parser.add_argument(
        "--replication-factor", type=int, default=-1, metavar="N", help="of --create (default: the broker's)"
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code. Raises KafkaError, ConfigError."""
    from slackwater.kafka.admin import NewTopic

    with Connection(args).admin() as admin:
        if args.create:
            new = NewTopic(args.create, args.partitions, args.replication_factor)
            admin.create_topics([new]).unwrap()
            admin.wait_for_topic(args.create)
            count = len(admin.describe_topics([args.create]).unwrap()[args.create].partitions)
            print(f"created {args.create} with {count} partitions")
            return 0
        topics = topics_of(admin, args.topics)
    if args.output == "json":
        for topic in topics:
            print(json.dumps(asdict(topic)))
        return 0
    cells = [(topic.topic, topic.partitions, topic.replicas, f"{topic.offsets:,}") for topic in topics]
    for line in table(("TOPIC", "PARTITIONS", "REPLICAS", "OFFSETS IN THE LOG"), cells):
        print(line)
    return 0


def topics_of(admin: KafkaAdmin, names: list[str]) -> list[Topic]:
    """The topics with these names, or all but internal ones. Raises KafkaError."""
    from slackwater.kafka.admin import EARLIEST, LATEST

    described = admin.describe_topics(names or admin.list_topics()).unwrap()
    partitions = [TopicPartition(name, number) for name in described for number in described[name].partitions]
    first = admin.list_offsets(dict.fromkeys(partitions, EARLIEST)).unwrap()
    end = admin.list_offsets(dict.fromkeys(partitions, LATEST)).unwrap()
    topics = []
    for name, topic in sorted(described.items()):
        replicas = max((len(partition.replicas) for partition in topic.partitions.values()), default=0)
        offsets = sum(end[tp].offset - first[tp].offset for tp in partitions if tp.topic == name)
        topics.append(Topic(name, len(topic.partitions), replicas, offsets))
    return topics
