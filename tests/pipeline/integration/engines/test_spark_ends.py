"""Spark as child processes: they start, answer, and never outlive who started them; what an engine says when
they have ended.

Beside other tests with Spark, those of this file run last: they end the session and the server of all.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slackwater.pipeline.engines.connect_server import ConnectServer
from slackwater.pipeline.engines.spark import EngineLostError
from slackwater.runtime.errors import StartError
from tests.pipeline.integration.engines.pipeline_host import table
from tests.pipeline.integration.engines.shared_spark import SharedSpark
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.parts("spark")


def ends(pid: int, timeout_s: float = HANG_S) -> bool:
    """Whether the process is gone, or a zombie that waits for its parent."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_java_process_that_dies_is_an_error_of_its_own(shared_spark: SharedSpark) -> None:
    host = shared_spark.host("local")
    host.start("keep")
    host.transform(table([1]))
    host.kill_java()
    began = time.monotonic()
    with pytest.raises(EngineLostError, match="Java process has ended or does not answer"):
        host.transform(table([2]))
    host.close_engine()
    shared_spark.local.close()
    assert time.monotonic() - began < 30


@pytest.mark.long
def test_a_server_that_stops_is_an_error_of_its_own(shared_spark: SharedSpark) -> None:
    server, host = shared_spark.server, shared_spark.host("connect")
    host.start("keep")
    records = table(list(range(100)))
    assert host.transform(records).to_pylist() == records.to_pylist()
    pid = server.pid
    assert pid is not None
    server.stop()
    assert ends(pid)
    assert server.pid is None
    assert not server.answers()
    began = time.monotonic()
    with pytest.raises(EngineLostError, match="sc://127.0.0.1:.* has ended or does not answer"):
        host.transform(table([2]))
    host.close_engine()
    with pytest.raises(StartError, match="sc://127.0.0.1:"):
        host.start("keep")
    assert time.monotonic() - began < 60


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_the_connect_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, threading, pathlib\n"
        "from slackwater.pipeline.engines.connect_server import ConnectServer\n"
        "server = ConnectServer(log_path=pathlib.Path(sys.argv[1]))\n"
        "starter = threading.Thread(target=server.spawn)\n"
        "starter.start()\nstarter.join()\n"
        "print(server.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "connect.log")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        # The thread that called spawn() has ended: that alone must not end the server.
        assert not ends(pid, 1)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert ends(pid)


@pytest.mark.long
def test_an_invalid_setting_is_reported_with_the_log_file(tmp_path: Path) -> None:
    server = ConnectServer({"spark.master": "nonsense"}, log_path=tmp_path / "connect.log")
    with pytest.raises(StartError, match=r"ended with code \d+; see .*connect\.log"):
        server.start()
    assert server.pid is None
    assert "Master must either be" in (tmp_path / "connect.log").read_text()


def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(StartError, match="Spark found no Java: JAVA_HOME is .*none"):
        ConnectServer(log_path=tmp_path / "connect.log").start()
