"""``slackwater devbroker``: a broker for one machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.devbroker.broker import BrokerStartError, DevBroker
from slackwater.devbroker.options import BrokerOptionError, parse_settings

_BAD_START = 2
_MOST_PORT = 65535


def register(subparsers: Any) -> None:
    """Adds the command to the ``slackwater`` CLI."""
    parser = subparsers.add_parser(
        "devbroker",
        help="run a Kafka broker for one machine",
        description="A Kafka broker in one process, for development and tests. It prints one JSON line "
        "when it listens, and runs until SIGTERM or Ctrl-C.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="data folder, created if missing"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=0, help="port to listen on (default: 0, any free port)")
    parser.add_argument(
        "--control-port",
        type=_port,
        default=None,
        help="loopback port for faults and state over HTTP; 0: any free port",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="a broker option by Kafka's name, such as num.partitions=6; may be repeated",
    )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"must be from 0 to {_MOST_PORT}, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Runs the broker; 0 after a signal, 2 where it cannot start (one line on stderr says why)."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    _allow_many_files()
    try:
        return asyncio.run(_serve(args, parse_settings(args.settings)))
    except (BrokerOptionError, BrokerStartError) as exc:
        print(f"slackwater devbroker: error: {exc}", file=sys.stderr)
        return _BAD_START


async def _serve(args: argparse.Namespace, settings: Mapping[str, str]) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    broker = DevBroker(
        args.data, host=args.host, port=args.port, control_port=args.control_port, settings=settings
    )
    async with broker:
        line = {
            "event": "listening",
            "host": broker.host,
            "port": broker.port,
            "control_port": broker.control_port,
        }
        print(json.dumps(line), flush=True)
        await stopped.wait()
    return 0


def _allow_many_files() -> None:
    """Raises the limit of open files to the maximum: each segment and connection needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """``python -m slackwater.devbroker``."""
    parser = argparse.ArgumentParser(prog="slackwater devbroker")
    add_arguments(parser)
    return run(parser.parse_args())
