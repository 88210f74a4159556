"""The command ``slackwater backfill`` on a Connect server, and as an application of spark-submit: it is
killed on its way, and run again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

import slackwater
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.engines.connect_server import ConnectServer
from slackwater.pipeline.engines.spark_session import prepare_environment
from tests.pipeline.integration.engines.backfill_site import HANDLER, PARTITIONS, group_rows, ids, write
from tests.support.devbroker import DevBroker
from tests.support.processes import OwnedProcess
from tests.support.waiting import wait_until
from tests.support.workers.group_site import GroupSite

pytestmark = [pytest.mark.parts("spark"), pytest.mark.long]

RECORDS, REJECTED = 900, 90
LIVE = 10
"""Records of partition 0 that the live group has written."""
OPTIONS = ("--batch-rows=100", "--output=json")
START_S = 180.0


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> Iterator[GroupSite]:
    with GroupSite(
        devbroker.bootstrap, tmp_path, handler=HANDLER, partitions=PARTITIONS, dead_letters=2
    ) as made:
        yield made


class Command:
    """A run of the command ``words`` with ``arguments`` for ``site``."""

    def __init__(self, site: GroupSite, words: list[str], config: Path, arguments: list[str]) -> None:
        prepare_environment()
        self._output = site.folder / f"output-{len(list(site.folder.glob('output-*')))}"
        begins = [
            f"--from={site.topic}:{number}:{LIVE if number == 0 else 0}" for number in range(PARTITIONS)
        ]
        with self._output.open("wb") as output:
            self.process = OwnedProcess(
                [*words, "backfill", f"--config={config}", *begins, *OPTIONS, *arguments],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
                output=output,
            )

    def text(self) -> str:
        return self._output.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has reported so far; Spark writes to the same file."""
        lines = [line for line in self.text().splitlines(keepends=True) if line.endswith("}\n")]
        events = [json.loads(line) for line in lines if line.startswith('{"event"')]
        return [event for event in events if event["event"] == name]


@pytest.mark.parametrize(
    ("way", "engine"), [("connect", "spark"), ("connect", "arrow"), ("submit", "spark"), ("submit", "arrow")]
)
def test_each_record_is_written_once_though_the_command_is_killed(
    site: GroupSite, tmp_path: Path, way: str, engine: str
) -> None:
    rejected = [number for number in range(RECORDS) if number % REJECTED == 0 and number >= PARTITIONS * LIVE]
    write(site, range(RECORDS), rejected=REJECTED)
    site.commit({0: 7, 1: 8, 2: 9})
    live = group_rows(site, LIVE)
    marks = live.marks([TopicPartition(site.topic, 0)])
    config = tmp_path / "worker.yaml"
    handler = {"spark": "transform", "arrow": "rejecting"}[engine]
    config.write_text(yaml.safe_dump(site.config(engine=engine, handler=f"site_handler:{handler}")))
    with Cluster(way, tmp_path) as (words, arguments):
        first = Command(site, words, config, arguments)
        try:
            wait_until(lambda: first.events("progress") or not first.process.running(), first.text, START_S)
        finally:
            first.process.kill()
        assert first.events("progress"), first.text()
        assert not first.events("end")
        second = Command(site, words, config, arguments)
        try:
            assert second.process.wait(START_S) == 0, second.text()
        finally:
            second.process.kill()
    (plan,), (end,) = second.events("plan"), second.events("end")
    assert any(part["position"] > part["start"] for part in plan["ranges"])
    assert 0 < end["rows"] < RECORDS - PARTITIONS * LIVE
    assert ids(site) == sorted(set(range(RECORDS)) - set(rejected))
    letters = [json.loads(letter.value or b"")["id"] for letter in site.dead_letters()]
    assert sorted(letters) == rejected
    assert site.committed() == {0: 7, 1: 8, 2: 9}
    assert live.marks([TopicPartition(site.topic, 0)]) == marks
    assert site.describe().state == "Empty"


class Cluster:
    """How the command is started, and on what: the words before ``backfill``, and arguments behind it."""

    def __init__(self, way: str, folder: Path) -> None:
        self._server = ConnectServer(log_path=folder / "connect.log") if way == "connect" else None

    def __enter__(self) -> tuple[list[str], list[str]]:
        if self._server is not None:
            self._server.start()
            return [sys.executable, "-m", "slackwater"], ["--remote", self._server.remote]
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        application = Path(slackwater.__file__).parent / "submit.py"
        return [str(submit), "--master", "local[2]", "--driver-memory", "1g", str(application)], []

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()
