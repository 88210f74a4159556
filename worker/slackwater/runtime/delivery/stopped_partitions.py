"""Why a worker stops reading a partition: its log ends before the position, or its topic was recreated.

A topic that is deleted and created again has the same name and a new id (KIP-516). Kafka drops the committed
offsets of a deleted topic, but a commit may arrive later. So the notes in the commits say which topic was
read, and where nothing is committed, the sink's marks say which topic's rows it holds.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from uuid import UUID

from slackwater.kafka.errors import CorruptRecordError
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.dead_letters import Letter
from slackwater.runtime.delivery.partition import CommitNote, OwnedPartition
from slackwater.runtime.interfaces import Consumer

MOST_REASON = 200
"""Characters of a dead letter's reason in a message."""
TOPIC_RECREATED = "TopicRecreated"
"""The topic that was read was deleted, and another one has its name."""


def id_text(topic_id: UUID | None) -> str:
    """A topic's id as Kafka's tools write it (22 characters of URL-safe base64); "": there is none (zero)."""
    if topic_id is None or not topic_id.int:
        return ""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


class TopicIdentities:
    """Compares the topic that a position belongs to with the topic that has its name now."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def current(self, tp: TopicPartition) -> str:
        """The id of the topic that has the name now, as far as the consumer knows it; "": it does not."""
        return id_text(self._consumer.topic_id(tp))

    def predecessor(self, owned: OwnedPartition) -> str:
        """The id of the topic that the position belongs to, if another topic has its name now; else ""."""
        current = self.current(owned.tp)
        if owned.topic_id:
            return owned.topic_id if current not in ("", owned.topic_id) else ""
        delivered = [topic_id for topic_id in owned.marks or () if topic_id]
        return predecessor(owned.initial_note, owned.committed, current, delivered)

    def take(self, owned: OwnedPartition) -> bool:
        """Sets the partition's ``topic_id``. False: another topic has the name now."""
        if before := self.predecessor(owned):
            owned.topic_id = before
            return False
        note = owned.initial_note
        known = owned.topic_id or (note.topic_id if note is not None else "")
        owned.topic_id = self.current(owned.tp) or known
        return True


def predecessor(
    note: CommitNote | None, committed: int | None, current: str, delivered: Collection[str]
) -> str:
    """The id of the topic that a position belongs to, where that is not ``current``, which has the name now.

    "": it is, or nobody knows. ``note`` and ``committed``: what is committed. ``delivered``: the ids of the
    topics of this name for which the sink has a mark of the partition. An offset without a note was set by a
    person, who has decided where to go on, or by a tool that mirrors offsets to another Kafka cluster.
    """
    if not current:
        return ""
    if note is not None and note.topic_id:
        return note.topic_id if note.topic_id != current else ""
    if committed is None and delivered and current not in delivered:
        return max(delivered)
    return ""


def recreated(tp: TopicPartition, before: str, current: str, group: str) -> str:
    """The message for a topic that is another than the one with the id ``before``; "": not known. It may be
    the topic of another Kafka cluster: the marks in the sink do not name theirs."""
    was = f"the topic with id {before}" if before else "its predecessor"
    now = f" (id {current})" if current else ""
    return (
        f"{tp}: the topic was deleted and created again, or the brokers are of another Kafka cluster: the "
        f"group {group} has delivered records of {was}, and another topic has its name now{now}. "
        "It is not read. To continue: stop the group (spec.suspend: true), set the offset to begin at "
        f"(kafka-consumer-groups.sh --group {group} --topic {tp.topic} --reset-offsets --to-earliest "
        "--execute), and start it again; rows that were delivered before are kept"
    )


LOG_TRUNCATED = "LogTruncated"
"""The log ends before the position: an unclean election, a restored broker, a recreated topic."""


def truncated(tp: TopicPartition, position: int, end: int | None, group: str) -> str:
    """The message for a log that ends at ``end`` (None: somewhere before ``position``)."""
    where = "somewhere before" if end is None else f"at offset {end}"
    return (
        f"{tp}: the group {group} has read up to offset {position}, but the log ends {where}. The "
        "log was truncated or replaced. The worker stopped reading it. To continue: stop the group "
        "(spec.suspend: true), remove the rows of records that are gone and set the offset to begin at "
        f"(slackwater rewind --config FILE {tp.topic}:{tp.partition}:OFFSET; if no such rows are written, "
        f"kafka-consumer-groups.sh --group {group} --topic {tp.topic} --reset-offsets is enough), and start "
        "it again"
    )


TOO_MANY_DEAD_LETTERS = "TooManyDeadLetters"
"""The worker would write more dead letters in a minute than it may."""


UNREADABLE_BATCH = "UnreadableBatch"
"""The client cannot read a batch, and there is no dead-letter topic, or it is not known where it ends."""


def unreadable_batch(error: CorruptRecordError, group: str) -> str:
    """What happened, and how to go on."""
    tp = error.topic_partition
    way = "" if not error.batch else "configure a deadLetterTopic, to which such batches go, or "
    return (
        f"{tp}: the batch of offsets {error.offset} to {error.last_offset} cannot be read ({error.reason}). "
        f"The worker has stopped reading the partition at offset {error.position}. To go on: {way}stop the "
        f"group (spec.suspend: true), set its offset (kafka-consumer-groups.sh --group {group} --topic "
        f"{tp.topic}:{tp.partition} --reset-offsets --to-offset {error.next_offset} --execute), and start it "
        "again"
    )


def too_many_letters(tp: TopicPartition, start: int, new: int, most: int, letter: Letter) -> str:
    """What happened, and how to go on. ``new``: how many dead letters the batch has in all its partitions;
    ``letter``: the first of the partition."""
    return (
        f"{tp}: the worker would write {new} dead letters at once, and so more than {most} in a minute "
        f"(spec.delivery.maxDeadLettersPerMinute); none of them is written, and offset {start} is read next. "
        f"The first is of offset {letter.offset}: {letter.error[:MOST_REASON]}. To go on: correct the "
        "handler, or raise the limit, and restart the workers"
    )
