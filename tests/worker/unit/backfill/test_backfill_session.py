"""Where a backfill's Spark session comes from."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pyspark.sql
import pytest

from slackwater.backfill import session as module
from slackwater.backfill.session import Session, check_master
from slackwater.runtime.config.pipeline_config import SparkConfig
from slackwater.runtime.errors import StartError
from tests.support.processes import reserve_ports


def test_a_master_that_is_away_is_an_error_at_once() -> None:
    first, second = reserve_ports(2)
    with pytest.raises(StartError, match=f"no Spark master answers at .*{second}: Connection refused"):
        Session(spark_on(f"spark://127.0.0.1:{first},127.0.0.1:{second}"), "", ()).open()
    with pytest.raises(StartError, match="no Spark master answers at spark://nowhere"):
        check_master("spark://nowhere")


def test_one_master_of_several_is_enough() -> None:
    (away,) = reserve_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:{away},127.0.0.1:{server.getsockname()[1]}")
    check_master("yarn")


class Builder:
    """Of sessions. ``create``: what makes one."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self.getOrCreate = create

    def appName(self, _name: str) -> Builder:  # noqa: N802
        return self

    def config(self, _name: str, _value: str) -> Builder:
        return self


class WithoutExecutors:
    """A session whose queries get no executor before ``ended`` is set."""

    def __init__(self, ended: Any) -> None:
        self.ended, self.stopped = ended, False

    def range(self, _count: int) -> WithoutExecutors:
        return self

    def count(self) -> None:
        self.ended.wait()

    def stop(self) -> None:
        self.stopped = True


def test_a_cluster_without_free_workers_is_an_error_after_the_start_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    ended = threading.Event()
    spark = WithoutExecutors(ended)
    monkeypatch.setattr(pyspark.sql.SparkSession, "builder", Builder(lambda: spark))
    monkeypatch.setattr(module, "prepare_java", lambda: None)
    session = Session(spark_on("yarn", start_timeout_ms=20), "", ())
    try:
        with pytest.raises(StartError, match=r"application on yarn got no executor within 0\.02 s"):
            session.open()
        session.close()
        assert spark.stopped
    finally:
        ended.set()


def spark_on(master: str, **settings: Any) -> SparkConfig:
    return SparkConfig(conf={"spark.master": master}, **settings)
