"""The predecessor's side: drain, answer, the fence, and the ways back."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.errors import CommitFailedError, KafkaConnectionError
from slackwater.runtime.delivery.partition import CommitNote
from slackwater.runtime.takeover.http_handler import PendingHandover, Refused
from slackwater.runtime.takeover.messages import HandoverAnswer
from tests.worker.unit.runtime.takeover.takeover_bench import ADDRESS, DEADLINE_MS, MEMBER, OTHER, POD, Scene

ASKED_MS = 1_000


class Holding(Scene):
    """This pod serves, and is asked by the other after a second. ``batch_ms``: how long its handler takes for
    what comes shortly before that."""

    def __init__(
        self, *, batch_ms: float = 0, asks: bool = True, deadline_ms: int = DEADLINE_MS, **changes: Any
    ):
        super().__init__(holder=POD, records=2, **changes)
        self.asked: list[PendingHandover] = []
        self.refused: list[str] = []
        self.in_phase("running", self.more, ASKED_MS - 100)
        if batch_ms:
            self.in_phase("running", lambda: self.runner.durations.append(batch_ms), ASKED_MS - 150)
        if asks:
            self.in_phase("running", lambda: self.asks(deadline_ms=deadline_ms), ASKED_MS)

    def more(self) -> None:
        for tp in self.tps:
            self.group.produce(tp.partition, ["w0", "w1"])

    def asks(self, by: str = OTHER, deadline_ms: int = DEADLINE_MS) -> None:
        try:
            self.asked.append(self.ask(by, deadline_ms))
        except Refused as exc:
            self.refused.append(str(exc))

    def answer(self) -> HandoverAnswer | None:
        """What the last question was answered. Raises Refused."""
        return self.asked[-1].wait(0)

    def fenced_after(self, ms: float) -> None:
        self.in_phase("handing-over", lambda: self.parts.last.fence(), ms)


def test_it_answers_with_what_is_committed_and_is_fenced() -> None:
    scene = Holding()
    scene.fenced_after(200)
    scene.in_phase("standby", lambda: None)
    scene.stop_in("standby", 3_000)
    assert scene.run() == 0
    assert scene.phases() == [
        "starting",
        "joining",
        "warming",
        "running",
        "handing-over",
        "standby",
        "stopped",
    ]
    answer = scene.answer()
    assert answer is not None
    assert answer.generation == 7
    assert {tp: at.offset for tp, at in answer.offsets.items()} == dict.fromkeys(scene.tps, 4)
    assert answer.offsets == {tp: scene.group.committed[tp] for tp in scene.tps}, "nothing committed after it"
    (handover,) = scene.events("handover")
    assert (handover["by"], handover["generation"], handover["offsets_count"]) == (OTHER, 7, 2)
    assert scene.events("handed_over")[0]["by"] == OTHER
    first, second = scene.parts.made
    assert first.closed
    assert second.stood_by == 1
    assert scene.parts.engines == 1, "what is loaded stays loaded"
    assert scene.events("lost") == scene.events("revoked") == scene.events("fenced") == []
    document = scene.worker.status.document()
    assert (document["generation"], document["assignment"], document["lag"]) == (-1, [], {})
    assert document["holder"] == OTHER, "it was told by whom, and nobody has signed yet"
    assert document["standby"]["handed_over"] is True


def test_it_says_for_how_long_it_has_written_nothing() -> None:
    scene = Holding(batch_ms=300)
    scene.fenced_after(1_000)
    scene.stop_in("standby")
    assert scene.run() == 0
    answer = scene.answer()
    assert answer is not None
    assert answer.unserved_ms.keys() == set(scene.tps)
    assert all(ms <= 5 for ms in answer.unserved_ms.values()), "it has just written its last batch"
    assert 190 <= answer.took_ms <= 260, "asked 100 ms after the batch began, which takes 300"
    assert HandoverAnswer.parse(answer.document()) == answer


def test_what_it_gives_up_was_written_last_before_the_drain() -> None:
    scene = Holding(batch_ms=60_000)
    scene.fenced_after(10_000)
    scene.stop_in("standby")
    assert scene.run() == 0
    answer = scene.answer()
    assert answer is not None
    assert {tp: at.offset for tp, at in answer.offsets.items()} == dict.fromkeys(scene.tps, 2)
    assert all(ms >= 0.8 * DEADLINE_MS + 900 for ms in answer.unserved_ms.values())


def test_of_an_idle_partition_it_counts_from_the_drain() -> None:
    """Nothing has come for ten seconds; a reader of the table misses nothing."""
    scene = Holding(asks=False)
    scene.in_phase("running", scene.asks, 10_000)
    scene.fenced_after(11_000)
    scene.stop_in("standby")
    assert scene.run() == 0
    answer = scene.answer()
    assert answer is not None
    assert all(ms <= 60 for ms in answer.unserved_ms.values())


def test_the_last_notes_say_when_it_drained_and_until_when_it_served() -> None:
    scene = Holding(batch_ms=300)
    scene.fenced_after(1_000)
    scene.stop_in("standby")
    assert scene.run() == 0
    answer = scene.answer()
    assert answer is not None
    notes = [CommitNote.decode(at.metadata) for at in answer.offsets.values()]
    for note in notes:
        assert note is not None
        assert note.drain_ms == answer.drain_ms
        assert note.at_ms == answer.committed_ms
        assert note.pod == POD
    assert answer.committed_ms - answer.drain_ms >= 200, "a batch was in flight"
    commits = [entry[1] for entry in scene.group.journal if entry[0] == "commit"]
    assert commits[-1] == {"flights-0": 4, "flights-1": 4}
    assert commits[-2] == {"flights-0": 2, "flights-1": 2}, "the batch's own commit was the last one"


def test_the_batch_in_flight_is_finished_first() -> None:
    scene = Holding(batch_ms=2_000)
    scene.fenced_after(3_000)
    scene.stop_in("standby")
    assert scene.run() == 0
    assert scene.parts.fake_sink.rows(0) == [0, 1, 2, 3]
    answer = scene.answer()
    assert answer is not None
    assert answer.offsets[scene.tps[0]].offset == 4


@pytest.mark.parametrize(("batch_ms", "rows"), [(3_850, [0, 1, 2, 3]), (4_300, [0, 1])])
def test_a_batch_that_is_longer_than_four_fifths_of_the_deadline_is_given_up(
    batch_ms: int, rows: list[int]
) -> None:
    scene = Holding(batch_ms=batch_ms)
    scene.fenced_after(4_500)
    scene.stop_in("standby", 2_000)
    assert scene.run() == 0
    answer = scene.answer()
    assert answer is not None
    assert answer.offsets[scene.tps[0]].offset == len(rows)
    assert answer.committed_ms - answer.drain_ms <= 4_001
    assert scene.parts.fake_sink.rows(0) == rows
    assert scene.parts.fake_sink.staged == 0, "what the handler made later is removed"


def test_it_polls_on_until_it_is_fenced_and_takes_nothing() -> None:
    scene = Holding()
    polls = []
    scene.in_phase("handing-over", scene.more, 50)
    scene.in_phase("handing-over", lambda: polls.append(scene.parts.last.polls), 100)
    scene.in_phase("handing-over", lambda: polls.append(scene.parts.last.polls), 2_100)
    scene.fenced_after(2_100)
    scene.stop_in("standby")
    assert scene.run() == 0
    assert polls[1] - polls[0] >= 2_000 / 50 - 2
    assert scene.parts.fake_sink.rows(0) == [0, 1, 2, 3]
    assert scene.worker.status.ready is False


# ---- when it is not the time for it


def test_a_worker_that_is_not_running_refuses_to_hand_over() -> None:
    scene = Holding(asks=False)
    for phase in ("starting", "joining", "warming", "draining"):
        scene.in_phase(phase, scene.asks)
    scene.runner.durations.extend([100, 1_000])
    scene.stop_in("running", ASKED_MS - 90)
    assert scene.run() == 0
    assert scene.refused[:3] == ["this worker is still starting"] * 3
    assert scene.asked == []


def test_a_group_that_is_not_at_rest_is_a_refusal() -> None:
    scene = Holding()

    def leave() -> None:
        member = scene.parts.last
        member.snapshot = type(member.snapshot)("preparing", 7, "", MEMBER, False)

    scene.in_phase("running", leave, ASKED_MS - 1)
    scene.stop_in("running", ASKED_MS + 100)
    assert scene.run() == 0
    with pytest.raises(Refused, match="not stable"):
        scene.answer()
    assert "handing-over" not in scene.phases()


def test_a_second_pod_is_refused_while_a_handover_is_under_way() -> None:
    scene = Holding(batch_ms=500)
    scene.in_phase("handing-over", lambda: scene.asks("flights-c-3"))
    scene.in_phase("handing-over", lambda: scene.asks(OTHER), 600)
    scene.fenced_after(1_000)
    scene.stop_in("standby")
    assert scene.run() == 0
    assert scene.refused == [f"the handover to {OTHER} is under way"]
    assert scene.asked[0] is scene.asked[1], "who has lost the answer gets it again"
    assert len(scene.events("handover")) == 1


def test_a_standby_refuses() -> None:
    scene = Scene()
    refusals: list[str] = []

    def ask() -> None:
        try:
            scene.ask()
        except Refused as exc:
            refusals.append(str(exc))

    scene.in_phase("standby", ask)
    scene.stop_in("standby", 10)
    assert scene.run() == 0
    assert refusals == ["this pod is not the member"]


def test_the_member_takes_no_order() -> None:
    scene = Holding(asks=False)
    refusals: list[str] = []

    def order() -> None:
        try:
            scene.order()
        except Refused as exc:
            refusals.append(str(exc))

    scene.in_phase("running", order)
    scene.stop_in("running", 10)
    assert scene.run() == 0
    assert refusals == ["this pod is the member, or about to be"]


# ---- the successor does not come


def goes_on(scene: Holding) -> None:
    """It works again as if nothing had been."""
    phases = scene.phases()
    assert phases[phases.index("handing-over") :][:2] == ["handing-over", "running"]
    assert len(scene.parts.made) == 1
    assert scene.parts.fake_sink.rows(0) == list(range(len(scene.group.logs[scene.tps[0]])))
    assert scene.parts.fake_sink.rows(1) == list(range(len(scene.group.logs[scene.tps[1]])))
    assert scene.outcomes() == {"taken_back": 1}
    assert scene.worker.status.standby is None


def test_a_predecessor_continues_at_once_after_a_withdrawal() -> None:
    scene = Holding()
    scene.in_phase("handing-over", scene.more, 100)
    scene.in_phase("handing-over", lambda: scene.requests.withdraw(OTHER), 300)
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 1_000), 300)
    assert scene.run() == 0
    goes_on(scene)
    (event,) = scene.events("took_back")
    assert event["reason"] == "its successor has withdrawn"
    assert event["ts_ms"] - scene.events("handover")[0]["ts_ms"] <= 350


def test_a_predecessor_does_not_answer_a_request_withdrawn_while_it_drains() -> None:
    scene = Holding(batch_ms=1_000)
    scene.in_phase("handing-over", lambda: scene.requests.withdraw(OTHER), 300)
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 1_500), 300)
    assert scene.run() == 0
    goes_on(scene)
    with pytest.raises(Refused, match="withdrawn"):
        scene.answer()
    assert scene.events("handover") == []


def test_a_successor_that_dies_is_given_up_after_two_seconds() -> None:
    scene = Holding()
    scene.in_phase("handing-over", lambda: setattr(scene.neighbour, "alive_until", scene.clock.now))
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 1_000), 100)
    assert scene.run() == 0
    goes_on(scene)
    (event,) = scene.events("took_back")
    assert event["reason"] == "its successor is gone"
    took = event["ts_ms"] - scene.events("handover")[0]["ts_ms"]
    assert 2_000 <= took <= 2_200


def test_a_successor_that_answers_now_and_then_is_waited_for_until_the_deadline() -> None:
    scene = Holding()
    times = []

    def alive(_: str) -> bool:
        times.append(scene.clock.now)
        return len(times) % 3 == 0

    scene.neighbour.alive = alive  # type: ignore[method-assign]
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 1_000), 100)
    assert scene.run() == 0
    goes_on(scene)
    took = scene.events("took_back")[0]["ts_ms"] - scene.events("handover")[0]["ts_ms"]
    assert DEADLINE_MS <= took <= DEADLINE_MS + 700


def test_a_successor_that_lives_and_does_not_join_is_waited_for_twice_as_long() -> None:
    scene = Holding()
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 1_000), 100)
    assert scene.run() == 0
    goes_on(scene)
    event = scene.events("took_back")[0]
    took = event["ts_ms"] - scene.events("handover")[0]["ts_ms"]
    assert 2 * DEADLINE_MS <= took <= 2 * DEADLINE_MS + 100
    assert "did not join within" in event["reason"]


def test_a_batch_that_was_given_up_is_handled_when_the_successor_is_gone() -> None:
    scene = Holding(batch_ms=6_000)
    scene.in_phase("handing-over", lambda: setattr(scene.neighbour, "alive_until", 0))
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 3_000), 100)
    assert scene.run() == 0
    goes_on(scene)
    assert scene.parts.fake_sink.staged == 0


def test_a_predecessor_can_hand_over_after_a_withdrawal() -> None:
    scene = Holding()
    scene.in_phase("handing-over", lambda: scene.requests.withdraw(OTHER), 300)
    scene.in_phase("handing-over", lambda: scene.in_phase("running", scene.asks, 500), 100)
    scene.in_phase(
        "handing-over", lambda: scene.in_phase("running", lambda: scene.fenced_after(300), 400), 100
    )
    scene.stop_in("standby", 100)
    assert scene.run() == 0
    assert len(scene.events("handover")) == 2
    assert len(scene.events("handed_over")) == 1


def test_a_join_that_it_has_not_heard_of_is_found_out_before_it_goes_on() -> None:
    """Between two heartbeats a fenced member does not know it."""
    scene = Holding()

    def join_and_die() -> None:
        scene.neighbour.alive_until = 0
        scene.parts.last.fence()
        scene.parts.last._check_fenced = lambda: None  # type: ignore[method-assign]
        commit = scene.parts.last.commit

        def refused(*args: Any, **kwargs: Any) -> None:
            del scene.parts.last._check_fenced
            commit(*args, **kwargs)

        scene.parts.last.commit = refused  # type: ignore[method-assign]

    scene.in_phase("handing-over", join_and_die, 100)
    scene.stop_in("standby", 100)
    assert scene.run() == 0
    assert scene.phases()[4:6] == ["handing-over", "standby"], "it has taken nothing in between"
    assert scene.events("handed_over")[0]["by"] == OTHER


def test_a_predecessor_does_not_continue_while_the_broker_gives_no_answer() -> None:
    scene = Holding()
    scene.in_phase("handing-over", lambda: setattr(scene.neighbour, "alive_until", 0))
    scene.in_phase(
        "handing-over",
        lambda: scene.parts.last.commit_errors.extend([KafkaConnectionError("refused")] * 40),
        100,
    )
    scene.in_phase("handing-over", lambda: scene.stop_in("running", 1_000), 100)
    assert scene.run() == 0
    goes_on(scene)
    assert not scene.parts.last.commit_errors
    assert scene.events("took_back")[0]["ts_ms"] - scene.events("handover")[0]["ts_ms"] >= 3_500


# ---- fenced


def test_fenced_while_it_drains_it_writes_nothing_more() -> None:
    """Its successor did not wait any longer."""
    scene = Holding(batch_ms=3_000)
    scene.fenced_after(1_000)
    scene.stop_in("standby", 5_000)
    assert scene.run() == 0
    assert scene.parts.fake_sink.rows(0) == [0, 1]
    assert scene.parts.fake_sink.staged == 0
    assert scene.group.committed[scene.tps[0]].offset == 2
    with pytest.raises(Refused, match="the handover failed"):
        scene.answer()
    assert scene.worker.status.standby is not None
    assert scene.worker.status.standby["handed_over"] is True
    assert scene.worker.status.holder == OTHER


@pytest.mark.parametrize("batch_ms", [0, 3_000])
def test_fenced_without_a_question_it_writes_nothing_more_and_stands_by(batch_ms: int) -> None:
    """It hung, and its successor took over at the deadline."""
    scene = Holding(asks=False, batch_ms=batch_ms)
    scene.in_phase("running", lambda: scene.parts.last.fence(), ASKED_MS)
    scene.stop_in("standby", 5_000)
    assert scene.run() == 0
    assert scene.parts.fake_sink.rows(0) == ([0, 1] if batch_ms else [0, 1, 2, 3])
    assert scene.parts.fake_sink.staged == 0
    assert len(scene.events("fenced")) == 1
    assert scene.events("handed_over") == scene.events("error") == []
    assert scene.worker.status.standby is not None
    assert scene.worker.status.standby["handed_over"] is False
    assert scene.worker.status.holder is None, "it does not know by whom"
    assert scene.neighbour.probes == []


def test_who_took_over_is_known_from_its_commits() -> None:
    scene = Holding(asks=False)
    scene.in_phase("running", lambda: scene.parts.last.fence(), ASKED_MS)

    def commit() -> None:
        scene.group.commit_as(OTHER, scene.tps[0], 4, scene.clock.wall_ms(), scene.clock.wall_ms())

    scene.in_phase("standby", commit, 1_000)
    scene.stop_in("standby", 3_000)
    assert scene.run() == 0
    assert scene.worker.status.holder == OTHER


def test_two_processes_of_one_pods_name_are_a_fault() -> None:
    scene = Holding(asks=False)
    scene.in_phase("running", lambda: scene.parts.last.fence(), ASKED_MS)

    def commit() -> None:
        scene.group.commit_as(POD, scene.tps[0], 4, scene.clock.wall_ms(), scene.clock.wall_ms())

    scene.in_phase("standby", commit, 1_000)
    scene.stop_in("standby", 30_000)
    assert scene.run() == 3
    assert scene.at("failed") - scene.at("standby") <= 2_100
    assert "its own SLACKWATER_INSTANCE_ID" in scene.events("error")[0]["message"]


def test_fenced_while_it_warms_up_it_gets_ready_to_follow() -> None:
    scene = Scene(holder=POD)
    scene.runner.durations.extend([0, 10_000])
    scene.in_phase("warming", lambda: scene.parts.last.fence(), 2_000)
    scene.stop_in("standby", 100)
    assert scene.run() == 0
    assert scene.phases() == ["starting", "joining", "warming", "warming", "standby", "stopped"]
    assert scene.at("standby") >= 10_000
    assert scene.parts.engines == 1


# ---- the stop


def test_a_stop_while_it_drains_for_its_successor_is_answered_first() -> None:
    scene = Holding(batch_ms=2_000)
    scene.stop_in("handing-over", 500)
    assert scene.run() == 0
    answer = scene.answer()
    assert answer is not None
    assert answer.offsets == {tp: scene.group.committed[tp] for tp in scene.tps}
    assert {at.offset for at in answer.offsets.values()} == {4}
    assert len(scene.events("drained")) == 1
    assert scene.parts.last.closed


def test_a_stop_while_it_waits_for_the_fence_ends_at_once() -> None:
    scene = Holding()
    scene.stop_in("handing-over", 500)
    assert scene.run() == 0
    assert scene.phases()[-3:] == ["handing-over", "draining", "stopped"]
    assert scene.at("draining") - scene.at("handing-over") <= 560
    answer = scene.answer()
    assert answer is not None
    assert answer.offsets == {tp: scene.group.committed[tp] for tp in scene.tps}, "it commits no more"


def test_a_stop_refuses_who_asks_then() -> None:
    scene = Holding(asks=False, batch_ms=2_000)
    scene.stop_in("running", ASKED_MS)
    scene.in_phase("draining", scene.asks, 100)
    assert scene.run() == 0
    assert scene.refused == ["this worker stops"]


def test_fenced_while_it_stops_it_still_ends_well() -> None:
    scene = Holding(asks=False, batch_ms=2_000)
    scene.stop_in("running", ASKED_MS)
    scene.in_phase("draining", lambda: scene.parts.last.fence(), 500)
    assert scene.run() == 0
    assert scene.parts.fake_sink.rows(0) == [0, 1]


# ---- taking the membership back


class HandedOver(Holding):
    """It has handed over; the successor commits every ``commits_ms`` until ``commits_until``."""

    def __init__(self, *, commits_ms: float = 500, **changes: Any) -> None:
        super().__init__(**changes)
        self.commits_ms, self.commits_until, self.offset = commits_ms, float("inf"), 4
        self.fenced_after(100)
        self.in_phase("standby", self._commit)

    def _commit(self) -> None:
        if self.clock.now <= self.commits_until:
            for tp in self.tps:
                self.group.commit_as(OTHER, tp, self.offset, self.clock.wall_ms(), self.clock.wall_ms())
            self.clock.after(self.commits_ms, self._commit)

    def dies(self, *, answers: bool = False) -> None:
        self.commits_until = self.clock.now
        if not answers:
            self.neighbour.alive_until = self.clock.now


def test_a_predecessor_takes_the_membership_back_when_its_successor_is_gone() -> None:
    scene = HandedOver(properties={"session.timeout.ms": "10000"})
    scene.in_phase("standby", scene.dies, 5_000)
    scene.in_phase("standby", scene.more, 6_000)
    scene.in_phase("standby", lambda: scene.stop_in("running", 500))
    assert scene.run() == 0
    assert scene.phases()[5:9] == ["standby", "taking-over", "joining", "running"]
    took = scene.at("taking-over") - scene.at("standby") - 5_000
    assert 3_000 <= took <= 5_100
    (event,) = scene.events("took_back")
    assert "does not answer, and has committed nothing for" in event["reason"]
    assert scene.outcomes() == {"taken_back": 1}
    assert scene.neighbour.asked == []
    assert scene.parts.fake_sink.rows(0) == [0, 1, 2, 3, 4, 5]
    taken = scene.worker.status.takeover
    assert taken is not None
    assert (taken["from"], taken["forced"]) == (OTHER, True)
    assert scene.worker.status.document()["holder"] == POD


def test_a_long_session_is_waited_for_longer() -> None:
    scene = HandedOver(properties={"session.timeout.ms": "45000"})
    scene.in_phase("standby", scene.dies, 5_000)
    scene.in_phase("standby", lambda: scene.stop_in("running", 500))
    assert scene.run() == 0
    assert 9_000 <= scene.at("taking-over") - scene.at("standby") - 5_000 <= 11_100


def test_a_successor_that_commits_lives_though_it_does_not_answer() -> None:
    """The way between the two is cut."""
    scene = HandedOver()
    scene.in_phase("standby", lambda: setattr(scene.neighbour, "alive_until", 0))
    scene.stop_in("standby", 120_000)
    assert scene.run() == 0
    assert scene.phases()[-2:] == ["standby", "stopped"]
    assert len(scene.neighbour.probes) >= 200
    assert scene.outcomes() == {}


def test_a_successor_that_answers_lives_though_it_commits_nothing() -> None:
    scene = HandedOver()
    scene.in_phase("standby", lambda: scene.dies(answers=True), 1_000)
    scene.stop_in("standby", 120_000)
    assert scene.run() == 0
    assert scene.phases()[-2:] == ["standby", "stopped"]


def test_a_broker_that_does_not_tell_what_is_committed_is_no_proof() -> None:
    scene = HandedOver()
    scene.in_phase("standby", lambda: setattr(scene.group, "error", KafkaConnectionError("refused")), 1_000)
    scene.in_phase("standby", lambda: setattr(scene.neighbour, "alive_until", 0))
    scene.stop_in("standby", 60_000)
    assert scene.run() == 0
    assert scene.phases()[-2:] == ["standby", "stopped"]


def test_a_free_membership_is_left_to_a_live_successor() -> None:
    scene = HandedOver()
    scene.in_phase("standby", lambda: setattr(scene.group, "member_id", ""), 5_000)
    scene.stop_in("standby", 60_000)
    assert scene.run() == 0
    assert scene.phases()[-2:] == ["standby", "stopped"]


def test_a_free_membership_is_taken_when_the_successor_is_gone() -> None:
    scene = HandedOver()
    scene.in_phase("standby", lambda: setattr(scene.group, "member_id", ""), 5_000)
    scene.in_phase("standby", lambda: setattr(scene.neighbour, "alive_until", 0), 5_000)
    scene.in_phase("standby", lambda: scene.stop_in("running", 100))
    assert scene.run() == 0
    assert scene.at("joining") >= 0
    assert scene.phases()[-4:] == ["joining", "running", "draining", "stopped"]


def test_a_membership_moves_to_the_successor_and_back() -> None:
    """A worker hands over, stands by, is ordered to take over again, and hands over again."""
    scene = HandedOver()
    scene.in_phase("standby", scene.order, 3_000)
    scene.in_phase("taking-over", lambda: setattr(scene, "commits_until", 0))
    scene.in_phase("taking-over", lambda: scene.in_phase("running", scene.asks, 1_000))
    scene.in_phase("taking-over", lambda: scene.fenced_after(100))
    scene.in_phase("taking-over", lambda: scene.stop_in("standby", 1_000))
    assert scene.run() == 0
    assert scene.phases() == [
        "starting", "joining", "warming", "running", "handing-over", "standby", "taking-over", "joining",
        "running", "handing-over", "standby", "stopped",
    ]  # fmt: skip
    assert len(scene.parts.made) == 3
    assert [member.closed for member in scene.parts.made] == [True] * 3
    assert scene.outcomes() == {"asked": 1}
    assert [event["by"] for event in scene.events("handed_over")] == [OTHER, OTHER]


def test_a_worker_shows_in_a_long_batch_that_it_is_alive() -> None:
    """A predecessor that cannot reach it must not take the membership back."""
    scene = Holding(asks=False, batch_ms=20_000, properties={"session.timeout.ms": "10000"})
    snapshots: list[Any] = []
    for second in range(2, 18):
        scene.in_phase(
            "running", lambda: snapshots.append(dict(scene.group.committed)), ASKED_MS + second * 1_000
        )
    scene.stop_in("running", 25_000)
    assert scene.run() == 0
    assert scene.parts.fake_sink.rows(0) == [0, 1, 2, 3]
    assert len({str(sorted(snapshot.items())) for snapshot in snapshots}) >= len(snapshots) // 2
    assert {at.offset for snapshot in snapshots for at in snapshot.values()} == {2}
    notes = [CommitNote.decode(at.metadata) for at in snapshots[-1].values()]
    assert all(note is not None and note.alive_ms and note.at_ms for note in notes)


def test_a_commit_that_is_refused_in_the_drain_leaves_what_was_committed_before() -> None:
    scene = Holding(batch_ms=300)
    scene.in_phase("handing-over", lambda: scene.parts.last.commit_errors.append(CommitFailedError("x")))
    scene.fenced_after(1_000)
    scene.stop_in("standby")
    assert scene.run() == 0
    answer = scene.answer()
    assert answer is not None
    assert answer.offsets[scene.tps[0]].offset == 2
    assert scene.parts.fake_sink.rows(0) == [0, 1]
    assert set(scene.neighbour.addresses) == {ADDRESS}, "it asks whether its successor lives, where that said"
