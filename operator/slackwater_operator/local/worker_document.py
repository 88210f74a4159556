"""A worker's configuration from a ConsumerGroup's file, for the commands that work beside a group.

`slackwater try` and `slackwater dlq` find it by the entry point `ConsumerGroup` of the group
`slackwater.resources`: the worker's distribution knows nothing of this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slackwater_operator.local.source import read_secrets, read_source
from slackwater_operator.specs.worker_config import security_section, worker_config


def worker_document(file: Path, secrets: Path | None) -> dict[str, Any]:
    """The document that a worker of the group reads, with paths and Secrets of this machine.

    Args:
        file: the ConsumerGroup's YAML. `handlerPath` starts in its folder, as with `slackwater local run`.
        secrets: the folder with the Secrets of spec.kafka.security, as SECRET/KEY; None: there is none.

    Raises:
        ResourceError: the file is wrong; names the line.
        RunError: a Secret's file is missing.
    """
    source = read_source(file, Path.cwd())
    group = source.group
    read_secrets(group, secrets)
    document = worker_config(
        group, handler_path=source.handler_path, resolved=source.resolved, join_gate_ms=0
    )
    section = security_section(group.spec.kafka.security, str(secrets), by_secret=True)
    return {**document, "security": section} if section else document
