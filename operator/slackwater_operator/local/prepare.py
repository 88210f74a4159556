"""From a ConsumerGroup's file to what a worker process is started with."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.specs.worker_config import worker_config

JOIN_GATE_MS = 600_000
"""How long a warm worker waits for the supervisor to let it in before it joins by itself. The supervisor
decides when to give up on a batch; this is for a supervisor that hangs."""


@dataclass(frozen=True)
class Source:
    """A ConsumerGroup and where its relative paths start.

    Attributes:
        group: the resource.
        folder: the folder of its file: where spec.pipeline.handlerPath starts.
        current: the folder where spec.pipeline.sink.path starts.
    """

    group: ConsumerGroup
    folder: Path
    current: Path

    @property
    def handler_path(self) -> list[str]:
        """Folders for sys.path; without any given, the file's own and the one above it."""
        given = self.group.spec.pipeline.handler_path
        if given is None:
            return [str(self.folder.resolve()), str(self.folder.resolve().parent)]
        return [str((self.folder / one).resolve()) for one in given]

    @property
    def sink_path(self) -> str:
        """The sink's path: a URL as it is, anything else from the current folder."""
        path = self.group.spec.pipeline.sink.path
        return path if re.match(r"[a-z][a-z0-9+.-]*:", path) else str((self.current / path).resolve())

    def rolled_by(self, strategy: str) -> Source:
        """The same with another spec.rollout.strategy."""
        rollout = replace(self.group.spec.rollout, strategy=strategy)
        return replace(self, group=replace(self.group, spec=replace(self.group.spec, rollout=rollout)))

    def at(self, bootstrap_servers: str) -> Source:
        """The same with other brokers."""
        kafka = replace(self.group.spec.kafka, bootstrap_servers=bootstrap_servers)
        return replace(self, group=replace(self.group, spec=replace(self.group.spec, kafka=kafka)))


def write_worker_config(
    source: Source, path: Path, *, spark_remote: str = "", key_file: Path | None = None
) -> None:
    """Writes a worker's configuration (as JSON, which is YAML too and quicker to read).

    Args:
        source: the resource and where its paths start.
        path: the file; its folder is made.
        spark_remote: a Spark Connect server to use where the resource names none.
        key_file: the key that takeovers are signed with; None: there are none.

    Raises:
        OSError: it cannot be written.
    """
    document = worker_config(
        source.group,
        handler_path=source.handler_path,
        sink_path=source.sink_path,
        join_gate_ms=JOIN_GATE_MS,
        spark_remote=spark_remote,
        takeover_key_file=str(key_file.resolve()) if key_file is not None else "",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def worker_command(config: Path) -> list[str]:
    """The command that runs a worker with this configuration."""
    return [sys.executable, "-m", "slackwater.cli", "worker", "--config", str(config)]
