"""Which topic a position belongs to: one that is deleted and made anew has the old name, a new id (KIP-516).

Kafka drops the committed offsets of a topic that is deleted, but a commit may come later. So the commits'
notes say which topic was read, and where nothing is committed, the sink says which topic's rows it holds.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from uuid import UUID

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.lost_log import go_on
from slackwater.runtime.delivery.partition import CommitNote

TOPIC_RECREATED = "TopicRecreated"
"""The topic that was read was deleted, and another one has its name."""


def id_text(topic_id: UUID | None) -> str:
    """A topic's id as Kafka's tools write it (22 characters of URL-safe base64); "": there is none."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode() if topic_id is not None else ""


def predecessor(
    note: CommitNote | None, committed: int | None, current: str, delivered: Collection[str]
) -> str:
    """The id of the topic that a position belongs to, where that is not ``current``, which has the name now.

    "": it is, or nobody knows. ``note`` and ``committed``: what is committed. ``delivered``: the ids of the
    topics of this name that the sink holds rows of. An offset without a note was set by a person, who has
    decided where to go on.
    """
    if not current:
        return ""
    if note is not None and note.topic_id:
        return note.topic_id if note.topic_id != current else ""
    if committed is None and delivered and current not in delivered:
        return max(delivered)
    return ""


def recreated(tp: TopicPartition, before: str, current: str, group: str) -> str:
    """The message for a topic that is another than the one with the id ``before``; "": not known."""
    was = f"the topic with id {before}" if before else "its predecessor"
    now = f" (id {current})" if current else ""
    return (
        f"{tp}: the topic was deleted and created again: the group {group} has delivered records of {was}, "
        f"and another topic has its name now{now}. It is not read. "
        f"{go_on(tp.topic, group)}; rows that were delivered before are kept"
    )
