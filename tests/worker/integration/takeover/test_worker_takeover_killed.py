"""Takeovers between real worker processes in which one of the two is killed, or hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.workers.takeover_site import TakeoverSite

pytestmark = pytest.mark.long

PARTITIONS = 6


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[TakeoverSite]:
    with TakeoverSite(broker.bootstrap, tmp_path, PARTITIONS, deadline_ms=5_000) as site:
        yield site


def test_a_hung_predecessor_is_replaced_at_the_deadline_and_writes_nothing(
    site: TakeoverSite,
) -> None:
    site.flow.start(300)
    (a0,) = site.members(1, slow_ms=200)
    generation = a0.status()["generation"]
    b0 = site.standby(0, "b", PARTITIONS)
    a0.until("batch")
    a0.signal(signal.SIGSTOP)
    asked = time.monotonic()
    assert site.key.order(b0, a0)[0] == 202
    b0.until("takeover")
    assert time.monotonic() - asked >= 5, "the deadline"
    taken = b0.status()["takeover"]
    assert (taken["forced"], taken["generation"]) == (True, generation)
    site.until_handled("g-b-0", 3)
    files = {file.name: file.stat().st_mtime_ns for file in site.out.glob("*.parquet")}
    a0.signal(signal.SIGCONT)
    status = a0.in_phase("standby")
    assert status["standby"]["handed_over"] is False
    assert a0.named("fenced")
    a0.until_status(lambda status: status["holder"] == "g-b-0")
    assert not [event for event in a0.named("committed") if event["ts_ms"] > taken["joined_ms"]]
    for name, written in files.items():
        assert (site.out / name).stat().st_mtime_ns == written
    site.check(twice=site.flow.produced)
    assert a0.runs
    assert {a0.terminate(), b0.terminate()} == {0}


def test_a_dead_predecessor_is_replaced_at_once(site: TakeoverSite) -> None:
    site.flow.start(300)
    (a0,) = site.members(1)
    b0 = site.standby(0, "b", PARTITIONS)
    site.until_handled("g-a-0", 3)
    a0.process.kill()
    a0.wait()
    asked = time.monotonic()
    assert site.key.order(b0, a0)[0] == 202
    b0.in_phase("running")
    assert time.monotonic() - asked >= 2, "it was tried for that long"
    taken = b0.status()["takeover"]
    assert (taken["forced"], taken["from"]) == (True, "g-a-0")
    site.check(twice=site.flow.produced)
    assert b0.terminate() == 0


def test_a_predecessor_does_not_wait_for_a_successor_killed_before_its_join(site: TakeoverSite) -> None:
    site.flow.start(300)
    (a0,) = site.members(1)
    generation = a0.status()["generation"]
    b0 = site.standby(0, "b", PARTITIONS, killed="before the join")
    assert site.key.order(b0, a0)[0] == 202
    assert b0.wait() == -signal.SIGKILL
    assert a0.until("took_back")["reason"] == "its successor is gone"
    a0.in_phase("running")
    site.until_handled("g-a-0", 3)
    assert a0.status()["generation"] == generation
    site.check()
    assert a0.phases().count("handing-over") == 1
    assert "standby" not in a0.phases()
    assert a0.terminate() == 0


def test_a_successor_killed_after_its_join_returns_the_membership(site: TakeoverSite) -> None:
    site.flow.start(300)
    (a0,) = site.members(1)
    generation = a0.status()["generation"]
    b0 = site.standby(0, "b", PARTITIONS, killed="after the join")
    assert site.key.order(b0, a0)[0] == 202
    assert b0.wait() == -signal.SIGKILL
    a0.until("took_back")
    a0.in_phase("running")
    site.until_handled("g-a-0", 3)
    taken = a0.status()["takeover"]
    assert (taken["from"], taken["forced"], taken["generation"]) == ("g-b-0", True, generation)
    assert max(taken["pauses_ms"].values()) < 30_000, "before the session ran out"
    site.check()
    assert a0.terminate() == 0
