"""What a worker takes from its environment: its names, its owner, and addresses that override the file's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slackwater.runtime.config.worker_config import WorkerConfig, load
from slackwater.runtime.errors import ConfigError


def instance_of(environment: Mapping[str, str]) -> str:
    """The worker's name from ``SLACKWATER_INSTANCE_ID``. Raises ConfigError without one.

    The broker's rule for a group.instance.id is that of a topic name (KIP-345).
    """
    name = str(environment.get("SLACKWATER_INSTANCE_ID", ""))
    if not name:
        raise ConfigError(
            "is not set: give each worker a unique name that it keeps across restarts "
            "(in a pod: the pod's name)",
            field="SLACKWATER_INSTANCE_ID",
        )
    _check_name(name, "SLACKWATER_INSTANCE_ID")
    return name


def pod_of(environment: Mapping[str, str], instance: str) -> str:
    """The pod's name from ``SLACKWATER_POD_NAME``; ``instance`` where that is not set. Raises ConfigError."""
    name = str(environment.get("SLACKWATER_POD_NAME", "")) or instance
    _check_name(name, "SLACKWATER_POD_NAME")
    return name


def owner_of(environment: Mapping[str, str]) -> str:
    """The uid of the ConsumerGroup that the worker is of, from ``SLACKWATER_GROUP_UID``; "" where that is not
    set. Raises ConfigError.
    """
    from slackwater.kafka.protocol.assignors.marked import OWNER

    uid = str(environment.get("SLACKWATER_GROUP_UID", ""))
    if uid and OWNER.fullmatch(uid) is None:
        raise ConfigError(
            f"must be 1 to 64 letters, digits or '-', not {uid!r}", field="SLACKWATER_GROUP_UID"
        )
    return uid


def settings(file: Path, environment: Mapping[str, str]) -> WorkerConfig:
    """The configuration in ``file``, with ``SLACKWATER_HEALTH_HOST`` in place of ``health.host``, and the
    pod's address, ``SLACKWATER_POD_IP``, as the one that other workers are given. Raises ConfigError.
    """
    config = load(file)
    health = replace(
        config.health,
        host=environment.get("SLACKWATER_HEALTH_HOST") or config.health.host,
        advertised_host=environment.get("SLACKWATER_POD_IP", ""),
    )
    return replace(config, health=health)


def _check_name(name: str, variable: str) -> None:
    allowed = all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    if not allowed or len(name) > 249 or name in (".", ".."):
        raise ConfigError(f"must be 1 to 249 letters, digits, '.', '_' or '-', not {name!r}", field=variable)
