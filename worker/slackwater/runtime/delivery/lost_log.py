"""What a worker says of a partition whose log is not the one that it has read: it stops reading it."""

from __future__ import annotations

from slackwater.kafka.structs import TopicPartition

LOG_TRUNCATED = "LogTruncated"
"""The log ends before the position: an unclean election, a restored broker, a recreated topic."""


def truncated(tp: TopicPartition, position: int, end: int | None, group: str) -> str:
    """The message for a log that ends at ``end`` (None: somewhere before ``position``)."""
    where = "somewhere before" if end is None else f"at offset {end}"
    return (
        f"{tp}: the group {group} has read up to offset {position}, but the log ends {where}. The "
        f"log was truncated or replaced. The worker stopped reading it. {go_on(tp.topic, group)}"
    )


def go_on(topic: str, group: str) -> str:
    """What to do, for a message."""
    return (
        "To continue: stop the group (spec.suspend: true), set the offset to begin at "
        f"(kafka-consumer-groups.sh --group {group} --topic {topic} --reset-offsets --to-earliest "
        "--execute), and start it again"
    )
