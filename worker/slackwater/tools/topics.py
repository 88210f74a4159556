"""The topics that a group reads, and those that a command line names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import ConfigError, StartError

if TYPE_CHECKING:
    from slackwater.kafka import KafkaAdmin
    from slackwater.kafka.admin.results import TopicDescription
    from slackwater.runtime.config.worker_config import WorkerConfig


@dataclass(frozen=True)
class DescribedTopic:
    """A topic. ``id``: as Kafka's tools write it; "": the brokers have none."""

    id: str
    partitions: tuple[TopicPartition, ...]


def no_topic(name: str) -> str:
    """The message of an error for a topic that the brokers do not show."""
    return f"there is no topic {name}, or this client may not describe it: correct the name, or create it"


def no_partition(tp: TopicPartition, partitions: int) -> str:
    """The message of an error for a partition that a topic of so many ``partitions`` does not have."""
    return f"{tp} does not exist: the topic has {partitions} partitions, from 0 on"


def described(admin: KafkaAdmin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """The topics that a command line names. Raises ConfigError for one that does not exist; KafkaError."""
    from slackwater.kafka.errors import UnknownTopicOrPartitionError

    outcomes = admin.describe_topics(names)
    for name, error in outcomes.errors.items():
        if isinstance(error, UnknownTopicOrPartitionError):
            raise ConfigError(no_topic(name))
    return outcomes.unwrap()


def topics_of(config: WorkerConfig) -> dict[str, DescribedTopic]:
    """The group's topics by name, of a pattern those that match now.

    Raises StartError for a topic that cannot be described, or a pattern that none matches; KafkaError.
    """
    from slackwater.kafka import KafkaAdmin
    from slackwater.kafka.topic_pattern import TopicPattern
    from slackwater.runtime.delivery.stopped_partitions import id_text

    with KafkaAdmin(config.bootstrap_servers, security=config.security.client()) as admin:
        names = list(config.topics)
        if config.topic_pattern is not None:
            pattern = TopicPattern(config.topic_pattern)
            names = [name for name in admin.list_topics() if pattern.matches(name)]
            if not names:
                raise StartError(f"no topic matches topicPattern {config.topic_pattern}")
        outcomes = admin.describe_topics(names)
    for name in outcomes.errors:
        raise StartError(no_topic(name))
    return {
        name: DescribedTopic(
            id_text(topic.topic_id),
            tuple(TopicPartition(name, number) for number in sorted(topic.partitions)),
        )
        for name, topic in outcomes.values_ok.items()
    }
