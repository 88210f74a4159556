"""Settings of Spark sessions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slackwater import java
from slackwater.pipeline.engines import spark_session
from slackwater.pipeline.engines.spark_session import (
    CONNECT,
    NSS_WRAPPER_VARIABLE,
    ConnectBackend,
    LocalBackend,
    prepare_environment,
)
from slackwater.runtime.errors import StartError

LAPTOP = {"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"}


def test_settings_for_small_batches_are_not_made_on_somebody_elses_server() -> None:
    assert LocalBackend({})._conf.keys() >= LAPTOP
    assert not ConnectBackend("sc://spark:15002", {})._conf.keys() & LAPTOP
    asked = {"spark.sql.shuffle.partitions": "8"}
    assert ConnectBackend("sc://spark:15002", asked)._conf["spark.sql.shuffle.partitions"] == "8"


class Server:
    """A Connect server's session. ``calls``: what it was asked for. ``away``: the call that fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.away = ""
        self.conf = self.builder = self

    def remote(self, _address: str) -> Server:
        return self

    def create(self) -> Server:
        return self

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Server:
            self.calls.append(" ".join(map(str, (name, *arguments))))
            if name == self.away:
                raise ConnectionError("no such server")
            return self

        return answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr("pyspark.sql.SparkSession", made)
    monkeypatch.setattr(spark_session, "_retry_briefly", lambda _spark: None)
    return made


def test_a_servers_settings_are_made_before_the_first_query(server: Server) -> None:
    """The client reads the setting of compression once, with the first query."""
    ConnectBackend("sc://spark:15002", {}).open()
    settings = [f"set {key} {value}" for key, value in CONNECT.items()]
    query = server.calls.index("range 1")
    assert set(settings) <= set(server.calls[:query])
    assert server.calls[query:] == ["range 1", "count"]


@pytest.mark.parametrize("away", ["get", "count"])
def test_a_server_that_does_not_answer_is_a_start_error(server: Server, away: str) -> None:
    server.away = away
    with pytest.raises(StartError, match="sc://spark:15002 does not answer; start it, or correct"):
        ConnectBackend("sc://spark:15002", {}).open()


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without an entry in /etc/passwd, whose home is tmp_path."""
    monkeypatch.setattr(os, "environ", {"PATH": "/usr/bin", "HOME": str(tmp_path)})
    monkeypatch.setattr(java, "find", lambda: java.Java(tmp_path, "17", "PATH"))
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)


@pytest.mark.usefixtures("nameless")
def test_spark_of_a_user_without_a_name_gets_one() -> None:
    os.environ[NSS_WRAPPER_VARIABLE] = "libnss_wrapper.so"
    os.environ["LD_PRELOAD"] = "other.so"
    for _ in range(2):  # a worker opens another session after it lost one
        prepare_environment()
    assert os.environ["LD_PRELOAD"] == "libnss_wrapper.so:other.so"
    *others, own = Path(os.environ["NSS_WRAPPER_PASSWD"]).read_text().splitlines()
    assert others == Path("/etc/passwd").read_text().splitlines()
    name, _, uid, gid, *_ = own.split(":")
    assert (name, uid, gid) == ("slackwater", str(os.getuid()), str(os.getgid()))


@pytest.mark.usefixtures("nameless")
def test_spark_of_a_user_without_a_name_is_refused_where_none_can_be_given() -> None:
    with pytest.raises(
        StartError, match=f"{os.getuid()} has no entry in /etc/passwd.*{NSS_WRAPPER_VARIABLE}"
    ):
        prepare_environment()
