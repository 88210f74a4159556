"""The membership state machine in virtual time, against a scripted coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from slackwater.kafka.errors import (
    FencedInstanceIdError,
    IllegalStateError,
    KafkaProtocolError,
)
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.assignors import CooperativeStickyAssignor, RangeAssignor
from slackwater.kafka.protocol.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.protocol.membership.requests import Lane, Send
from slackwater.kafka.protocol.membership.states import (
    NET_MARGIN_MS,
    NEVER_MS,
    TRANSITIONS,
    Event,
    MembershipConfig,
    State,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.memberships import handle_notices
from tests.support.virtual_time import steady


def tps(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


class Bench:
    """A member, what it owns, and the clock."""

    def __init__(
        self,
        *,
        static: bool = True,
        assignors: Iterable[Any] = (),
        backoff: Backoff | None = None,
        **settings: Any,
    ) -> None:
        self.owned: set[TopicPartition] = set()
        self.now = 1_000
        config = MembershipConfig("g", "i-0" if static else None, **settings)
        offered = list(assignors) or [CooperativeStickyAssignor()]
        delay_ms = (backoff or steady()).delay_ms
        self.member = Membership(config, offered, lambda: self.owned, delay_ms)
        self.sent: list[Send] = []
        self.wake_at = NEVER_MS

    def state(self) -> State:
        return self.member.state

    def poll(self, at: int | None = None) -> list[Any]:
        if at is not None:
            self.now = at
        sends, self.wake_at = self.member.poll(self.now)
        self.sent += sends
        return sends

    def take(self, kind: type[Any]) -> Any:
        """The next request, which must be the only one and of this kind."""
        (send,) = self.poll()
        assert isinstance(send.request, kind)
        return send

    def answer(self, send: Send, response: Any) -> None:
        self.member.on_response(send, response, self.now)

    def tell(self) -> list[tuple[NoticeKind, list[TopicPartition]]]:
        """Has the application handle all notices."""
        return handle_notices(self.member, self.owned, self.now)

    def subscribe(self, *topics: str) -> None:
        self.member.caller_polls(self.now)
        self.member.subscribe(topics or ("t",), self.now)

    def join(self, generation: int = 1, member_id: str = "m-1", leader: str = "other", **more: Any) -> Any:
        send = self.take(m.JoinGroupRequest)
        if send.ahead is not None:
            self.member.on_ahead(send, more.pop("probe", None))
        self.answer(
            send,
            m.JoinGroupResponse(
                generation_id=generation,
                member_id=member_id,
                leader=leader,
                protocol_name=more.pop("protocol_name", "cooperative-sticky"),
                **more,
            ),
        )
        return send

    def sync(self, *partitions: TopicPartition) -> Any:
        send = self.take(m.SyncGroupRequest)
        self.answer(send, m.SyncGroupResponse(assignment=encode_assignment(partitions)))
        return send

    def keep_place(self, code: int = 0) -> Any:
        """A static member that was too late with poll(), or removed, asks whether another has its place."""
        send = self.take(m.HeartbeatRequest)
        assert send.lane is Lane.GROUP
        self.answer(send, m.HeartbeatResponse(error_code=code))
        return send

    def settle(self, *numbers: int, generation: int = 1) -> None:
        self.subscribe()
        self.join(generation)
        self.sync(*tps(*numbers))
        self.tell()
        assert self.state() is State.STABLE

    def calm(self) -> None:
        """The time in which a second rebalance is expected is over: heartbeats are far apart."""
        self.member.timers.beat_ms = NEVER_MS
        self.member.timers.beat_next(self.now)

    def beat(self, code: int = 0) -> Any:
        self.now = max(self.now, self.wake_at)
        send = self.take(m.HeartbeatRequest)
        self.answer(send, m.HeartbeatResponse(error_code=code))
        return send


# -- the table -------------------------------------------------------------------------------------


def test_every_state_has_a_row_and_illegal_moves_raise() -> None:
    for state in TRANSITIONS:
        for event in Event:
            machine = Bench().member._machine
            machine.state = state
            if event in TRANSITIONS[state]:
                machine.move(event)
                assert machine.state is TRANSITIONS[state][event]
            else:
                with pytest.raises(IllegalStateError, match=event.name):
                    machine.move(event)


# -- joining ---------------------------------------------------------------------------------------


def test_static_join_carries_the_instance_id_and_an_empty_member_id() -> None:
    bench = Bench(session_timeout_ms=12_000, max_poll_interval_ms=60_000)
    bench.subscribe("b", "a")
    send = bench.take(m.JoinGroupRequest)
    request = send.request
    assert (request.group_id, request.member_id, request.group_instance_id) == ("g", "", "i-0")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (12_000, 60_000)
    assert send.lane is Lane.GROUP
    assert send.timeout_ms == 65_000 + NET_MARGIN_MS
    assert isinstance(send.ahead, m.DescribeGroupsRequest)
    subscription = decode_subscription(request.protocols[0].metadata)
    assert (subscription.topics, subscription.owned, subscription.generation) == (("a", "b"), (), -1)


def test_dynamic_member_adopts_the_id_it_is_given() -> None:
    bench = Bench(static=False)
    bench.subscribe()
    first = bench.take(m.JoinGroupRequest)
    assert first.ahead is None
    bench.answer(first, m.JoinGroupResponse(error_code=E.MEMBER_ID_REQUIRED, member_id="given"))
    again = bench.take(m.JoinGroupRequest)
    assert (again.request.member_id, again.request.group_instance_id) == ("given", None)


def test_follower_syncs_empty_and_is_told_its_partitions() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(7)
    request = bench.sync(*tps(1, 0)).request
    assert (request.generation_id, request.member_id, request.group_instance_id) == (7, "m-1", "i-0")
    assert (request.protocol_type, request.protocol_name) == ("consumer", "cooperative-sticky")
    assert request.assignments == []
    assert bench.state() is State.ASSIGNING
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(0, 1))]
    assert bench.state() is State.STABLE


def test_leader_plans_with_the_partition_counts_it_is_given() -> None:
    bench = Bench()
    bench.subscribe()
    members = [
        m.JoinGroupResponseMember(
            member_id=name,
            group_instance_id=instance,
            metadata=encode_subscription(MemberSubscription((topic,))),
        )
        for name, instance, topic in [("m-1", "i-0", "t"), ("m-2", "i-1", "u")]
    ]
    bench.join(1, leader="m-1", members=members)
    assert bench.poll() == []
    assert bench.member.wanted_topics == frozenset({"t", "u"})
    bench.member.plan({"t": 2, "u": 1}, bench.now)
    sync = bench.take(m.SyncGroupRequest).request
    plan = {assignment.member_id: decode_assignment(assignment.assignment) for assignment in sync.assignments}
    assert plan == {"m-1": tuple(tps(0, 1)), "m-2": tuple(tps(0, topic="u"))}


def test_leader_gives_nothing_to_a_member_it_cannot_read() -> None:
    bench = Bench()
    bench.subscribe()
    members = [
        m.JoinGroupResponseMember(member_id="m-1", metadata=encode_subscription(MemberSubscription(("t",)))),
        m.JoinGroupResponseMember(member_id="m-2", metadata=b"\x00"),
    ]
    bench.join(1, leader="m-1", members=members)
    bench.member.plan({"t": 2}, bench.now)
    sync = bench.take(m.SyncGroupRequest).request
    plan = {assignment.member_id: decode_assignment(assignment.assignment) for assignment in sync.assignments}
    assert plan == {"m-1": tuple(tps(0, 1)), "m-2": ()}


def test_a_code_nobody_knows_ends_the_member() -> None:
    bench = Bench()
    bench.subscribe()
    bench.answer(bench.take(m.JoinGroupRequest), m.JoinGroupResponse(error_code=999))
    assert "UNKNOWN_CODE_999" in str(bench.member.error)


@pytest.mark.parametrize("code", [E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR])
def test_join_is_repeated_after_a_growing_back_off(code: int) -> None:
    bench = Bench(backoff=steady(100, 300))
    bench.subscribe()
    for delay in (100, 200, 300, 300):
        bench.answer(bench.take(m.JoinGroupRequest), m.JoinGroupResponse(error_code=code))
        assert bench.poll() == []
        assert bench.wake_at == bench.now + delay
        assert bench.poll(bench.now + delay - 1) == []
        bench.now += 1
    assert bench.member.coordinator_lost is (code == E.NOT_COORDINATOR)


def test_lost_join_is_repeated_with_a_new_coordinator() -> None:
    bench = Bench()
    bench.subscribe()
    bench.member.on_failure(bench.take(m.JoinGroupRequest), bench.now)
    assert bench.member.coordinator_lost
    bench.now += 100
    assert bench.take(m.JoinGroupRequest).request.member_id == ""


def test_a_protocol_that_was_not_offered_ends_the_member() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(1, protocol_name="sticky")
    assert isinstance(bench.member.error, KafkaProtocolError)


# -- returning -------------------------------------------------------------------------------------


def probe(state: str, mine: bytes, *others: bytes, protocol: str = "cooperative-sticky") -> Any:
    members = [m.DescribeGroupsResponseMember(member_id="x", group_instance_id="i-0", member_assignment=mine)]
    members += [m.DescribeGroupsResponseMember(member_id="y", member_assignment=other) for other in others]
    group = m.DescribeGroupsResponseGroup(
        group_id="g", group_state=state, protocol_data=protocol, members=members
    )
    return m.DescribeGroupsResponse(groups=[group])


@pytest.mark.parametrize(
    ("state", "described", "protocol", "returned"),
    [
        ("Stable", (0, 1), "cooperative-sticky", True),
        ("Stable", (0, 2), "cooperative-sticky", False),
        ("Stable", (0, 1), "range", False),
        ("PreparingRebalance", (0, 1), "cooperative-sticky", False),
        ("Empty", (), "cooperative-sticky", False),
    ],
)
def test_follower_knows_whether_it_returned(
    state: str, described: tuple[int, ...], protocol: str, returned: bool
) -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(4, probe=probe(state, encode_assignment(tps(*described)), protocol=protocol))
    bench.sync(*tps(0, 1))
    assert bench.member.returned is returned


# -- heartbeats ------------------------------------------------------------------------------------


def test_heartbeats_keep_their_own_time() -> None:
    bench = Bench(heartbeat_interval_ms=3_000)
    bench.settle(0)
    bench.calm()
    assert bench.poll() == []
    due = bench.now + 3_000
    assert bench.wake_at == due
    assert bench.poll(due - 1) == []
    (send,) = bench.poll(due)
    request = send.request
    assert (request.generation_id, request.member_id, request.group_instance_id) == (1, "m-1", "i-0")
    assert send.lane is Lane.COORDINATOR
    assert bench.poll(due + 2_000) == []
    bench.answer(send, m.HeartbeatResponse())
    assert bench.poll(due + 2_000 + 2_999) == []
    assert len(bench.poll(due + 2_000 + 3_000)) == 1


def test_heartbeats_are_close_together_after_a_cooperative_rebalance() -> None:
    """A broker tells of the second rebalance, in which partitions that were revoked are assigned, by the
    answers to heartbeats only."""
    bench = Bench(heartbeat_interval_ms=3_000, session_timeout_ms=10_000)
    bench.settle(0)
    bench.poll()
    sent = []
    for _ in range(8):
        began = bench.now
        bench.beat()
        sent.append(bench.now - began)
        bench.poll()
    assert sent == [100, 200, 400, 800, 1_600, 3_000, 3_000, 3_000]


def test_a_second_rebalance_is_noticed_as_soon_as_another_member_has_revoked() -> None:
    bench = Bench(heartbeat_interval_ms=3_000)
    bench.settle(0)
    began = bench.now
    bench.poll()
    bench.beat(E.REBALANCE_IN_PROGRESS)
    bench.take(m.JoinGroupRequest)
    assert bench.now - began == 100


def test_heartbeats_are_no_closer_together_than_the_interval_says() -> None:
    bench = Bench(heartbeat_interval_ms=50, session_timeout_ms=10_000)
    bench.settle(0)
    began = bench.now
    bench.poll()
    bench.beat()
    assert bench.now - began == 50


def test_heartbeats_are_far_apart_where_no_second_rebalance_follows() -> None:
    eager = Bench(assignors=[RangeAssignor()], heartbeat_interval_ms=3_000)
    eager.subscribe()
    eager.join(protocol_name="range")
    eager.sync(*tps(0))
    eager.tell()
    eager.poll()
    assert eager.wake_at - eager.now == 3_000


def test_heartbeats_go_on_while_a_sync_is_parked() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(1)
    bench.take(m.SyncGroupRequest)
    bench.poll()
    bench.beat(E.UNKNOWN_MEMBER_ID)
    assert bench.state() is State.JOINING
    bench.now += 100
    bench.keep_place(E.UNKNOWN_MEMBER_ID)
    assert bench.take(m.JoinGroupRequest).request.member_id == ""


def test_a_sync_that_is_not_answered_is_repeated() -> None:
    bench = Bench(request_timeout_ms=30_000)
    bench.subscribe()
    bench.join(1)
    first = bench.take(m.SyncGroupRequest)
    assert first.timeout_ms == 30_000 + NET_MARGIN_MS
    bench.member.on_failure(first, bench.now)
    bench.now += 100
    again = bench.take(m.SyncGroupRequest)
    assert again.request == first.request


def test_an_answer_to_an_older_self_is_ignored() -> None:
    bench = Bench()
    bench.settle(0)
    bench.poll()
    bench.now = bench.wake_at
    old = bench.take(m.HeartbeatRequest)
    bench.member.request_rejoin("test", bench.now)
    bench.join(2)
    bench.answer(old, m.HeartbeatResponse(error_code=E.UNKNOWN_MEMBER_ID))
    assert (bench.state(), bench.member.member_id) == (State.SYNCING, "m-1")


# -- rebalances ------------------------------------------------------------------------------------


def test_cooperative_member_keeps_what_it_owns_and_revokes_after_the_sync() -> None:
    bench = Bench()
    bench.settle(0, 1, 2)
    bench.poll()
    bench.beat(E.REBALANCE_IN_PROGRESS)
    request = bench.take(m.JoinGroupRequest)
    subscription = decode_subscription(request.request.protocols[0].metadata)
    assert (sorted(subscription.owned), subscription.generation) == (tps(0, 1, 2), 1)
    assert request.request.member_id == "m-1"
    bench.answer(
        request,
        m.JoinGroupResponse(generation_id=2, member_id="m-1", leader="o", protocol_name="cooperative-sticky"),
    )
    bench.sync(*tps(0, 1))
    assert bench.owned == set(tps(0, 1, 2))
    assert bench.tell() == [(NoticeKind.REVOKED, tps(2)), (NoticeKind.ASSIGNED, [])]
    follow_up = bench.join(3)
    assert "revoked" in follow_up.request.reason
    bench.sync(*tps(0, 1))
    bench.tell()
    generations = bench.member.snapshot().generations
    assert [(generation.generation, generation.follow_up) for generation in generations] == [
        (1, False),
        (2, False),
        (3, True),
    ]


def test_eager_member_revokes_before_it_joins() -> None:
    bench = Bench(assignors=[RangeAssignor()])
    bench.subscribe()
    bench.join(1, protocol_name="range")
    bench.sync(*tps(0, 1))
    bench.tell()
    bench.poll()
    bench.beat(E.REBALANCE_IN_PROGRESS)
    assert bench.poll() == []
    assert bench.state() is State.PREPARING
    # The application may take its time: the session must not end meanwhile.
    bench.beat(E.REBALANCE_IN_PROGRESS)
    assert bench.tell() == [(NoticeKind.REVOKED, tps(0, 1))]
    subscription = decode_subscription(bench.take(m.JoinGroupRequest).request.protocols[0].metadata)
    assert subscription.owned == ()


def test_a_rebalance_told_while_the_listener_runs_waits_for_it() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(1)
    bench.sync(*tps(0))
    bench.poll()
    bench.beat(E.REBALANCE_IN_PROGRESS)
    assert bench.state() is State.ASSIGNING
    assert bench.poll() == []
    bench.tell()
    bench.take(m.JoinGroupRequest)


def test_illegal_generation_keeps_the_id_and_loses_the_partitions() -> None:
    bench = Bench()
    bench.settle(0, 1)
    bench.poll()
    bench.beat(E.ILLEGAL_GENERATION)
    assert bench.poll() == []
    assert bench.tell() == [(NoticeKind.LOST, tps(0, 1))]
    request = bench.take(m.JoinGroupRequest).request
    assert request.member_id == "m-1"
    assert decode_subscription(request.protocols[0].metadata).owned == ()


def test_illegal_generation_while_a_join_is_under_way_is_left_to_its_answer() -> None:
    bench = Bench()
    bench.settle(0, 1)
    before = bench.member.identity
    bench.member.request_rejoin("test", bench.now)
    join = bench.take(m.JoinGroupRequest)
    bench.member.on_commit_error(E.ILLEGAL_GENERATION, before, bench.now)
    answer = m.JoinGroupResponse(
        generation_id=2, member_id="m-1", leader="o", protocol_name="cooperative-sticky"
    )
    bench.answer(join, answer)
    bench.sync(*tps(0, 1))
    assert bench.tell() == [(NoticeKind.ASSIGNED, [])]


def test_a_generation_that_was_missed_loses_what_was_held_through_it() -> None:
    bench = Bench()
    bench.settle(0, 1)
    bench.member.request_rejoin("test", bench.now)
    bench.join(3)
    bench.sync(*tps(1, 2))
    assert bench.tell() == [(NoticeKind.LOST, tps(0, 1)), (NoticeKind.ASSIGNED, tps(1, 2))]


def test_a_generation_that_was_missed_is_not_forgotten_when_the_sync_is_refused() -> None:
    bench = Bench()
    bench.settle(0, 1)
    bench.member.request_rejoin("test", bench.now)
    bench.join(3)
    assert bench.member.lost == set(tps(0, 1))
    bench.answer(bench.take(m.SyncGroupRequest), m.SyncGroupResponse(error_code=E.REBALANCE_IN_PROGRESS))
    bench.join(4)
    bench.sync(*tps(0))
    assert bench.member.lost == set(tps(0, 1))
    assert bench.tell() == [(NoticeKind.LOST, tps(0, 1)), (NoticeKind.ASSIGNED, tps(0))]
    assert bench.member.lost == set()


def test_unknown_member_drops_the_id_and_loses_the_partitions() -> None:
    bench = Bench()
    bench.settle(0, 1)
    bench.poll()
    bench.beat(E.UNKNOWN_MEMBER_ID)
    assert bench.tell() == [(NoticeKind.LOST, tps(0, 1))]
    bench.now += 100
    bench.keep_place(E.UNKNOWN_MEMBER_ID)
    request = bench.take(m.JoinGroupRequest).request
    assert (request.member_id, request.group_instance_id) == ("", "i-0")


def test_sync_refused_by_a_new_rebalance_joins_again() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(1)
    send = bench.take(m.SyncGroupRequest)
    bench.answer(send, m.SyncGroupResponse(error_code=E.REBALANCE_IN_PROGRESS))
    assert bench.take(m.JoinGroupRequest).request.member_id == "m-1"


def test_changed_subscription_revokes_what_is_no_longer_wanted_first() -> None:
    bench = Bench()
    bench.subscribe("t", "u")
    bench.join(1)
    bench.sync(*tps(0), *tps(0, topic="u"))
    bench.tell()
    bench.subscribe("t")
    assert bench.poll() == []
    assert bench.tell() == [(NoticeKind.REVOKED, tps(0, topic="u"))]
    subscription = decode_subscription(bench.take(m.JoinGroupRequest).request.protocols[0].metadata)
    assert (subscription.topics, subscription.owned) == (("t",), tuple(tps(0)))


def test_what_was_asked_for_while_a_join_was_lost_is_in_the_next_one() -> None:
    bench = Bench()
    bench.settle(0)
    bench.member.request_rejoin("first", bench.now)
    join = bench.take(m.JoinGroupRequest)
    bench.subscribe("t", "u")
    bench.member.on_failure(join, bench.now)
    bench.now += 100
    again = bench.take(m.JoinGroupRequest)
    assert decode_subscription(again.request.protocols[0].metadata).topics == ("t", "u")
    answer = m.JoinGroupResponse(
        generation_id=2, member_id="m-1", leader="o", protocol_name="cooperative-sticky"
    )
    bench.answer(again, answer)
    bench.sync(*tps(0))
    bench.tell()
    assert bench.state() is State.STABLE, "no rebalance more"


def test_what_is_asked_for_while_a_join_is_parked_takes_another() -> None:
    bench = Bench()
    bench.settle(0)
    bench.member.request_rejoin("first", bench.now)
    join = bench.take(m.JoinGroupRequest)
    bench.subscribe("t", "u")
    answer = m.JoinGroupResponse(
        generation_id=2, member_id="m-1", leader="o", protocol_name="cooperative-sticky"
    )
    bench.answer(join, answer)
    bench.sync(*tps(0))
    bench.tell()
    assert bench.take(m.JoinGroupRequest).request.reason == "the subscription has changed"


def test_leader_watches_the_partition_counts() -> None:
    bench = Bench()
    bench.subscribe()
    metadata = encode_subscription(MemberSubscription(("t",)))
    bench.join(1, leader="m-1", members=[m.JoinGroupResponseMember(member_id="m-1", metadata=metadata)])
    bench.member.plan({"t": 1}, bench.now)
    bench.sync(*tps(0))
    bench.tell()
    bench.member.metadata_changed({"t": 1, "other": 5}, bench.now)
    assert bench.state() is State.STABLE
    bench.member.metadata_changed({"t": 2}, bench.now)
    assert bench.take(m.JoinGroupRequest).request.reason == "partitions of t changed"


def test_where_nobody_leads_each_member_watches_its_own_topics() -> None:
    """In a group with members of the consumer protocol, also when the last of them has been replaced."""
    bench = Bench()
    bench.subscribe()
    bench.join(1, leader="")
    assert bench.member.wanted_topics == {"t"}
    bench.member.plan({"t": 1}, bench.now)
    assert bench.sync().request.assignments == []
    bench.tell()
    bench.member.metadata_changed({"t": 1, "other": 5}, bench.now)
    assert (bench.state(), bench.member.is_leader) == (State.STABLE, False)
    bench.member.metadata_changed({"t": 2}, bench.now)
    assert bench.take(m.JoinGroupRequest).request.reason == "partitions of t changed"


# -- fences ----------------------------------------------------------------------------------------


def test_fence_ends_the_member_at_once() -> None:
    bench = Bench()
    bench.settle(0)
    bench.poll()
    bench.beat(E.FENCED_INSTANCE_ID)
    assert isinstance(bench.member.error, FencedInstanceIdError)
    assert "i-0" in str(bench.member.error)
    assert bench.poll() == []


def test_fence_by_a_coordinator_that_moved_before_the_sync_is_forgiven_once() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(5, member_id="new")
    sync = bench.take(m.SyncGroupRequest)
    bench.answer(sync, m.SyncGroupResponse(error_code=E.NOT_COORDINATOR))
    bench.now += 100
    again = bench.take(m.SyncGroupRequest)
    bench.answer(again, m.SyncGroupResponse(error_code=E.FENCED_INSTANCE_ID))
    assert bench.state() is State.JOINING
    bench.now += 1_000
    join = bench.take(m.JoinGroupRequest)
    assert join.request.member_id == ""
    bench.answer(join, m.JoinGroupResponse(generation_id=5, member_id="third", leader="o",
                                           protocol_name="cooperative-sticky"))  # fmt: skip
    bench.member.on_failure(bench.take(m.SyncGroupRequest), bench.now)
    bench.now += 1_000
    last = bench.take(m.SyncGroupRequest)
    bench.answer(last, m.SyncGroupResponse(error_code=E.FENCED_INSTANCE_ID))
    assert isinstance(bench.member.error, FencedInstanceIdError)


def test_fence_without_a_move_of_the_coordinator_is_final_even_before_the_sync() -> None:
    bench = Bench()
    bench.subscribe()
    bench.join(5)
    send = bench.take(m.SyncGroupRequest)
    bench.answer(send, m.SyncGroupResponse(error_code=E.FENCED_INSTANCE_ID))
    assert isinstance(bench.member.error, FencedInstanceIdError)


def test_fence_after_a_sync_is_final_even_if_the_coordinator_moved() -> None:
    bench = Bench()
    bench.settle(0)
    bench.poll()
    bench.beat(E.NOT_COORDINATOR)
    bench.poll()
    bench.beat(E.FENCED_INSTANCE_ID)
    assert isinstance(bench.member.error, FencedInstanceIdError)


def test_a_fenced_commit_fences_the_member() -> None:
    bench = Bench()
    bench.settle(0)
    bench.member.on_commit_error(E.FENCED_INSTANCE_ID, (0, "older"), bench.now)
    assert bench.member.error is None
    bench.member.on_commit_error(E.FENCED_INSTANCE_ID, bench.member.identity, bench.now)
    assert isinstance(bench.member.error, FencedInstanceIdError)
    # In a group of the consumer protocol, a commit is not held to the instance id.
    bench.member.on_commit_error(E.UNKNOWN_MEMBER_ID, bench.member.identity, bench.now)
    assert bench.state() is State.DEAD


def test_a_static_member_that_a_commit_does_not_know_asks_whether_it_was_replaced() -> None:
    """In a group of the consumer protocol a commit is not held to the instance id, but a heartbeat is."""
    bench = Bench()
    bench.settle(0)
    bench.poll()
    bench.member.on_commit_error(E.UNKNOWN_MEMBER_ID, bench.member.identity, bench.now)
    assert bench.state() is State.STABLE
    bench.answer(bench.take(m.HeartbeatRequest), m.HeartbeatResponse(error_code=E.FENCED_INSTANCE_ID))
    assert isinstance(bench.member.error, FencedInstanceIdError)


def test_a_parked_join_that_has_to_be_sent_anew_has_the_id_that_it_was_given() -> None:
    """Without it, it would replace a member of the consumer protocol that has replaced it."""
    bench = Bench()
    bench.subscribe()
    join = bench.take(m.JoinGroupRequest)
    again = m.JoinGroupResponse(member_id="m-1", error_code=E.REBALANCE_IN_PROGRESS, protocol_name=None)
    bench.answer(join, again)
    bench.now = bench.member.timers.retry_at
    assert bench.take(m.JoinGroupRequest).request.member_id == "m-1"


# -- the application -------------------------------------------------------------------------------


def test_a_return_within_the_process_is_one_generation() -> None:
    bench = Bench(max_poll_interval_ms=10_000)
    bench.settle(0)
    bench.member.caller_leaves(bench.now)
    bench.poll(bench.now + 10_000)
    bench.member.caller_polls(bench.now)
    bench.tell()
    bench.keep_place()
    bench.join(1, member_id="m-2")
    bench.sync(*tps(0))
    bench.tell()
    snapshot = bench.member.snapshot()
    assert snapshot.returned
    assert [generation.generation for generation in snapshot.generations] == [1]


def test_leave() -> None:
    bench = Bench()
    assert bench.member.leave() == ""
    bench.settle(0)
    request = bench.member.leave_request("m-1", 5, "bye", for_good=True)
    assert (request.members[0].member_id, request.members[0].group_instance_id) == ("m-1", "i-0")
    assert bench.member.leave_request("m-1", 2, "bye", for_good=True).member_id == "m-1"
    assert bench.member.leave() == "m-1"
    assert bench.poll() == []
    assert bench.wake_at == NEVER_MS
