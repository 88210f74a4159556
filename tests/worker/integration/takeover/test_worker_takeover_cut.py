"""A takeover between real worker processes after which the two cannot reach each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.processes import reserve_ports
from tests.support.workers.takeover_site import TakeoverSite

PARTITIONS = 6


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[TakeoverSite]:
    with TakeoverSite(broker.bootstrap, tmp_path, PARTITIONS) as site:
        yield site


@pytest.mark.long
def test_an_unreachable_successor_that_commits_keeps_the_membership(site: TakeoverSite) -> None:
    """The way between the two is cut after the answer: one that joined again would be fenced in its
    turn.
    """
    site.flow.start(300)
    (a0,) = site.members(1)
    (nobody,) = reserve_ports(1)
    b0 = site.standby(0, "b", PARTITIONS, wrong_address=f"127.0.0.1:{nobody}")
    assert site.key.order(b0, a0)[0] == 202
    b0.in_phase("running")
    standing = a0.in_phase("standby")["standby"]["since_ms"]
    # three times as long as it would take if nothing were committed
    a0.until_status(lambda _: time.time() * 1000 - standing > 20_000)
    assert a0.status()["phase"] == "standby"
    assert b0.status()["phase"] == "running"
    assert not a0.named("took_back")
    assert not b0.named("fenced")
    b0.process.kill()
    b0.wait()
    a0.until("took_back")
    a0.in_phase("running")
    site.check(twice=site.flow.produced)
    assert a0.terminate() == 0
