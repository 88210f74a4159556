"""The data folder: topics with their ids and settings, and the folders of their partitions.

``DATA/broker.json`` (cluster id, next producer id) and ``DATA/topics.json`` are each replaced in
one step, so a crash leaves either the old or the new one. ``DATA/topics/<name>-<n>/`` holds a
partition, with the id of its topic in the file ``topic-id``: a folder left over from a deleted topic of
the same name is recognised and removed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from slackwater.devbroker.options import BrokerOptions
from slackwater.devbroker.storage.partition import PartitionLog
from slackwater.kafka.wire.primitives import ZERO_UUID

log = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1000
_TOPIC_ID_FILE = "topic-id"
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<index>\d+)\Z")


class DataFolderError(Exception):
    """A data folder that cannot be used: in use by another broker, not writable, or damaged."""


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule: 1 to 249 of ``a-z A-Z 0-9 . _ -``, and neither ``.`` nor ``..``."""
    return bool(_LEGAL_NAME.match(name)) and name not in (".", "..")


@dataclass(slots=True)
class StoredTopic:
    """One topic with its own settings (Kafka's names, as text) and its partitions in order."""

    name: str
    topic_id: UUID
    configs: dict[str, str]
    partitions: list[PartitionLog] = field(default_factory=list)

    def partition(self, index: int) -> PartitionLog | None:
        """The partition of that number, if there is one."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class TopicStore:
    """All topics of one data folder, locked from :meth:`open` to :meth:`close`."""

    def __init__(self, data: Path, options: BrokerOptions, make_uuid: Callable[[], UUID]) -> None:
        self.data = data
        self.cluster_id = ""
        self._options = options
        self._make_uuid = make_uuid
        self.on_delete: Callable[[str], None] = lambda name: None
        self._by_name: dict[str, StoredTopic] = {}
        self._by_id: dict[UUID, StoredTopic] = {}
        self._lock_fd = -1
        self._same_boot = False
        self._next_producer_id = 0
        self._producer_block_end = 0

    def __iter__(self) -> Iterator[StoredTopic]:
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    def by_name(self, name: str) -> StoredTopic | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> StoredTopic | None:
        """The topic of that id."""
        return self._by_id.get(topic_id)

    def names(self) -> list[str]:
        """The names of all topics."""
        return sorted(self._by_name)

    def topic_id(self, name: str) -> UUID | None:
        """The id of the topic of that name."""
        topic = self._by_name.get(name)
        return topic.topic_id if topic else None

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of the topic of that id."""
        topic = self._by_id.get(topic_id)
        return topic.name if topic else None

    def partition_count(self, name: str) -> int | None:
        """How many partitions the topic of that name has."""
        topic = self._by_name.get(name)
        return len(topic.partitions) if topic else None

    # -- opening and closing ------------------------------------------------------------------

    def open(self) -> None:
        """Locks and loads the folder. Raises :class:`DataFolderError`."""
        try:
            self._lock()
            self._load_broker()
            self._load_topics()
        except OSError as exc:
            self._unlock()
            raise DataFolderError(f"data folder {self.data}: {exc.strerror or exc}") from exc
        except DataFolderError:
            self._unlock()
            raise

    def _lock(self) -> None:
        (self.data / "topics").mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self.data / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataFolderError(
                f"data folder {self.data} is in use by another broker; stop that one or give another --data"
            ) from None

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def close(self) -> None:
        """Flushes all partitions to disk and unlocks the folder. Disk errors are logged."""
        for topic in self:
            for partition in topic.partitions:
                try:
                    partition.close()
                except OSError as exc:
                    log.error("partition %s: cannot flush: %s", partition, exc.strerror)
        self._by_name.clear()
        self._by_id.clear()
        self._unlock()

    def _load_broker(self) -> None:
        stored = self._read_json("broker.json")
        if stored is None:
            raw = base64.urlsafe_b64encode(self._make_uuid().bytes).decode()
            stored = {"cluster_id": raw.rstrip("="), "next_producer_id": 0}
            self._write_json("broker.json", stored)
        self.cluster_id = stored["cluster_id"]
        self._next_producer_id = self._producer_block_end = stored["next_producer_id"]
        self._check_boot()

    def _check_boot(self) -> None:
        """Checks whether the machine was rebooted since the last broker ran on this folder.

        If not, all written data is in the logs, and only their ends can be incomplete.
        """
        boot = boot_id()
        marker = self.data / "boot-id"
        self._same_boot = bool(boot) and marker.exists() and marker.read_text("ascii") == boot
        if not self._same_boot:
            replace_file(marker, boot.encode())

    def _load_topics(self) -> None:
        for entry in (self._read_json("topics.json") or {"topics": []})["topics"]:
            topic = StoredTopic(entry["name"], UUID(entry["id"]), dict(entry["configs"]))
            self._open_partitions(topic, entry["partitions"])
            self._add(topic)
        for folder in (self.data / "topics").iterdir():
            named = _PARTITION_FOLDER.match(folder.name)
            if named and named["topic"] not in self._by_name and (folder / _TOPIC_ID_FILE).exists():
                log.info("%s: removed, its topic was deleted", folder)
                shutil.rmtree(folder)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.data / name
        try:
            document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as exc:
            raise DataFolderError(
                f"{path} is damaged ({exc}); delete the data folder to start with an empty one"
            ) from exc
        return document

    def _write_json(self, name: str, value: dict[str, Any]) -> None:
        replace_file(self.data / name, json.dumps(value, indent=1).encode())

    # -- topics -------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, configs: dict[str, str]) -> StoredTopic:
        """Creates a topic; its name must be legal and unused. Raises OSError if it was not created."""
        topic = StoredTopic(name, self._make_uuid(), configs)
        try:
            self._open_partitions(topic, partitions)
            self._save([*self, topic])
        except OSError:
            self._remove_folders(topic)
            raise
        self._add(topic)
        return topic

    def delete(self, topic: StoredTopic) -> None:
        """Removes a topic and its data and calls ``on_delete``.

        Raises OSError if the deletion cannot be recorded, and then nothing was deleted.
        """
        self._save([other for other in self if other is not topic])
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self._remove_folders(topic)
        self.on_delete(topic.name)

    def _remove_folders(self, topic: StoredTopic) -> None:
        for partition in topic.partitions:
            partition.mark_deleted()
            shutil.rmtree(partition.folder, ignore_errors=True)

    def _add(self, topic: StoredTopic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _save(self, topics: list[StoredTopic]) -> None:
        entries = [
            {"name": t.name, "id": str(t.topic_id), "partitions": len(t.partitions), "configs": t.configs}
            for t in topics
        ]
        self._write_json("topics.json", {"topics": entries})

    def _open_partitions(self, topic: StoredTopic, count: int) -> None:
        segment_bytes = int(topic.configs.get("segment.bytes", self._options.log_segment_bytes))
        for index in range(count):
            folder = self.data / "topics" / f"{topic.name}-{index}"
            self._claim_folder(folder, topic.topic_id)
            partition = PartitionLog(
                folder,
                topic.name,
                index,
                segment_bytes=segment_bytes,
                index_interval_bytes=self._options.log_index_interval_bytes,
            )
            partition.load(check_all=not self._same_boot)
            topic.partitions.append(partition)

    def _claim_folder(self, folder: Path, topic_id: UUID) -> None:
        """Assigns the folder to this topic; removes the data of a deleted topic of the same name.

        A folder whose marker did not reach the disk (a power cut) is kept.
        """
        marker = folder / _TOPIC_ID_FILE
        owner = marker.read_text("ascii") if marker.exists() else ""
        if owner == str(topic_id):
            return
        if owner:
            log.info("%s: removed, it belongs to a topic that was deleted", folder)
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text(str(topic_id), "ascii")

    # -- producer ids -------------------------------------------------------------------------

    def next_producer_id(self) -> int:
        """A producer id that was never returned before, not even before a crash. Raises OSError.

        Ids are recorded a block at a time, before the first of the block is returned.
        """
        if self._next_producer_id == self._producer_block_end:
            end = self._producer_block_end + PRODUCER_ID_BLOCK
            self._write_json("broker.json", {"cluster_id": self.cluster_id, "next_producer_id": end})
            self._producer_block_end = end
        self._next_producer_id += 1
        return self._next_producer_id - 1


def replace_file(path: Path, data: bytes) -> None:
    """Puts ``data`` into ``path`` in one step, safe on disk when it returns. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def boot_id() -> str:
    """Identifies the current boot of the machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def is_known_id(topic_id: UUID) -> bool:
    """Whether a request names a topic by id at all."""
    return topic_id != ZERO_UUID
