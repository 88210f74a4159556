"""Takeovers between real worker processes, under a steady flow of records: what goes well."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.site.pauses import around
from tests.support.workers.process import WorkerProcess
from tests.support.workers.takeover_site import TakeoverSite

PARTITIONS = 6
STALL_MS = 3_000
MEMBERSHIP = ("joined", "assigned", "revoked", "lost")


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[TakeoverSite]:
    with TakeoverSite(broker.bootstrap, tmp_path, PARTITIONS) as site:
        yield site


def ahead(status: dict[str, Any]) -> int:
    """How many partitions are read ahead."""
    standby = status["standby"]
    return 0 if standby is None else int(standby["prefetched_partitions"])


def report(pod: WorkerProcess, capsys: pytest.CaptureFixture[str], site: TakeoverSite, before: str) -> None:
    """Prints what /status says of the takeover, and what the handlers saw."""
    taken = pod.status()["takeover"]
    since = taken["drain_ms"] or taken["asked_ms"]
    marks = ("drain", "committed", "answered", "joined", "first_record")
    times = {name: taken[f"{name}_ms"] - since for name in marks if taken[f"{name}_ms"]}
    own = site.handler_log.pauses_ms(before, pod.pod).values()
    with capsys.disabled():
        print(
            f"\n{pod.pod} after {before}: ms since the drain began {times}; pauses from rows to rows "
            f"{sorted(taken['pauses_ms'].values())}; from the handler's return to the other's call "
            f"{statistics.median(own):.0f} (median), {max(own):.0f} (most); load {os.getloadavg()[0]:.1f}"
        )


@pytest.mark.long
def test_a_takeover_of_one_member_is_not_noticed_by_the_others(
    site: TakeoverSite, capsys: pytest.CaptureFixture[str]
) -> None:
    site.flow.start(200)
    a0, a1, a2 = site.members(3)
    members = {member.instance_id: member.member_id for member in site.describe().members}
    generation = a1.status()["generation"]
    heard = {pod.pod: [len(pod.named(name)) for name in MEMBERSHIP] for pod in (a0, a2)}
    given_up = len(a1.named("revoked"))
    b1 = site.standby(1, "b", PARTITIONS // 3)
    assert b1.status()["holder"] == "g-a-1"
    assert site.key.order(b1, a1)[0] == 202
    b1.until("takeover")
    status = b1.in_phase("running")
    taken = status["takeover"]
    assert (taken["from"], taken["forced"]) == ("g-a-1", False)
    assert taken["generation"] == taken["generation_before"] == generation
    assert len(taken["pauses_ms"]) == PARTITIONS // 3
    assert status["holder"] == "g-b-1"
    standby = a1.in_phase("standby")
    assert standby["standby"]["handed_over"] is True
    assert standby["holder"] == "g-b-1"
    assert a1.named("handed_over")[0]["by"] == "g-b-1"
    site.until_handled("g-b-1", 5)
    report(b1, capsys, site, "g-a-1")
    now = {member.instance_id: member.member_id for member in site.describe().members}
    clients = {member.instance_id: member.client_id for member in site.describe().members}
    assert clients["g-1"] == "g-a-1", "a broker keeps the client.id of the first: it does not tell the holder"
    assert {name for name in members if members[name] != now[name]} == {"g-1"}
    assert {pod.pod: [len(pod.named(name)) for name in MEMBERSHIP] for pod in (a0, a2)} == heard
    assert {pod.status()["generation"] for pod in (a0, a2, b1)} == {generation}
    assert len(a1.named("revoked")) == given_up
    assert not a1.named("lost")
    site.check()
    assert {pod.terminate() for pod in site.workers} == {0}


@pytest.mark.long
def test_a_pause_is_what_the_files_show_where_the_sink_stalls(site: TakeoverSite) -> None:
    """The successor has read records of all partitions long before a reader of the files sees any."""
    site.flow.start(600)
    (a0,) = site.members(1)
    site.until_handled("g-a-0", 3)
    b0 = site.standby(0, "b", PARTITIONS, stall_ms=STALL_MS)
    assert site.key.order(b0, a0)[0] == 202
    meanwhile = b0.until_status(lambda status: bool((status["takeover"] or {}).get("waiting_ms")))["takeover"]
    taken = b0.until("takeover")
    site.check()
    assert taken["forced"] is False
    assert meanwhile["written_ms"] is None
    assert taken["written_ms"] - taken["first_record_ms"] >= STALL_MS
    said = {int(name.rpartition("-")[2]): ms for name, ms in taken["pauses_ms"].items()}
    files = around(site.out, dict.fromkeys(range(PARTITIONS), float(taken["joined_ms"])))
    assert said.keys() == files.keys() == set(range(PARTITIONS))
    for partition, (last_ms, first_ms) in files.items():
        assert first_ms - last_ms >= STALL_MS
        assert said[partition] >= STALL_MS, (said, files)
    assert {a0.terminate(), b0.terminate()} == {0}


@pytest.mark.long
def test_takeovers_in_both_directions_succeed_and_a_wrong_key_is_refused(
    site: TakeoverSite, capsys: pytest.CaptureFixture[str]
) -> None:
    site.flow.start(600)
    (a0,) = site.members(1)
    generation = a0.status()["generation"]
    b0 = site.standby(0, "b", PARTITIONS)
    code, answer = site.key.order(b0, a0, key=b"x" * 32)
    assert code == 401
    assert "not by this group's key" in answer["error"]
    site.until_handled("g-a-0", 5)
    assert b0.status()["phase"] == "standby"
    for new, old in ((b0, a0), (a0, b0), (b0, a0)):
        new.until_status(lambda status: ahead(status) == PARTITIONS)
        assert site.key.order(new, old)[0] == 202
        new.in_phase("running")
        site.until_handled(new.pod, 3)
        report(new, capsys, site, old.pod)
        assert new.status()["takeover"]["forced"] is False
        assert new.status()["generation"] == generation
        old.in_phase("standby")
    site.check()
    assert a0.phases().count("standby") == 2
    assert {a0.terminate(), b0.terminate()} == {0}
    assert not a0.named("error")
    assert not b0.named("error")


@pytest.mark.long
def test_a_container_that_is_restarted_after_its_takeover_returns(site: TakeoverSite) -> None:
    """Its predecessor stands by and leaves the membership to it, because it commits."""
    site.flow.start(300)
    (a0,) = site.members(1)
    b0 = site.standby(0, "b", PARTITIONS)
    assert site.key.order(b0, a0)[0] == 202
    b0.in_phase("running")
    site.until_handled("g-b-0", 3)
    b0.process.kill()
    b0.wait()
    again = site.start(0, "b")
    again.phase("running")
    phases = again.phases()
    assert phases[:3] == ["starting", "joining", "warming"], "it knows that its pod is the member"
    site.until_handled("g-b-0", 3)
    a0.in_phase("standby")
    assert a0.status()["holder"] == "g-b-0"
    site.check(twice=site.flow.produced)
    assert again.terminate() == 0
    assert a0.terminate() == 0
