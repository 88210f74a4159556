"""``slackwater topics``: lists topics, and creates one."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slackwater.commands.arguments import topic_name, whole_number
from slackwater.commands.connection import CommandClients, add_options
from slackwater.commands.display import print_table
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import ConfigError
from slackwater.tools.topics import described as described_topics

if TYPE_CHECKING:
    from slackwater.kafka import KafkaAdmin


@dataclass(frozen=True)
class ListedTopic:
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
    parser.add_argument(
        "topics", nargs="*", type=topic_name, metavar="TOPIC", help="only these (default: all)"
    )
    parser.add_argument(
        "--create", type=topic_name, metavar="TOPIC", help="create this topic instead of listing topics"
    )
    parser.add_argument(
        "--partitions", type=whole_number(1), metavar="N", help="of --create (default: the broker's)"
    )
    parser.add_argument(
        "--replication-factor",
        type=whole_number(1, 2**15 - 1),
        metavar="N",
        help="of --create (default: the broker's)",
    )
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="output format (default: text)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code. Raises KafkaError, ConfigError."""
    if args.create and (args.topics or args.output != "text"):
        raise ConfigError("--create takes no other TOPIC and no --output")
    if not args.create and (args.partitions or args.replication_factor):
        raise ConfigError("--partitions and --replication-factor are for --create TOPIC")
    with CommandClients(args).admin() as admin:
        if args.create:
            count = create(admin, args.create, args.partitions, args.replication_factor)
            print(f"created {args.create} with {count} partitions")
            return 0
        topics = topics_of(admin, args.topics)
    if args.output == "json":
        for topic in topics:
            print(json.dumps(asdict(topic)))
        return 0
    cells = [(topic.topic, topic.partitions, topic.replicas, f"{topic.offsets:,}") for topic in topics]
    print_table(("TOPIC", "PARTITIONS", "REPLICAS", "OFFSETS IN THE LOG"), cells)
    return 0


def create(admin: KafkaAdmin, name: str, partitions: int | None, replicas: int | None) -> int:
    """Creates a topic; None: as the broker has it. Returns how many partitions it has.

    Raises ConfigError where the brokers refuse such a topic, or have it; KafkaError.
    """
    from slackwater.kafka import errors
    from slackwater.kafka.admin import NewTopic

    try:
        admin.create_topics([NewTopic(name, partitions or -1, replicas or -1)]).unwrap()
    except errors.TopicAlreadyExistsError as exc:
        raise ConfigError(f"the topic {name} exists already: choose another name") from exc
    except (
        errors.InvalidTopicError,
        errors.InvalidPartitionsError,
        errors.InvalidReplicationFactorError,
    ) as exc:
        raise ConfigError(str(exc)) from exc
    admin.wait_for_topic(name)
    return len(admin.describe_topics([name]).unwrap()[name].partitions)


def topics_of(admin: KafkaAdmin, names: list[str]) -> list[ListedTopic]:
    """The topics with these names, or all but internal ones. Raises KafkaError."""
    from slackwater.kafka.admin import EARLIEST, LATEST

    described = described_topics(admin, names or admin.list_topics())
    partitions = [TopicPartition(name, number) for name in described for number in described[name].partitions]
    first = admin.list_offsets(dict.fromkeys(partitions, EARLIEST)).unwrap()
    end = admin.list_offsets(dict.fromkeys(partitions, LATEST)).unwrap()
    topics = []
    for name, topic in sorted(described.items()):
        replicas = max((len(partition.replicas) for partition in topic.partitions.values()), default=0)
        offsets = sum(end[tp].offset - first[tp].offset for tp in partitions if tp.topic == name)
        topics.append(ListedTopic(name, len(topic.partitions), replicas, offsets))
    return topics
