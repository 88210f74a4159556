"""The settings of a group, from a ConsumerGroup's file or from a worker's configuration file.

The resource is not the worker's: a distribution that knows it says how to make a worker's configuration of
it, by the entry point ``ConsumerGroup`` of the group ``slackwater.resources``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from slackwater.extras import CLI
from slackwater.runtime.config.worker_config import WorkerConfig, load, parse
from slackwater.runtime.errors import ConfigError

ENTRY_POINTS = "slackwater.resources"
KIND = "ConsumerGroup"

ToDocument = Callable[[Path, Path | None], dict[str, Any]]
"""Makes the document of a worker's configuration file from the resource's file and the folder of its
Secrets."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that :func:`config_of` reads."""
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("-f", "--file", type=Path, metavar="FILE", help="the ConsumerGroup's YAML")
    given.add_argument("--config", type=Path, metavar="FILE", help="a worker's YAML file, instead of -f")
    parser.add_argument(
        "--bootstrap", default="", metavar="HOST:PORT", help="brokers to use instead of the file's"
    )
    parser.add_argument(
        "--secrets",
        type=Path,
        default=None,
        metavar="DIR",
        help="with -f: folder of the Secrets of spec.kafka.security, one file per key: DIR/SECRET/KEY",
    )


def config_of(arguments: argparse.Namespace) -> WorkerConfig:
    """The group's settings. Raises ConfigError, or what the resource's own parser raises (ValueError)."""
    from dataclasses import replace

    if arguments.file is not None:
        config = _from_resource(arguments.file, arguments.secrets)
    else:
        config = load(arguments.config)
    return replace(config, bootstrap_servers=arguments.bootstrap or config.bootstrap_servers)


def config_of_file(file: Path, *, secrets: Path | None, bootstrap: str) -> WorkerConfig:
    """The settings in a ConsumerGroup's file or a worker's. Raises as :func:`config_of`."""
    from dataclasses import replace

    config = _from_resource(file, secrets) if _is_resource(file) else load(file)
    return replace(config, bootstrap_servers=bootstrap or config.bootstrap_servers)


def _is_resource(file: Path) -> bool:
    """Whether the file has a ConsumerGroup; one that cannot be read has none."""
    CLI.require("a file in YAML")
    import yaml

    try:
        with file.open(encoding="utf-8") as opened:
            documents = list(yaml.safe_load_all(opened))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    return any(isinstance(document, dict) and document.get("kind") == KIND for document in documents)


def _from_resource(file: Path, secrets: Path | None) -> WorkerConfig:
    entry = next(iter(entry_points(group=ENTRY_POINTS, name=KIND)), None)
    if entry is None:
        raise ConfigError(
            f"-f needs the package slackwater-operator, which reads {KIND} files: install it, or give a "
            "worker's file with --config"
        )
    to_document: ToDocument = entry.load()
    return parse(to_document(file, secrets), str(file))
