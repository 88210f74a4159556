"""How a command reaches a Kafka cluster: ``--bootstrap`` and ``--command-config``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.kafka.net.security.options import security_from_properties
from slackwater.runtime.errors import ConfigError
from slackwater.tools import clients

if TYPE_CHECKING:
    from slackwater.kafka import KafkaAdmin, KafkaConsumer, KafkaProducer
    from slackwater.kafka.net.security.settings import Security

VARIABLE = "SLACKWATER_BOOTSTRAP"
"""The environment variable that ``--bootstrap`` may be left out for."""
DEFAULT = "localhost:9092"
_MOST_BYTES = 64 * 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "-b",
        "--bootstrap",
        default=os.environ.get(VARIABLE, DEFAULT),
        metavar="HOST:PORT",
        help=f"brokers (default: ${VARIABLE}, else {DEFAULT})",
    )
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="properties for the connection, as Kafka's tools take them (security.protocol=...)",
    )


class CommandClients:
    """The clients of a command. Each raises ConfigError where the options are wrong, and StartError where no
    broker can be reached."""

    def __init__(self, args: argparse.Namespace) -> None:
        """``args``: with the options of :func:`add_options`. Raises ConfigError for a file that cannot be
        read."""
        self.bootstrap: str = args.bootstrap
        self._security = _security(args.command_config)

    def admin(self) -> KafkaAdmin:
        """An admin client."""
        return clients.admin(self.bootstrap, self._security)

    def consumer(self) -> KafkaConsumer:
        """A consumer without a group."""
        from slackwater.kafka import KafkaConsumer

        return KafkaConsumer(
            **self._options("slackwater-tail"),
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            fetch_max_wait_ms=50,  # a fetch that waits at one partition's end holds up the next partition's
        )

    def producer(self) -> KafkaProducer:
        """An idempotent producer."""
        from slackwater.kafka import KafkaProducer

        return KafkaProducer(
            **self._options("slackwater-produce"),
            compression_type="lz4",
            allow_auto_create_topics=False,
            max_block_ms=clients.SEND_MS,
            delivery_timeout_ms=clients.SEND_MS,
        )

    def _options(self, client_id: str) -> dict[str, Any]:
        self.admin().close()  # says soon that no broker can be reached
        return {
            "bootstrap_servers": self.bootstrap,
            "client_id": client_id,
            "security": self._security,
            "bootstrap_timeout_ms": clients.REQUEST_MS,
            "request_timeout_ms": clients.REQUEST_MS,
        }


def _security(file: Path | None) -> Security:
    from slackwater.kafka.errors import KafkaConfigurationError

    try:
        return security_from_properties(_properties(file) if file is not None else {})
    except KafkaConfigurationError as exc:
        raise ConfigError(str(exc), file=str(file or "")) from exc


def _properties(file: Path) -> dict[str, str]:
    """The ``name=value`` lines of a properties file."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        text = content.decode()
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=str(file)) from exc
    except UnicodeDecodeError:
        raise ConfigError("is not a properties file: it is not UTF-8", file=str(file)) from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"has more than {_MOST_BYTES} bytes", file=str(file))
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"line {number} is not name=value", file=str(file))
        properties[name.strip()] = value.strip()
    return properties
