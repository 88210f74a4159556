"""Where the table of a group ends: its sink's marks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.spark import table_path
from slackwater.runtime.config.pipeline_config import several_tables
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.interfaces import Sink
from slackwater.tools.topics import topics_of

UNMARKED = ("kafka", "spark")
"""Formats of sinks that have no marks. Of ``spark``, Delta tables may have them."""


def has_marks(config: WorkerConfig) -> bool:
    """Whether the marks of the group's table say how far it is; of a ``custom`` sink only that knows. Of
    several tables they do not: a table without rows of a batch has none."""
    if several_tables(config):
        return False
    return config.sink.format not in UNMARKED or bool(table_path(config))


def marks_of(config: WorkerConfig) -> tuple[dict[TopicPartition, int | None], dict[str, str]]:
    """Of each partition of the group's topics the next offset that its table lacks; None: it has no mark. And
    the ids of the topics; "": the brokers have none.

    Marks of a topic that was deleted and made again do not count.

    Raises:
        ConfigError: the sink has no marks.
        StartError: a topic does not exist.
        SinkError: the table cannot be read.
        KafkaError: the brokers do not answer.
    """
    from slackwater.pipeline import make_sink

    if not has_marks(config):
        field, reason = "sink.format", f"a sink of format {config.sink.format} has no marks"
        if several := several_tables(config):
            field, reason = several, "the marks of several tables do not tell how far the group is"
        raise ConfigError(f"{reason}; begin where the group has committed", field=field)
    topics = topics_of(config)
    partitions = [tp for topic in topics.values() for tp in topic.partitions]
    ids = {name: topic.id for name, topic in topics.items()}
    marks = marks_in(make_sink(config), partitions, ids)
    return {tp: marks.get(tp) for tp in partitions}, ids


def marks_in(
    sink: Sink, partitions: Collection[TopicPartition], ids: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """The marks that the table of ``sink`` has of ``partitions``, of the topics with these ids; partitions
    without one are left out. ``ids``: by topic. Raises what the sink raises."""
    by_id = sink.marks(list(partitions))
    marks = {tp: by_id.get(tp, {}).get(ids.get(tp.topic, "")) for tp in partitions}
    return {tp: mark for tp, mark in marks.items() if mark is not None}
