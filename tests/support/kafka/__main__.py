"""Runs a command against a broker of its own::

python -m tests.support.kafka [--version 2.8.2] -- CMD ... {bootstrap} ...
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.jars import KAFKA_VERSION, RELEASES, KafkaUnavailable
from tests.support.processes import OwnedProcess


def _exit_on_term(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _await_end(pid: int) -> None:
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])


def run_command(command: list[str], bootstrap: str) -> int:
    """Runs ``command`` in the foreground and hands SIGINT, SIGTERM and SIGHUP on to it, once each.

    The command has a session of its own, so that Ctrl-C reaches it through here only. Returns its
    exit code, 128 + n if signal n ended it.
    """
    early: list[int] = []
    child: OwnedProcess | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send(signal.Signals(number))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    child = OwnedProcess([part.replace("{bootstrap}", bootstrap) for part in command], end_signal="TERM")
    for missed in early:
        child.send(signal.Signals(missed))
    code = child.wait()
    return code if code >= 0 else 128 - code


def main(arguments: list[str] | None = None) -> int:
    """``python -m tests.support.kafka [--brokers N] [-- CMD ...]``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.kafka", description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--version", default=KAFKA_VERSION, choices=list(RELEASES))
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--until-gone", type=int, metavar="PID", help="serve until this process has ended")
    parser.add_argument("command", nargs="*", help="run with {bootstrap} replaced; none: serve until Ctrl-C")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_term)
    print(f"kafka: starting Apache Kafka {options.version}", file=sys.stderr, flush=True)
    try:
        config = dict(setting.split("=", 1) for setting in options.config)
        with KafkaCluster(options.brokers, config, version=options.version) as cluster:
            print(f"kafka: serving at {cluster.bootstrap}", file=sys.stderr, flush=True)
            if options.command:
                return run_command(options.command, cluster.bootstrap)
            print(cluster.bootstrap, flush=True)
            if options.until_gone is not None:
                _await_end(options.until_gone)
                return 0
            threading.Event().wait()
    except KafkaUnavailable as exc:
        print(f"kafka: {exc}", file=sys.stderr)
        return 1
    except FileNotFoundError as exc:
        print(f"kafka: cannot run {exc.filename}: {exc.strerror}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
