"""How far a backfill is whose table has no marks: committed offsets of a group of the backfill's own.

They are committed after the rows are written. So a record is written at least once, as by a worker.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from slackwater.kafka.structs import OffsetAndMetadata
from slackwater.kafka.untrusted import json_object, whole

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.config.worker_config import WorkerConfig


class BackfillOffsets:
    """The committed offsets of ``group``, which has no members. Each commit notes the topic's id and the end
    of the backfill. All methods raise KafkaError."""

    def __init__(self, config: WorkerConfig, group: str) -> None:
        self._config, self._group = config, group

    def read(
        self, partitions: Collection[TopicPartition], ids: Mapping[str, str], digest: str
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """By partition, where to go on, and the end that was fixed for the bounds of ``digest``. ``ids``: of
        the topics; a commit for another topic of the name does not count."""
        positions, ends = {}, {}
        for tp, at in committed(self._config, self._group, partitions).items():
            note = _note_of(at.metadata)
            if note is None or note[0] != ids.get(tp.topic, ""):
                continue
            positions[tp] = at.offset
            if note[1] == digest:
                ends[tp] = note[2]
        return positions, ends

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        ids: Mapping[str, str],
        digest: str,
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Commits ``offsets``."""
        from slackwater.kafka import KafkaConsumer

        consumer = KafkaConsumer(
            bootstrap_servers=self._config.bootstrap_servers,
            group_id=self._group,
            security=self._config.security.client(),
            enable_auto_commit=False,
        )
        try:
            consumer.assign(list(offsets))
            consumer.commit(
                {
                    tp: OffsetAndMetadata(offset, _note(ids.get(tp.topic, ""), digest, ends[tp]))
                    for tp, offset in offsets.items()
                }
            )
        finally:
            consumer.close()


def committed(
    config: WorkerConfig, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of ``group``; partitions without one are left out. Raises KafkaError."""
    from slackwater.kafka import KafkaAdmin

    with KafkaAdmin(config.bootstrap_servers, security=config.security.client()) as admin:
        offsets = admin.committed_offsets(group, list(partitions))
    return {tp: at for tp, at in offsets.items() if at.offset >= 0}


def _note(topic_id: str, digest: str, end: int) -> str:
    return json.dumps({"topic": topic_id, "bounds": digest, "end": end}, separators=(",", ":"))


def _note_of(metadata: str) -> tuple[str, str, int] | None:
    """Topic id, digest and end; None: it is no backfill's."""
    try:
        document = json_object(metadata)
        return str(document["topic"]), str(document["bounds"]), whole(document["end"], "end")
    except (ValueError, TypeError, KeyError):
        return None
