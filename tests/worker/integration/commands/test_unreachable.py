"""No broker can be reached: a command, for which a person waits, says so in two seconds."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import reserve_ports
from tests.support.workers.commands import run_command
from tests.worker.integration.commands.group_settings import group_settings

COMMANDS = {
    "topics": ["topics"],
    "produce": ["produce", "t"],
    "tail": ["tail", "t"],
    "lag": ["lag"],
    "try": ["try", "--config", "group.json", "--from", "t"],
    "dlq": ["dlq", "list", "--config", "group.json"],
    "backfill": ["backfill", "--config", "group.json", "--from", "earliest"],
}
SILENT = "broker.silent.invalid"
RESOLVER = f"""
import socket, threading
system = socket.getaddrinfo
def getaddrinfo(host, *args, **kwargs):
    if host == {SILENT!r}:
        threading.Event().wait()
    return system(host, *args, **kwargs)
socket.getaddrinfo = getaddrinfo
"""
"""Put into a process before it starts: a resolver that never answers for one name."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(RESOLVER)
    return tmp_path


def write_group(folder: Path, bootstrap: str) -> None:
    (folder / "group.json").write_text(json.dumps(group_settings(bootstrap, folder)))


def run(folder: Path, command: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
    write_group(folder, bootstrap)
    path = os.pathsep.join([str(folder), *(place for place in sys.path if place)])
    return subprocess.run(
        [sys.executable, "-m", "slackwater", *COMMANDS[command]],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path, "SLACKWATER_BOOTSTRAP": bootstrap},
    )


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=() if name == "topics" else pytest.mark.long) for name in COMMANDS],
)
def test_a_resolver_that_does_not_answer(folder: Path, command: str) -> None:
    """The process ends although its look-up never does."""
    done = run(folder, command, f"{SILENT}:9092")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"slackwater: error: no broker answered within 2000 ms: {SILENT}:9092 (the resolver has not "
        "answered); correct the address (--bootstrap), or start a broker there\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_connections_are_refused_by_all(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = reserve_ports(2)
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
    write_group(tmp_path, bootstrap)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", bootstrap)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    done = run_command(tmp_path, *COMMANDS[command])
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    for port in ports:
        assert f"127.0.0.1:{port}: Connection refused" in line
    assert line.endswith("; correct the address (--bootstrap), or start a broker there")


def test_a_name_that_does_not_exist(tmp_path: Path) -> None:
    done = run_command(tmp_path, "topics", "-b", "no-such-host.invalid:9092")
    assert done.returncode == 1
    assert "no-such-host.invalid:9092" in done.stderr
