"""The configurations that a run's workers are started with: each in a file of its own, by number."""

from __future__ import annotations

import os
from pathlib import Path

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.local.prepare import Source, write_worker_config
from slackwater_operator.local.views import RunError

KEY_BYTES = 32
"""How long the key of takeovers is."""


class Revisions:
    """Writes configurations and remembers which is which.

    Attributes:
        source: the resource that the next configuration is written from.
    """

    def __init__(self, source: Source, workdir: Path, *, spark_remote: str, key: bytes) -> None:
        """Writes nothing yet.

        Args:
            source: the resource.
            workdir: the folder for the files.
            spark_remote: a Spark Connect server for the workers, where the resource names none.
            key: `KEY_BYTES` random bytes that takeovers are signed with; empty: there can be none.

        Raises:
            ValueError: the key has another length.
        """
        if len(key) not in (0, KEY_BYTES):
            raise ValueError(f"the key of takeovers must have {KEY_BYTES} bytes, not {len(key)}")
        self.source = source
        self.key = key
        self._workdir = workdir
        self._spark_remote = spark_remote
        self._newest = 0
        self._keyed: set[int] = set()

    def path(self, revision: int) -> Path:
        """The configuration's file."""
        return self._workdir / f"worker-{revision}.json"

    def keyed(self, revision: int) -> bool:
        """Whether the workers of that revision have the key that a handover is asked for with."""
        return revision in self._keyed

    def replace(self, group: ConsumerGroup) -> None:
        """Takes a changed resource for the next configuration.

        Raises:
            ValueError: its name or groupId is another.
        """
        now = self.source.group
        if (group.name, group.group_id) != (now.name, now.group_id):
            raise ValueError("metadata.name and spec.groupId cannot be changed while the group runs")
        self.source = Source(group, self.source.folder, self.source.current)

    def write(self, *, takes_over: bool = False) -> int:
        """Writes a configuration from what `source` is now; gives its number.

        Args:
            takes_over: whether it has the key of takeovers whatever spec.rollout.strategy says.

        Raises:
            RunError: the file cannot be written.
        """
        path = self.path(self._newest + 1)
        keyed = bool(self.key) and (takes_over or self.source.group.spec.rollout.takes_over)
        try:
            key_file = self._write_key() if keyed else None
            write_worker_config(self.source, path, spark_remote=self._spark_remote, key_file=key_file)
        except OSError as error:
            raise RunError(f"{error.filename or path}: cannot be written: {error.strerror}") from None
        self._newest += 1
        if keyed:
            self._keyed.add(self._newest)
        return self._newest

    def _write_key(self) -> Path:
        """The key's file, which nobody else may read: who has the key can end a worker's work."""
        path = self._workdir / "takeover.key"
        if self._keyed:
            return path  # workers may be reading it
        self._workdir.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may be there from another run, with another mode
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self.key.hex().encode())
        return path
