"""`slackwater local run` as a user starts it: one clear line for each fault, and nothing left running."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from slackwater import cli
from slackwater.kafka import KafkaAdmin
from slackwater_operator.api.v1alpha1.consumer_group import load
from tests.operator.integration.local_run.group_files import Feed, group_of_workers
from tests.support.devbroker import DevBroker
from tests.support.processes import reserve_ports
from tests.support.waiting import HANG_S, wait_until
from tests.support.workers.local_run_site import LocalRunSite

WORK = "work"
"""The run's own folder, beside the resource and its handler."""


def command(file: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "slackwater.cli",
        "local",
        "run",
        "-f",
        str(file),
        "--workdir",
        str(file.parent / WORK),
    ]


def run(file: Path) -> tuple[int, list[str]]:
    done = subprocess.run(command(file), capture_output=True, text=True, timeout=HANG_S, check=False)
    return done.returncode, done.stderr.splitlines()


def under_nohup() -> None:
    """In a child process: SIGHUP is ignored there, as nohup has it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def started(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (file.parent / "output").open("wb") as output:
        process = subprocess.Popen(command(file), stdout=output, stderr=output, preexec_fn=under_nohup)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def pids(folder: Path) -> list[int]:
    """The workers' process ids, by their logs."""
    pids = []
    for log in (folder / WORK / "logs").glob("*.log"):
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "started":
                pids.append(int(event["pid"]))
    return pids


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> LocalRunSite:
    return group_of_workers(devbroker.bootstrap, tmp_path, replicas=2)


@pytest.fixture
def group(site: LocalRunSite) -> Path:
    return site.file


def test_a_work_folder_with_files_of_others_is_refused(
    group: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = group.parent / WORK
    work.mkdir()
    (work / "takeover.key").write_text("mine")
    (work / "worker-1.json").write_text("mine")
    assert cli.main(command(group)[3:]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"{work} holds files that `slackwater local run` did not make" in error
    assert error.endswith("move them away, or give another folder with --workdir")
    assert {entry.name: entry.read_text() for entry in work.iterdir()} == {
        "takeover.key": "mine",
        "worker-1.json": "mine",
    }


@pytest.mark.long
def test_a_work_folder_is_reused_by_one_run_at_a_time(group: Path, devbroker: DevBroker) -> None:
    output = group.parent / "output"
    with started(group) as process:
        wait_until(lambda: "done in" in output.read_text())
        code, errors = run(group)
        assert code == 2
        (error,) = errors
        assert f"another `slackwater local run` uses {group.parent / WORK}" in error
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    before = sorted((group.parent / WORK).rglob("*"))
    (port,) = reserve_ports(1)
    right = group.read_text()
    group.write_text(right.replace(devbroker.bootstrap, f"127.0.0.1:{port}"))
    code, _ = run(group)
    assert code == 1
    assert sorted((group.parent / WORK).rglob("*")) == before
    group.write_text(right)
    with started(group) as process:
        wait_until(lambda: "done in" in output.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0


def test_ctrl_c_ends_everything_and_empties_the_group(group: Path, devbroker: DevBroker) -> None:
    output = group.parent / "output"
    with started(group) as process:
        wait_until(lambda: "done in" in output.read_text())
        workers = pids(group.parent)
        assert len(workers) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    assert [pid for pid in workers if alive(pid)] == []
    assert output.read_text().splitlines()[-1].endswith("all workers have ended")
    with KafkaAdmin(devbroker.bootstrap) as admin:
        name = load(group).name
        assert admin.describe_groups([name]).unwrap()[name].state == "Empty"


@pytest.mark.long
def test_a_second_ctrl_c_does_not_wait_for_a_handler_that_hangs(
    site: LocalRunSite, group: Path, devbroker: DevBroker
) -> None:
    site.change("handlers:keep", "handlers:hangs")
    output = group.parent / "output"
    with Feed(devbroker.bootstrap, load(group).name), started(group) as process:
        wait_until(lambda: (group.parent / "hangs").exists())
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "ending the workers" in output.read_text())
        before = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
        assert time.monotonic() - before < 12  # the worker itself would give up after 15 s
    wait_until(lambda: not any(alive(pid) for pid in pids(group.parent)))


@pytest.mark.long
def test_ctrl_c_during_the_start_leaves_no_worker(group: Path) -> None:
    with started(group) as process:
        wait_until(lambda: len(pids(group.parent)) == 2 if (group.parent / WORK / "logs").exists() else False)
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
        workers = pids(group.parent)
    wait_until(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.long
def test_a_hangup_rolls_the_workers_with_the_changed_file(site: LocalRunSite, group: Path) -> None:
    site.change("strategy: Restart", "strategy: Takeover")
    output = group.parent / "output"
    right = group.read_text()
    with started(group) as process:
        wait_until(lambda: "start 2 workers: done in" in output.read_text())
        group.write_text(right.replace("strategy: Takeover", "strategy: Takeovers"))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the workers are not rolled: " in output.read_text())
        assert "did you mean Takeover?" in output.read_text()
        group.write_text(right)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "take over all workers: done in" in output.read_text())
        assert ", 0 rebalances, " in output.read_text().partition("take over all workers: done in")[2]
        group.write_text(right.replace("strategy: Takeover", "strategy: Restart"))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "restart all workers: done in" in output.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    assert len(pids(group.parent)) == 6


@contextmanager
def in_a_terminal(file: Path, hangups: signal.Handlers) -> Iterator[tuple[int, Callable[[], None]]]:
    """A run in a terminal of its own, whose workers have started; gives its process id, and what closes that.

    Its output goes to `output`, as under nohup.
    """
    pid, terminal = pty.fork()
    output = file.parent / "output"
    if pid == 0:
        signal.signal(signal.SIGHUP, hangups)
        log = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.execv(sys.executable, command(file))
    try:
        wait_until(lambda: output.exists() and "start 2 workers: done in" in output.read_text())
        yield pid, lambda: os.close(terminal)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_under_nohup_the_closed_terminal_ends_nothing_and_a_hangup_rolls(group: Path) -> None:
    output = group.parent / "output"
    with in_a_terminal(group, signal.SIG_IGN) as (pid, close):
        close()
        wait_until(lambda: "the terminal was closed" in output.read_text())
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: "restart all workers: done in" in output.read_text())


@pytest.mark.long
def test_closing_the_terminal_ends_the_run_and_empties_the_group(group: Path, devbroker: DevBroker) -> None:
    with in_a_terminal(group, signal.SIG_DFL) as (pid, close):
        workers = pids(group.parent)
        close()
        wait_until(lambda: os.waitpid(pid, os.WNOHANG) != (0, 0))
    assert [pid for pid in workers if alive(pid)] == []
    with KafkaAdmin(devbroker.bootstrap) as admin:
        name = load(group).name
        assert admin.describe_groups([name]).unwrap()[name].state == "Empty"


def test_workers_end_when_their_supervisor_is_killed(devbroker: DevBroker, tmp_path: Path) -> None:
    group = group_of_workers(devbroker.bootstrap, tmp_path, replicas=1, preflight=False).file
    with started(group) as process:
        wait_until(lambda: "done in" in (group.parent / "output").read_text())
        (worker,) = pids(group.parent)
        process.kill()
        process.wait()
    wait_until(lambda: not alive(worker))
