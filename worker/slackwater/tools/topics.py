"""The topics that a group reads."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import StartError


@dataclass(frozen=True)
class Topic:
    """A topic. ``id``: as Kafka's tools write it; "": the brokers have none."""

    id: str
    partitions: tuple[TopicPartition, ...]


def topics_of(config: WorkerConfig) -> dict[str, Topic]:
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
        described = admin.describe_topics(names)
    for name, error in described.errors.items():
        raise StartError(f"the topic {name} cannot be described: {error}")
    return {
        name: Topic(
            id_text(topic.topic_id) if topic.topic_id.int else "",
            tuple(TopicPartition(name, number) for number in sorted(topic.partitions)),
        )
        for name, topic in described.values_ok.items()
    }
