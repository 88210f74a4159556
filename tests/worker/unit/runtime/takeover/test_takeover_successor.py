"""The successor's side: standby, the question, the join, and all that can come in between."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.errors import KafkaConnectionError, SaslAuthenticationError
from slackwater.runtime.takeover.http_client import NoAnswer, Reply, Unreachable, Unsigned
from slackwater.runtime.takeover.messages import HandoverRequest
from tests.worker.unit.runtime.takeover.takeover_bench import (
    ADDRESS,
    DEADLINE_MS,
    MEMBER,
    OTHER,
    POD,
    Member,
    Scene,
)


def ordered(**changes: object) -> Scene:
    """A scene in which the other pod serves, and this one is told to take over 1.5 s after it stands by."""
    scene = Scene(**changes)  # type: ignore[arg-type]
    scene.serve_before()
    scene.in_phase("standby", scene.order, 1_500)
    return scene


def unreachable_until(scene: Scene, at_ms: float) -> None:
    """Nobody is told what is committed before ``at_ms``."""

    def unreachable(made: Member) -> None:
        committed = made.committed

        def fails(*args: Any, **kwargs: Any) -> Any:
            if scene.clock.now < at_ms:
                raise KafkaConnectionError("refused")
            return committed(*args, **kwargs)

        made.committed = fails  # type: ignore[method-assign]

    scene.parts.on_made = unreachable


def test_a_warm_successor_takes_over() -> None:
    scene = ordered()
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.phases() == [
        "starting", "warming", "standby", "taking-over", "joining", "running", "draining", "stopped",
    ]  # fmt: skip
    member = scene.parts.last
    assert len(scene.parts.made) == 1
    assert member.taken_over is not None
    assert member.taken_over[1] == 7
    assert {tp: at.offset for tp, at in member.taken_over[0].items()} == dict.fromkeys(scene.tps, 2)
    assert scene.parts.fake_sink.rows(0) == [2, 3], "nothing again, nothing left out"
    assert scene.parts.fake_sink.rows(1) == [2, 3]
    ((_, address, request, timeout_ms),) = scene.neighbour.asked
    assert (address, timeout_ms) == (ADDRESS, DEADLINE_MS)
    assert (request.instance, request.by, request.deadline_ms) == (MEMBER, POD, DEADLINE_MS)
    assert request.address == f"127.0.0.1:{scene.events('started')[0]['port']}"
    assert scene.outcomes() == {"asked": 1}
    assert scene.neighbour.withdrawn == []


def test_a_standby_reads_ahead_and_shows_itself() -> None:
    scene = Scene()
    scene.serve_before(1)
    shown = []
    scene.in_phase("standby", lambda: scene.serve_before(2), 500)
    scene.in_phase("standby", lambda: shown.append(scene.worker.status.document()), 2_500)
    scene.in_phase("standby", lambda: shown.append(scene.worker.status.ready), 2_500)
    scene.stop_in("standby", 2_600)
    assert scene.run() == 0
    document, ready = shown
    assert not ready
    assert document["holder"] == OTHER
    assert document["pod"] == POD
    assert document["generation"] == -1
    assert document["takeover"] is None
    standby = document["standby"]
    assert standby == {
        "since_ms": 1_700_000_000_000 + scene.at("standby"),
        "handed_over": False,
        "prefetched_partitions": 2,
        "told": False,
        "reason": "",
    }
    (event,) = scene.events("standby")
    assert event["holder"] == OTHER
    ahead = scene.parts.last.prefetched
    assert ahead[0] == dict.fromkeys(scene.tps, 1)
    assert ahead[-1] == dict.fromkeys(scene.tps, 2)
    assert scene.group.looks == 4, "at the start, when it is ready, and then once a second"


def test_a_standby_is_refreshed() -> None:
    scene = Scene(refreshEveryMs=1_000)
    scene.serve_before(1)
    scene.stop_in("standby", 3_500)
    assert scene.run() == 0
    assert [event["ok"] for event in scene.events("refresh")] == [True] * 3
    assert "running" not in scene.phases()


def test_a_standby_has_its_sink_read_the_table() -> None:
    """So the first rows wait neither for the sink's libraries nor for the whole log of the table."""
    scene = Scene()
    scene.in_phase("standby", lambda: scene.group.journal.append(("standby",)))
    scene.stop_in("standby", 25_000)
    assert scene.run() == 0
    assert scene.group.journal == [("marks", []), ("standby",)]


@pytest.mark.parametrize("fault", ["refused", "slow"])
def test_a_table_that_cannot_be_read_in_standby_stops_no_takeover(fault: str) -> None:
    scene = ordered()
    if fault == "slow":
        scene.writer.durations.append(14_000)
    else:
        scene.parts.fake_sink.marks_error = OSError("no such host")
        scene.in_phase("standby", lambda: setattr(scene.parts.fake_sink, "marks_error", None))
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.outcomes() == {"asked": 1}
    assert scene.at("standby") <= 10_100


def test_an_order_does_not_wait_for_the_table() -> None:
    scene = Scene()
    scene.serve_before()
    scene.writer.durations.append(8_000)
    scene.clock.at(3_000, scene.order)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.at("taking-over") <= 3_100


def test_a_stop_in_standby_touches_nothing() -> None:
    scene = Scene()
    scene.serve_before()
    before = dict(scene.group.committed)
    scene.stop_in("standby", 100)
    assert scene.run() == 0
    assert scene.clock.now < 1_000
    assert scene.parts.last.taken_over is None
    assert scene.parts.last.closed
    assert scene.parts.engine_closed
    assert scene.group.committed == before
    assert scene.group.member_id == f"{MEMBER}-by-{OTHER}"
    assert scene.phases()[-1] == "stopped"


def test_nothing_is_looked_up_before_the_first_records_and_all_before_the_first_write() -> None:
    scene = ordered()
    scene.stop_when_done()
    assert scene.run() == 0
    journal = [entry[0] for entry in scene.group.journal]
    assert [entry for entry in journal if entry != "marks"][:2] == ["handled", "looked up"]
    assert journal.index("looked up") < journal.index("stage") < journal.index("publish")
    assert journal.index("looked up") < journal.index("commit") < journal.index("publish")
    assert scene.parts.last.looked_up == [scene.tps], "of all partitions in one question"


def test_what_was_committed_after_the_answer_is_not_done_again() -> None:
    """The predecessor believed its successor dead, and went on, before that joined after all."""
    scene = ordered(records=6)

    def late(request: HandoverRequest) -> Reply:
        reply = scene.hand_over(request)
        scene.group.commit_as(OTHER, scene.tps[0], 5, scene.clock.wall_ms())
        return reply

    scene.neighbour.answers[0] = late
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.parts.fake_sink.rows(0) == [5]
    assert scene.parts.fake_sink.rows(1) == [2, 3, 4, 5]
    assert "2 was handed over, but 5 is committed" in scene.stderr.getvalue()


def test_nothing_is_written_while_the_broker_does_not_say_what_is_committed() -> None:
    scene = ordered()
    unreachable_until(scene, 10_000)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.at("running") < 2_000
    first = next(entry for entry in scene.group.journal if entry[0] == "commit")
    assert first
    assert scene.clock.now >= 10_000
    assert scene.parts.fake_sink.rows(0) == [2, 3]


def test_another_generation_is_told_and_gone_on_from() -> None:
    scene = ordered()

    def rebalanced(request: HandoverRequest) -> Reply:
        reply = scene.hand_over(request)
        scene.group.generation = 8
        return reply

    scene.neighbour.answers[0] = rebalanced
    scene.stop_when_done()
    assert scene.run() == 0
    assert "from generation 7 to 8" in scene.stderr.getvalue()
    taken = scene.worker.status.takeover
    assert taken is not None
    assert (taken["generation_before"], taken["generation"]) == (7, 8)
    assert scene.parts.fake_sink.rows(0) == [2, 3]
    journal = [entry[0] for entry in scene.group.journal]
    assert journal.index("looked up") < journal.index("handled"), "others may have had the partitions"


def test_its_record_says_how_long_each_phase_took() -> None:
    scene = ordered()
    scene.caller.durations.append(40)

    def drained(request: HandoverRequest) -> Reply:
        scene.serve_before(2, at_ms=0)
        return scene.hand_over(request)

    scene.neighbour.answers[0] = drained
    scene.stop_when_done()
    assert scene.run() == 0
    (event,) = scene.events("takeover")
    taken = scene.worker.status.takeover
    assert taken is not None
    assert {name: event[name] for name in taken} == taken
    assert taken["from"] == OTHER
    assert taken["forced"] is False
    assert taken["answered_ms"] - taken["asked_ms"] == 40
    assert taken["asked_ms"] <= taken["committed_ms"] <= taken["answered_ms"] <= taken["joined_ms"]
    assert taken["joined_ms"] <= taken["first_record_ms"]
    assert taken["committed_ms"] - taken["drain_ms"] == 5
    assert taken["pauses_ms"].keys() == {"flights-0", "flights-1"}
    assert all(40 <= pause <= 42 for pause in taken["pauses_ms"].values())
    metrics = scene.worker.metrics
    assert metrics.value("takeover_phase_seconds", ("drain",)) == 0.005
    assert metrics.value("takeover_phase_seconds", ("answer",)) == 0.04
    assert metrics.value("takeover_pause_seconds", ("flights", "1")) == taken["pauses_ms"]["flights-1"] / 1000
    assert metrics.value("restart_gap_seconds") == 0, "it is no return"
    assert scene.worker.status.restart is None
    assert [(e["takeover"], e["gap_ms"]) for e in scene.events("first_records")] == [(True, None)] * 2


@pytest.mark.parametrize("skew_ms", [0, -3_600_000, 3_600_000])
def test_a_pause_is_from_the_predecessors_last_rows_to_its_own_first(skew_ms: int) -> None:
    """Whatever the predecessor's clock says: it tells how long ago its last rows were written."""
    scene = ordered()
    scene.caller.durations.append(140)  # 100 of which the predecessor takes

    def drained(request: HandoverRequest) -> Reply:
        scene.clock.skew_ms = skew_ms
        scene.serve_before()
        answer = scene.left({scene.tps[0]: 300, scene.tps[1]: 7}, took_ms=100)
        scene.clock.skew_ms = 0
        return Reply(200, answer.document())

    scene.neighbour.answers[0] = drained
    scene.writer.usual_ms = 25  # to stage the rows
    scene.stop_when_done()
    assert scene.run() == 0
    (taken,) = scene.events("takeover")
    since_answer = taken["written_ms"] - taken["answered_ms"]
    assert since_answer >= 25
    for name, before in (("flights-0", 300), ("flights-1", 7)):
        # The sink's call to publish returns its rows at once here, and its 25 ms come after.
        assert before + 40 + 25 <= taken["pauses_ms"][name] <= before + 40 + since_answer
    assert taken["waiting_ms"] == {}


def test_on_one_machine_the_time_that_the_request_was_under_way_is_no_part_of_the_pause() -> None:
    """The predecessor worked on meanwhile. A busy machine takes long to accept a connection."""
    scene = ordered()
    scene.caller.durations.append(1_000)

    def drained(request: HandoverRequest) -> Reply:
        scene.serve_before()
        sent_ms = round(scene.clock.now) + 980
        left = scene.left(dict.fromkeys(scene.tps, 7), took_ms=100, clock="virtual", sent_ms=sent_ms)
        return Reply(200, left.document())

    scene.neighbour.answers[0] = drained
    scene.stop_when_done()
    assert scene.run() == 0
    (taken,) = scene.events("takeover")
    written = taken["written_ms"] - taken["answered_ms"]
    assert all(7 + 20 <= ms <= 7 + 20 + written + 1 for ms in taken["pauses_ms"].values())


def test_its_report_counts_until_rows_are_written_however_long_that_takes() -> None:
    scene = ordered()
    scene.neighbour.answers[0] = lambda _: Reply(200, scene.left(dict.fromkeys(scene.tps, 10)).document())
    scene.in_phase("standby", lambda: scene.writer.durations.append(14_000))  # to read the marks
    shown: list[Any] = []
    scene.in_phase("running", lambda: shown.append(scene.worker.status.takeover), 5_000)
    scene.in_phase("running", lambda: shown.append(scene.events("takeover")), 5_000)
    metric = "takeover_pause_seconds"
    scene.in_phase(
        "running", lambda: shown.append(scene.worker.metrics.value(metric, ("flights", "0"))), 5_000
    )
    scene.stop_when_done()
    assert scene.run() == 0
    meanwhile, events, so_far = shown
    assert meanwhile["pauses_ms"] == {}
    assert meanwhile["written_ms"] is None
    assert all(4_700 <= ms <= 5_100 for ms in meanwhile["waiting_ms"].values())
    assert meanwhile["waiting_ms"].keys() == {"flights-0", "flights-1"}
    assert events == []
    assert 4.7 <= so_far <= 5.1
    (taken,) = scene.events("takeover")
    assert all(14_000 <= ms <= 14_200 for ms in taken["pauses_ms"].values())
    assert scene.worker.metrics.value("takeover_phase_seconds", ("write",)) >= 14
    assert scene.worker.metrics.value("unserved_seconds", ("flights", "0")) >= 14
    assert scene.worker.metrics.value(metric, ("flights", "0")) >= 14


def test_a_partition_without_anything_to_write_has_no_pause() -> None:
    scene = ordered()

    def nothing_left_of_the_second(request: HandoverRequest) -> Reply:
        scene.group.commit_as(OTHER, scene.tps[1], 4, scene.clock.wall_ms())
        return Reply(200, scene.left(dict.fromkeys(scene.tps, 10)).document())

    scene.neighbour.answers[0] = nothing_left_of_the_second
    scene.stop_in("running", 5_000)
    assert scene.run() == 0
    (taken,) = scene.events("takeover")
    assert taken["pauses_ms"].keys() == {"flights-0"}
    assert taken["waiting_ms"] == {}
    assert scene.worker.metrics.series("takeover_pause_seconds").keys() == {("flights", "0")}
    assert 1_000 <= taken["ts_ms"] - taken["joined_ms"] <= 1_200


def test_its_report_waits_until_it_is_known_what_is_committed() -> None:
    """The predecessor hangs, and the broker does not say for ten seconds what was committed."""
    scene = ordered()
    scene.neighbour.answers[0] = lambda _: Reply(503, {"error": "no answer within 5000 ms"})
    scene.caller.durations.append(DEADLINE_MS)
    unreachable_until(scene, DEADLINE_MS + 15_000)
    scene.stop_when_done()
    assert scene.run() == 0
    (taken,) = scene.events("takeover")
    assert taken["forced"] is True
    assert taken["pauses_ms"].keys() == {"flights-0", "flights-1"}
    assert all(ms >= 10_000 for ms in taken["pauses_ms"].values())


def test_its_first_rows_do_not_wait_to_be_written_with_others() -> None:
    scene = ordered(sink={"format": "parquet", "path": "out", "maxAgeMs": 60_000})
    scene.neighbour.answers[0] = lambda _: Reply(200, scene.left(dict.fromkeys(scene.tps, 10)).document())
    later = scene.in_phase
    later("running", lambda: scene.group.produce(0, ["w"]), 2_000)
    written: list[int] = []
    later("running", lambda: written.append(scene.parts.fake_sink.commits), 1_500)
    later("running", lambda: written.append(scene.parts.fake_sink.commits), 30_000)
    scene.stop_in("running", 31_000)
    assert scene.run() == 0
    assert written == [1, 1], "the first rows at once, what follows waits as always"
    (taken,) = scene.events("takeover")
    assert all(ms < 1_000 for ms in taken["pauses_ms"].values())


@pytest.mark.parametrize(
    ("most_records", "steps"),
    [
        pytest.param(4, ["handled", "publish", "publish", "handled"], id="all wait for this batch"),
        pytest.param(2, ["handled", "handled", "publish", "publish"], id="some wait for the next"),
    ],
)
def test_its_first_rows_share_the_processor_with_no_later_batch(most_records: int, steps: list[str]) -> None:
    scene = ordered(properties={"max.poll.records": str(most_records)})
    scene.writer.usual_ms = 25  # to stage the rows
    journal = scene.group.journal
    scene.when(lambda: any(step[0] == "handled" for step in journal), lambda: scene.group.produce(0, ["w"]))
    scene.stop_when_done()
    assert scene.run() == 0
    assert [step[0] for step in journal if step[0] in ("handled", "publish")][:4] == steps


def test_its_commits_say_which_pod_it_is_whatever_its_clock_says() -> None:
    scene = Scene()
    for tp in scene.tps:  # signed by a clock that is an hour ahead
        scene.group.commit_as(OTHER, tp, 2, scene.clock.wall_ms(), scene.clock.wall_ms() + 3_600_000)
    scene.in_phase("standby", scene.order)
    scene.stop_when_done()
    assert scene.run() == 0
    assert {scene.group.note(tp).pod for tp in scene.tps} == {POD}
    assert all((scene.group.note(tp).since_ms or 0) > 1_700_003_600_000 for tp in scene.tps)
    assert scene.group.member(offsets=True).holder == POD


def test_it_signs_before_its_first_batch_is_done() -> None:
    """A container that is restarted by then finds out that its pod is the member."""
    scene = ordered()
    scene.runner.durations.extend([0, 0, 30_000])
    observed = []
    scene.in_phase("running", lambda: observed.append(scene.group.member(offsets=True)), 200)
    scene.stop_when_done()
    assert scene.run() == 0
    (member,) = observed
    assert member.holder == POD
    assert member.client_id == OTHER, "what a broker has there says nothing of the holder"
    assert [at.offset for at in member.committed.values()] == [2, 2]


# ---- refused, away, hung


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(409, {"error": "the group is not at rest"}), "the group is not at rest"),
        (Reply(400, {"error": "deadline_ms"}), "deadline_ms"),
        (Reply(500, {}), "500"),
        (Reply(200, {"generation": 7}), "invalid response: offsets"),
    ],
)
def test_a_refusal_leads_back_to_standby_with_its_reason(reply: Reply, words: str) -> None:
    scene = ordered()
    scene.neighbour.answers[0] = lambda _: reply
    shown = []
    scene.in_phase("taking-over", lambda: scene.stop_in("standby", 500))
    scene.in_phase("taking-over", lambda: shown.append(scene.worker.status.standby))
    assert scene.run() == 0
    assert scene.phases() == ["starting", "warming", "standby", "taking-over", "standby", "stopped"]
    assert shown[0]["told"] is True
    standby = scene.events("standby")[-1]
    assert words in standby["reason"]
    assert scene.worker.status.standby is not None
    assert scene.worker.status.standby["reason"] == standby["reason"]
    assert scene.worker.status.standby["told"] is False
    assert scene.worker.status.standby["since_ms"] == 1_700_000_000_000 + scene.at("standby")
    assert scene.outcomes() == {"refused": 1}
    assert scene.parts.last.taken_over is None
    assert scene.group.member_id == f"{MEMBER}-by-{OTHER}"


def test_an_answer_that_is_not_signed_is_no_answer_and_forces_nothing() -> None:
    scene = ordered()

    def forged(_: HandoverRequest) -> Reply:
        raise Unsigned(f"{ADDRESS} answers 200, not signed with this group's key")

    scene.neighbour.answers[0] = forged
    scene.in_phase("taking-over", lambda: scene.stop_in("standby", 10_000))
    assert scene.run() == 0
    assert "not signed with this group's key" in scene.events("standby")[-1]["reason"]
    assert scene.parts.last.taken_over is None
    assert len(scene.neighbour.asked) == 1


def test_after_a_refusal_it_can_be_told_again() -> None:
    scene = ordered()
    scene.neighbour.answers.appendleft(lambda _: Reply(409, {"error": "not now"}))
    scene.in_phase("taking-over", lambda: scene.in_phase("standby", scene.order, 3_000))
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.outcomes() == {"refused": 1, "asked": 1}


def test_a_predecessor_that_takes_no_connection_is_tried_for_two_seconds() -> None:
    scene = ordered()

    def refused(_: HandoverRequest) -> Reply:
        raise Unreachable(f"{ADDRESS} refused the connection: Connection refused")

    scene.neighbour.answers[0] = refused
    scene.stop_when_done()
    assert scene.run() == 0
    tried = [at for at, *_ in scene.neighbour.asked]
    assert len(tried) >= 10
    assert 2_000 <= tried[-1] - tried[0] <= 2_200
    assert scene.outcomes() == {"forced": 1}
    taken = scene.worker.status.takeover
    assert taken is not None
    assert taken["forced"] is True
    assert taken["generation_before"] is taken["answered_ms"] is taken["drain_ms"] is None
    assert taken["generation"] == 7
    assert taken["pauses_ms"].keys() == {"flights-0", "flights-1"}
    assert scene.parts.last.taken_over == ({}, None), "it looks up what is committed after its join"
    assert scene.parts.last.looked_up == [scene.tps], "of all partitions in one question"
    assert scene.parts.fake_sink.rows(0) == [2, 3]


def test_a_predecessor_that_comes_back_within_two_seconds_is_asked() -> None:
    scene = ordered()

    def away(request: HandoverRequest) -> Reply:
        if scene.clock.now - scene.neighbour.asked[0][0] < 1_500:
            raise Unreachable("Connection refused")
        return scene.hand_over(request)

    scene.neighbour.answers[0] = away
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.outcomes() == {"asked": 1}


@pytest.mark.parametrize("answers_503", [False, True])
def test_a_predecessor_that_hangs_is_followed_at_the_deadline(answers_503: bool) -> None:
    scene = ordered()

    def hangs(_: HandoverRequest) -> Reply:
        if answers_503:
            return Reply(503, {"error": "no answer within 5000 ms"})
        raise NoAnswer(f"{ADDRESS} has not answered within 5000 ms")

    scene.neighbour.answers[0] = hangs
    scene.caller.durations.append(DEADLINE_MS)
    joins = []
    scene.in_phase("taking-over", lambda: joins.append(scene.parts.last.taken_over), DEADLINE_MS - 1)
    scene.stop_when_done()
    assert scene.run() == 0
    assert joins == [None], "not a millisecond before"
    assert scene.at("joining") - scene.at("taking-over") == DEADLINE_MS
    assert scene.outcomes() == {"forced": 1}
    assert scene.parts.fake_sink.rows(1) == [2, 3]


def test_the_group_is_waited_for_until_it_is_at_rest() -> None:
    scene = ordered()
    scene.group.state = "PreparingRebalance"
    scene.in_phase("taking-over", lambda: setattr(scene.group, "state", "Stable"), DEADLINE_MS - 100)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.neighbour.asked[0][0] - scene.at("taking-over") >= DEADLINE_MS - 100
    assert scene.outcomes() == {"asked": 1}


@pytest.mark.parametrize("trouble", ["rebalancing", "away"])
def test_a_group_that_does_not_settle_leads_back_to_standby(trouble: str) -> None:
    scene = ordered()

    def begin() -> None:
        if trouble == "away":
            scene.group.error = KafkaConnectionError("connection refused")
        else:
            scene.group.state = "CompletingRebalance"

    scene.in_phase("taking-over", lambda: scene.stop_in("standby", 10))
    scene.clock.at(0, lambda: scene.in_phase("standby", begin, 1_499))
    assert scene.run() == 0
    reason = scene.events("standby")[-1]["reason"]
    assert ("CompletingRebalance" if trouble == "rebalancing" else "connection refused") in reason
    assert scene.neighbour.asked == []
    assert scene.outcomes() == {"refused": 1}


# ---- told to follow nobody


def test_told_alone_it_takes_over_at_once() -> None:
    scene = Scene()
    scene.serve_before()
    scene.group.state = "PreparingRebalance"
    scene.in_phase("standby", lambda: scene.order(""), 10)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.neighbour.asked == []
    assert scene.outcomes() == {"forced": 1}
    assert scene.parts.fake_sink.rows(0) == [2, 3]


def test_told_alone_while_it_warms_up_it_joins_first() -> None:
    scene = Scene()
    scene.serve_before()
    scene.runner.durations.extend([0, 20_000])
    scene.in_phase("warming", lambda: scene.order(""), 2_000)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.phases() == [
        "starting", "warming", "joining", "warming", "running", "draining", "stopped",
    ]  # fmt: skip
    assert 2_000 <= scene.at("joining") <= 2_100
    (joined,) = scene.events("joined")
    assert joined["ts_ms"] < 1_700_000_000_000 + 2_200
    assert scene.at("running") >= 20_000, "it is warm by then"
    assert scene.parts.engines == 1
    assert scene.parts.last.polls >= 18_000 / 50, "the group is served meanwhile"
    taken = scene.worker.status.takeover
    assert taken is not None
    assert (taken["from"], taken["forced"], taken["generation"]) == (OTHER, True, 7)
    assert all(pause > 18_000 for pause in taken["pauses_ms"].values())
    assert scene.parts.fake_sink.rows(0) == [2, 3]


def test_told_with_an_address_while_it_warms_up_the_order_is_kept() -> None:
    scene = Scene()
    scene.serve_before()
    scene.runner.durations.extend([0, 20_000])
    scene.in_phase("warming", scene.order, 2_000)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.phases()[:5] == ["starting", "warming", "standby", "taking-over", "joining"]
    assert 20_000 <= scene.at("taking-over") <= 20_200
    assert scene.outcomes() == {"asked": 1}


# ---- the member ends by itself


def test_a_member_that_is_gone_is_followed_as_by_a_new_one() -> None:
    scene = Scene(joinGateMs=3_000)
    scene.serve_before()
    scene.in_phase("standby", lambda: setattr(scene.group, "member_id", ""), 5_000)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.phases()[:6] == ["starting", "warming", "standby", "warm", "joining", "running"]
    assert scene.at("joining") - scene.at("warm") >= 3_000
    assert scene.worker.status.standby is None
    assert scene.worker.status.takeover is None
    assert scene.outcomes() == {}
    assert len(scene.parts.made) == 1, "what stood by joins"
    assert scene.parts.fake_sink.rows(0) == [2, 3]


def test_a_coordinator_that_is_away_changes_nothing() -> None:
    scene = Scene()
    scene.serve_before()
    scene.in_phase("standby", lambda: setattr(scene.group, "error", KafkaConnectionError("refused")), 100)
    scene.in_phase("standby", lambda: setattr(scene.group, "error", None), 20_000)
    scene.stop_in("standby", 25_000)
    assert scene.run() == 0
    assert scene.phases() == ["starting", "warming", "standby", "stopped"]
    assert "cannot read the state of the group" in scene.stderr.getvalue()


def test_a_standby_that_cannot_connect_yet_tries_again() -> None:
    scene = Scene()
    scene.parts.on_made = lambda made: made.stand_by_errors.extend([KafkaConnectionError("refused")] * 3)
    scene.stop_in("standby")
    assert scene.run() == 0
    assert scene.clock.now >= 3_000
    assert scene.parts.last.stood_by == 1


def test_a_standby_that_never_can_says_why() -> None:
    scene = Scene()
    scene.parts.on_made = lambda made: made.stand_by_errors.append(SaslAuthenticationError("who?"))
    assert scene.run() == 1
    assert "cannot stand by: " in scene.events("error")[0]["message"]


# ---- who is what at the start


def test_the_pod_that_holds_the_membership_returns() -> None:
    scene = Scene(holder=POD)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.phases()[:4] == ["starting", "joining", "warming", "running"]
    assert scene.worker.status.document()["holder"] == POD
    assert scene.outcomes() == {}


def test_the_pod_that_signed_last_returns_though_the_client_id_is_anothers() -> None:
    scene = Scene(holder=OTHER)
    for tp in scene.tps:
        scene.group.commit_as(POD, tp, 2, scene.clock.wall_ms(), since_ms=9)
    scene.group.commit_as(OTHER, scene.tps[1], 2, scene.clock.wall_ms() + 50, since_ms=8)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.phases()[:3] == ["starting", "joining", "warming"]


def test_without_a_key_commits_say_the_pod_too_where_it_is_not_called_as_the_member() -> None:
    """So that the same pod knows that it is the holder, when it is started with a key later."""
    scene = Scene(holder=OTHER, keyed=False)
    scene.stop_when_done()
    assert scene.run() == 0
    assert scene.phases()[:3] == ["starting", "joining", "warming"]
    assert {scene.group.note(tp).pod for tp in scene.tps} == {POD}
    assert all(scene.group.note(tp).alive_ms is None for tp in scene.tps)
    assert scene.group.member(offsets=True).holder == POD


def test_without_a_key_a_process_is_its_predecessors_return() -> None:
    from tests.worker.unit.runtime.worker.test_runtime_worker import Stage

    stage = Stage(known=True)
    stage.stop_when_committed()
    assert stage.worker.run() == 0
    assert stage.phases()[:3] == ["starting", "joining", "warming"]
    assert stage.worker.status.document()["standby"] is None


# ---- the stop, phase by phase


@pytest.mark.parametrize("after_ms", [10, 100])
def test_a_stop_while_it_asks_withdraws_the_question(after_ms: int) -> None:
    scene = ordered()
    scene.caller.durations.append(1_000)
    scene.stop_in("taking-over", after_ms)
    assert scene.run() == 0
    assert scene.neighbour.withdrawn == [ADDRESS]
    assert scene.parts.last.taken_over is None
    assert scene.phases()[-2:] == ["taking-over", "stopped"]


def test_a_stop_between_answer_and_join_withdraws_too() -> None:
    scene = ordered()
    scene.parts.on_made = lambda made: setattr(made, "held_up", 100)
    scene.stop_in("joining", 100)
    assert scene.run() == 0
    assert scene.neighbour.withdrawn == [ADDRESS]
    assert scene.group.member_id == f"{MEMBER}-by-{OTHER}"
    assert scene.parts.last.closed


def test_a_failure_between_answer_and_join_withdraws_too() -> None:
    scene = ordered()

    def fail(_: object, __: object = None) -> None:
        raise SaslAuthenticationError("no longer")

    scene.parts.on_made = lambda made: setattr(made, "take_over", fail)
    assert scene.run() == 1
    assert scene.neighbour.withdrawn == [ADDRESS]


def test_after_the_join_nothing_is_withdrawn() -> None:
    scene = ordered()
    scene.stop_in("running", 5)
    assert scene.run() == 0
    assert scene.neighbour.withdrawn == []
    assert "draining" in scene.phases()


def test_a_stop_while_the_question_waits_for_the_group_asks_nobody() -> None:
    scene = ordered()
    scene.clock.at(0, lambda: scene.in_phase("standby", lambda: setattr(scene.group, "state", "Dead"), 1_499))
    scene.stop_in("taking-over", 100)
    assert scene.run() == 0
    assert scene.neighbour.asked == []
    assert scene.neighbour.withdrawn == []
