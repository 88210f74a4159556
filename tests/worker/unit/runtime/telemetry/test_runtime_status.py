"""What a worker tells of itself for the operator: phases of a return, rebalances, how long it is behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.kafka.structs import GenerationSeen, MembershipSnapshot, TopicPartition
from slackwater.runtime.delivery.partition import CommitNote
from slackwater.runtime.telemetry import events
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.report import MOST_SAMPLES, LagAge, Rebalances
from slackwater.runtime.telemetry.status import Status
from slackwater.runtime.telemetry.timings import RestartRecord
from tests.support.workers.fakes import Bench, VirtualClock

A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)


def test_a_return_tells_its_phases() -> None:
    bench = Bench()
    a, b = bench.produce(0, "x"), bench.produce(1, "y")
    bench.assign(a, b)
    bench.until_idle()
    bench.delivery.drain(1_000)
    drained_ms = bench.note(a)["at"]
    assert bench.note(a)["drain"] <= drained_ms
    bench.clock.sleep(2_000)
    bench.restart()
    started_ms = bench.clock.wall_ms()
    bench.clock.sleep(700)
    bench.produce(0, "z")
    bench.assign(a, b, generation=1)
    bench.until_idle()
    restart_document = bench.status.restart
    assert restart_document is not None
    assert restart_document["served_until_ms"] == drained_ms
    assert restart_document["started_ms"] == started_ms
    assert restart_document["joined_ms"] >= started_ms + 700
    assert (
        restart_document["first_record_ms"] >= restart_document["joined_ms"]
    )  # also of b, which has nothing new
    phases = {
        phase: bench.metrics.value("restart_phase_seconds", (phase,))
        for phase in ("replace", "join", "first_record")
    }
    assert phases["replace"] == pytest.approx((started_ms - drained_ms) / 1000)
    assert phases["join"] == pytest.approx((restart_document["joined_ms"] - started_ms) / 1000)
    assert bench.metrics.value("unserved_seconds", ("flights", "0")) >= 2.7


def test_the_rate_is_that_of_the_last_minute_or_since_the_join() -> None:
    clock = VirtualClock()
    status = Status("flights", "flights-0", clock, joined_ms=clock.wall_ms())
    assert status.records_per_second() == 0
    clock.sleep(10_000)
    for records in (300, 200):
        status.batch(records, records - 1, 1, {"transform": 2.0})
    assert status.records_per_second() == 50
    assert len(status.committed_records) == 1, "one entry a second"
    clock.sleep(49_999)
    assert status.records_per_second() == pytest.approx(500 / 59.999, abs=0.1)
    clock.sleep(10_001)
    status.batch(60, 60, 0, {})
    assert status.records_per_second() == 1, "the first two are older than a minute"


def test_the_last_batch_is_the_one_that_was_committed() -> None:
    bench = Bench()
    bench.assign(bench.produce(0, "x", "y"))
    bench.until_idle()
    last = bench.status.last_batch
    assert last is not None
    assert (last["records"], last["rows"], last["dead_letters"]) == (2, 2, 0)
    assert "publishing" in last["ms"]


def test_takeovers_of_every_outcome_are_counted_from_zero() -> None:
    """What begins with 1 has no step that Prometheus' rate() would see."""

    def scraped(metrics: Metrics) -> dict[str, str]:
        lines = metrics.render().decode().splitlines()
        series = [line for line in lines if line.startswith("slackwater_takeovers_total{")]
        return {line.split('outcome="')[1].split('"')[0]: line.split("} ")[1] for line in series}

    metrics = Metrics(group="flights", instance="flights-3")
    nothing = dict.fromkeys(("asked", "forced", "taken_back", "refused"), "0.0")
    assert scraped(metrics) == nothing
    metrics.count("takeovers", ("forced",))
    assert scraped(metrics) == {**nothing, "forced": "1.0"}
    assert metrics.total("takeovers") == 1
    assert scraped(Metrics(group="flights", instance="flights-4")) == nothing, "each worker has its own"


def test_the_drain_is_known_from_the_last_commits_note() -> None:
    restart = RestartRecord("w-0", 5_000)
    restart.committed_known(A, CommitNote(3_000, "w-0", None, 1_000))
    restart.committed_known(B, CommitNote(4_000, "w-0", None, 1_000))
    restart.joined(7_000)
    restart.joined(9_000)  # a later rebalance is none of the return
    assert not restart.served(A, 8_000)
    assert restart.seconds() == {"drain": 2.0, "replace": 2.0, "join": 2.0}
    assert restart.served(B, 8_500)
    assert restart.seconds()["first_record"] == 1.5
    restart.committed_known(TopicPartition("flights", 2), CommitNote(1, "w-0"))
    assert restart.seconds()["replace"] == 2.0, "what comes later is none of the return"


def test_partitions_of_others_and_clocks_that_differ() -> None:
    restart = RestartRecord("w-0", 5_000)
    restart.committed_known(A, CommitNote(3_000, "w-1"))
    restart.committed_known(B, None)
    assert restart.document() is None
    assert restart.seconds() == {}
    restart.committed_known(A, CommitNote(6_000, "w-0"))
    assert restart.seconds() == {"replace": 0}
    restart.left(A)
    assert not restart.served(A, 9_000)


def snapshot(
    state: str, generation: int = 1, *, follow_up: bool = False, returned: bool = False
) -> MembershipSnapshot:
    log = (GenerationSeen(generation, follow_up, 0),)
    return MembershipSnapshot(state, generation, "m", "w-0", False, log, returned=returned)


def test_a_rebalance_and_its_second_half_are_one() -> None:
    rebalances = Rebalances()
    assert rebalances.observe(snapshot("stable"), 0) is None
    assert rebalances.document() is None
    assert rebalances.observe(snapshot("preparing"), 1_000) is None
    assert rebalances.document() == {"started_ms": 1_000, "ended_ms": None}
    assert rebalances.observe(snapshot("joining"), 1_500) is None
    assert rebalances.observe(snapshot("stable", 2), 2_000) == 1_000
    assert rebalances.observe(snapshot("joining", 2), 2_100) is None
    assert rebalances.observe(snapshot("stable", 3, follow_up=True), 2_600) == 500
    assert rebalances.document() == {"started_ms": 1_000, "ended_ms": 2_600}
    assert rebalances.observe(snapshot("syncing", 3), 9_000) is None
    assert rebalances.observe(snapshot("stable", 4), 9_100) == 100
    assert rebalances.document() == {"started_ms": 9_000, "ended_ms": 9_100}


def test_a_return_is_no_rebalance() -> None:
    rebalances = Rebalances()
    rebalances.observe(snapshot("joining", -1), 100)
    assert rebalances.observe(snapshot("stable", 5, returned=True), 200) is None
    assert rebalances.document() is None


def test_how_long_a_partition_is_behind() -> None:
    lag_age = LagAge()
    assert lag_age.observe(A, 0, 100, 100) == 0
    assert lag_age.observe(A, 1_000, 150, 100) == 0  # seen just now
    assert lag_age.observe(A, 3_000, 170, 100) == 2
    assert lag_age.observe(A, 4_000, 170, 149) == 3  # one of the first is left
    assert lag_age.observe(A, 5_000, 170, 150) == 2  # behind only what came at 3 s
    assert lag_age.observe(A, 6_000, 170, 170) == 0
    assert lag_age.observe(A, 7_000, 10, 5) == 0  # the topic was made anew
    assert lag_age.observe(A, 8_000, 10, 5) == 1
    lag_age.keep({B})
    assert lag_age.observe(A, 9_000, 10, 5) == 0


def test_a_long_backlog_takes_bounded_room() -> None:
    lag_age = LagAge()
    for second in range(10 * MOST_SAMPLES):
        behind = lag_age.observe(A, second * 1_000, second + 1, 0)
    assert behind == 10 * MOST_SAMPLES - 1
    assert len(lag_age._ends[A]) <= MOST_SAMPLES


def test_status_knows_since_when() -> None:
    clock = VirtualClock()
    status = Status("flights", "w-0", clock)
    status.enter("warm")
    since = clock.wall_ms()
    clock.sleep(500)
    assert status.document()["waiting_since_ms"] == since
    assert status.document()["running_since_ms"] is None
    status.enter("running")
    assert status.document()["waiting_since_ms"] is None
    assert status.document()["running_since_ms"] == since + 500


def test_the_last_word_goes_where_the_environment_says(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    events.write_termination_message("ü" * 5_000, {"SLACKWATER_TERMINATION_LOG": str(file)})
    assert len(file.read_bytes()) == 4096
    events.write_termination_message("x", {"SLACKWATER_TERMINATION_LOG": str(tmp_path / "no" / "folder")})


def test_the_last_word_goes_to_the_pods_own_place_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "log"
    monkeypatch.setattr(events, "DEFAULT_PATH", file)
    events.write_termination_message("no pod", {})
    assert not file.exists()
    file.touch()
    events.write_termination_message("why", {})
    assert file.read_text() == "why"
