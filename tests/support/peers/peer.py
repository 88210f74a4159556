"""Consumers of all clients as members of one group, each a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.support.java.programs import java_command
from tests.support.peers.group_journal import Event
from tests.support.waiting import WAIT_S

OURS = "slackwater"
JAVA = "java"
BROKER_ASSIGNS = "consumer-protocol"
"""In place of an assignor: the members speak the consumer protocol (KIP-848)."""
SESSION_MS = 10_000
"""So long a killed member's partitions stand still; nobody else is kept waiting so long by a busy machine."""


class Peer:
    """One member: its process, and all that it said.

    ``kind``: a client's name in `peer_process.KINDS`, or java. ``name``: its client id. ``metadata``: what it
    commits beside the offsets.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        *,
        bootstrap: str,
        topic: str,
        group: str,
        strategy: str = "range",
        instance: str | None = None,
        session_ms: int = SESSION_MS,
        metadata: str = "",
        batch: int = 200,
    ) -> None:
        self.kind, self.name, self.instance = kind, name, instance
        self.events: list[Event] = []
        self.owned: frozenset[int] = frozenset()
        self.failure: str | None = None
        config = {
            "bootstrap": bootstrap, "topic": topic, "group": group, "strategy": strategy, "batch": batch,
            "instance": instance, "session_ms": session_ms, "heartbeat_ms": 300, "client_id": name,
            "metadata": metadata,
        }  # fmt: skip
        command = _java_command(config) if kind == JAVA else _python_command(kind, config)
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._complain)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A member that was killed in the middle of a line did not say it.
            with contextlib.suppress(json.JSONDecodeError):
                fields = json.loads(line)
                event = Event(self.name, fields.pop("at"), fields.pop("event"), fields)
                self.events.append(event)
                if event.kind == "owned":
                    self.owned = frozenset(fields["partitions"])
                elif event.kind == "failed":
                    self.failure = fields["why"]
        self.owned = frozenset()

    def _complain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-30:], line]

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def said(self, kind: str) -> list[Event]:
        """Its events of one kind."""
        return [event for event in self.events if event.kind == kind]

    def problem(self) -> str | None:
        """Why it has ended, if nobody wanted it to."""
        if self.failure is None and (self.alive or self.said("closed")):
            return None
        return f"{self.name}: {self.failure or 'ended'}\n{''.join(self._errors)}"

    def order(self, line: str) -> None:
        """One line to its stdin; nothing if it is gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """A signal to the process."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone and everything it said was heard."""
        self._process.kill()
        self._end()

    def close(self, timeout_s: float = WAIT_S) -> None:
        """Lets it commit, leave (a dynamic member does) and end. Raises TimeoutExpired, after a kill."""
        self.order("close")
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self._process.wait()
        for thread in self._threads:
            thread.join(WAIT_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _python_command(kind: str, config: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "tests.support.peers.peer_process", kind, json.dumps(config)]


def _java_command(config: dict[str, Any]) -> list[str]:
    package = "org.apache.kafka.clients.consumer"
    assignor = {"range": "RangeAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}
    properties = {
        "bootstrap.servers": config["bootstrap"],
        "client.id": config["client_id"],
        "group.id": config["group"],
        "auto.offset.reset": "earliest",
        "max.poll.records": config["batch"],
    }
    if config["strategy"] == BROKER_ASSIGNS:
        properties["group.protocol"] = "consumer"
    else:
        properties["partition.assignment.strategy"] = f"{package}.{assignor[config['strategy']]}"
        properties["session.timeout.ms"] = config["session_ms"]
        properties["heartbeat.interval.ms"] = config["heartbeat_ms"]
    if config["instance"] is not None:
        properties["group.instance.id"] = config["instance"]
    return java_command(
        "Peer", config["topic"], config["metadata"], *(f"{key}={value}" for key, value in properties.items()),
        heap_mb=96, options=["-Dorg.apache.logging.log4j.level=ERROR"],
    )  # fmt: skip


@contextlib.contextmanager
def peers() -> Iterator[list[Peer]]:
    """A list whose members are killed at the end."""
    running: list[Peer] = []
    try:
        yield running
    finally:
        for peer in running:
            if peer.alive:
                peer.kill()


def wait_for(
    what: str, condition: Callable[[], Any], group: Sequence[Peer], timeout_s: float = WAIT_S
) -> None:
    """Waits until ``condition()`` holds. Raises AssertionError at once if one of the group fails."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for peer in group:
            assert peer.problem() is None, peer.problem()
        shown = {peer.name: sorted(peer.owned) for peer in group}
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:.0f} s: {shown}"
        time.sleep(0.02)
