"""Commits what a stream has processed to a consumer group, so that its lag can be seen in Kafka.

Spark's checkpoint stays the truth: the stream never begins at these offsets again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from slackwater.kafka.errors import CommitFailedError, KafkaError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.pipeline.datasource.client import open_consumer, redacted
from slackwater.pipeline.datasource.options import OptionError

TIMEOUT_MS = 10_000
"""Of a commit; the stream waits for it."""
log = logging.getLogger(__name__)


class GroupCommits:
    """Commits to ``group``, which must have no members.

    The first commit raises what is wrong with the group. Later ones only log a warning: the stream goes on
    without them.
    """

    def __init__(
        self,
        group: str,
        properties: Mapping[str, str],
        open_client: Callable[..., CommitClient] = open_consumer,
    ) -> None:
        self._group, self._properties = group, properties
        self._consumer = open_client(properties, group_id=group)
        self._committed: dict[TopicPartition, int] = {}
        self._has_committed = False

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits those of ``offsets`` that have changed. Raises OptionError, KafkaError the first time."""
        changed = {tp: offset for tp, offset in offsets.items() if self._committed.get(tp) != offset}
        if not changed:
            return
        try:
            self._consumer.commit(
                {tp: OffsetAndMetadata(offset) for tp, offset in changed.items()}, timeout_ms=TIMEOUT_MS
            )
        except KafkaError as exc:
            text = redacted(str(exc), self._properties)
            if self._has_committed:
                log.warning("group %s: the stream's offsets are not committed: %s", self._group, text)
                return
            if isinstance(exc, CommitFailedError):
                text = "the group has members; name a group that nobody else uses"
            raise OptionError("commitGroup", f"cannot be used: group {self._group}: {text}") from None
        self._committed.update(changed)
        self._has_committed = True

    def close(self) -> None:
        """Closes the connections."""
        self._consumer.close(autocommit=False, timeout_ms=1_000)


class CommitClient(Protocol):
    """What commits take of a :class:`~slackwater.kafka.KafkaConsumer`."""

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None: ...

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None: ...
