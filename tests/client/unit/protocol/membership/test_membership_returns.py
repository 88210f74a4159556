"""Returns of static members: the leader's look at the plan, older brokers, changed topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from slackwater.kafka.protocol.assignors import (
    Assignor,
    Plan,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from slackwater.kafka.protocol.consumer_protocol import (
    MemberSubscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench, tps

Group = Mapping[str, tuple[Sequence[str], Sequence[TopicPartition]]]
"""By instance id: topics, and what it holds."""


def described(group: Group, protocol: str = "cooperative-sticky") -> m.DescribeGroupsResponse:
    members = [
        m.DescribeGroupsResponseMember(
            member_id=f"old-{name}",
            group_instance_id=name,
            member_metadata=encode_subscription(MemberSubscription(tuple(topics))),
            member_assignment=encode_assignment(held),
        )
        for name, (topics, held) in group.items()
    ]
    return m.DescribeGroupsResponse(
        groups=[
            m.DescribeGroupsResponseGroup(
                group_id="g", group_state="Stable", protocol_data=protocol, members=members
            )
        ]
    )


def joined(group: Group, **mine: Any) -> list[m.JoinGroupResponseMember]:
    """The members as the Join's answer to the returning i-0 names them."""
    topics = {name: tuple(topics) for name, (topics, _) in group.items()} | mine
    return [
        m.JoinGroupResponseMember(
            member_id="m-1" if name == "i-0" else f"old-{name}",
            group_instance_id=name,
            metadata=encode_subscription(MemberSubscription(wants)),
        )
        for name, wants in topics.items()
    ]


def return_as_leader(
    bench: Bench, group: Group, protocol: str = "cooperative-sticky", **changed: Any
) -> None:
    bench.subscribe(*changed.get("i-0", group["i-0"][0]))
    bench.join(
        4, leader="m-1", skip_assignment=True, protocol_name=protocol,
        members=joined(group, **changed), probe=described(group, protocol),
    )  # fmt: skip
    assert bench.sync(*group["i-0"][1]).request.assignments == []
    bench.tell()
    assert (bench.state(), bench.member.returned) == (State.STABLE, True)


TWO: Group = {"i-0": (["t"], tps(0, 1)), "i-1": (["t"], tps(2, 3))}


def test_a_returning_leader_leaves_an_unchanged_group_alone() -> None:
    bench = Bench()
    return_as_leader(bench, TWO)
    bench.member.plan({"t": 4}, bench.now)
    assert (bench.state(), bench.poll()) == (State.STABLE, [])


@pytest.mark.parametrize(
    ("assignor", "name"),
    [(RangeAssignor(), "range"), (RoundRobinAssignor(), "roundrobin"), (StickyAssignor(), "sticky")],
)
def test_a_returning_leader_with_an_eager_assignor_leaves_the_group_alone(
    assignor: Assignor, name: str
) -> None:
    held = assignor.assign({"t": 4, "u": 3}, {"a": sub("i-0", "t", "u"), "b": sub("i-1", "t", "u")})
    group = {"i-0": (["t", "u"], held["a"]), "i-1": (["t", "u"], held["b"])}
    if name == "sticky":  # also what is not what would come of a plan from nothing
        held = RangeAssignor().assign({"t": 4, "u": 2}, {"a": sub("i-0", "t"), "b": sub("i-1", "u")})
        group = {"i-0": (["t", "u"], held["a"]), "i-1": (["t", "u"], [*held["b"], TopicPartition("u", 2)])}
    bench = Bench(assignors=[assignor])
    return_as_leader(bench, group, name)
    bench.member.plan({"t": 4, "u": 3}, bench.now)
    assert bench.state() is State.STABLE


def sub(instance: str, *topics: str) -> MemberSubscription:
    return MemberSubscription(topics, instance_id=instance)


@pytest.mark.parametrize(
    ("counts", "topic"), [({"t": 5}, "t"), ({"t": 3}, "t"), ({}, "t")], ids=["more", "fewer", "gone"]
)
def test_a_returning_leader_rejoins_when_partitions_changed(counts: dict[str, int], topic: str) -> None:
    bench = Bench()
    return_as_leader(bench, TWO)
    bench.member.plan(counts, bench.now)
    reason = bench.take(m.JoinGroupRequest).request.reason
    assert reason == f"partitions or subscriptions of {topic} changed while the leader was away"


def test_a_member_whose_subscription_grew_gets_its_share() -> None:
    """What is held covers every topic, so that only a plan shows that i-1 now reads u, too."""
    group = {"i-0": (["t", "u"], [*tps(0), *tps(0, 1, 2, topic="u")]), "i-1": (["t"], tps(1))}
    bench = Bench()
    return_as_leader(bench, group, **{"i-1": ("t", "u")})
    bench.member.plan({"t": 2, "u": 3}, bench.now)
    assert "subscriptions of u changed" in bench.take(m.JoinGroupRequest).request.reason


def test_a_member_that_reads_a_topic_no_more_does_not_keep_it() -> None:
    group = {"i-0": (["t", "u"], tps(0, 1)), "i-1": (["t", "u"], tps(0, 1, topic="u"))}
    bench = Bench()
    return_as_leader(bench, group, **{"i-1": ("t",)})
    bench.member.plan({"t": 2, "u": 2}, bench.now)
    assert bench.take(m.JoinGroupRequest).request.reason


def test_a_returning_leader_leaves_a_group_alone_whose_description_is_too_old() -> None:
    """A coordinator that has just loaded the group describes the generation before i-1 had joined."""
    bench = Bench()
    bench.subscribe("t")
    alone: Group = {"i-0": (["t"], tps(0, 1, 2, 3))}
    bench.join(4, leader="m-1", skip_assignment=True, members=joined(TWO), probe=described(alone))
    bench.sync(*tps(0, 1))
    bench.tell()
    bench.member.plan({"t": 4}, bench.now)
    assert (bench.state(), bench.poll()) == (State.STABLE, [])


def test_a_returning_leader_leaves_a_group_alone_whose_members_have_joined_since() -> None:
    """The description has the same members in an older generation, in which they held other partitions."""
    bench = Bench()
    bench.subscribe("t")
    before: Group = {"i-0": (["t"], tps(0, 1, 2)), "i-1": (["t"], [])}
    members = joined(TWO)
    again = MemberSubscription(("t",), tuple(tps(2, 3)), 3)
    members[1].metadata = encode_subscription(again)
    bench.join(4, leader="m-1", skip_assignment=True, members=members, probe=described(before))
    bench.sync(*tps(0, 1))
    bench.tell()
    bench.member.plan({"t": 4}, bench.now)
    assert (bench.state(), bench.poll()) == (State.STABLE, [])


class Whimsical(Assignor):
    """A user's assignor, which never plans the same twice."""

    name = "whimsical"
    calls = 0

    def assign(self, partitions: Mapping[str, int], members: Any) -> Plan:
        self.calls += 1
        raise AssertionError("not asked")


def test_an_assignor_of_the_user_is_not_asked_twice_for_the_same() -> None:
    bench = Bench(assignors=[Whimsical()])
    return_as_leader(bench, TWO, "whimsical")
    bench.member.plan({"t": 4}, bench.now)
    assert (bench.state(), bench.member.error) == (State.STABLE, None)
    bench = Bench(assignors=[Whimsical()])
    return_as_leader(bench, TWO, "whimsical")
    bench.member.plan({"t": 5}, bench.now)
    bench.tell()
    assert bench.take(m.JoinGroupRequest).request.reason


def test_a_plan_that_comes_while_a_join_is_under_way_asks_for_no_other() -> None:
    bench = Bench()
    return_as_leader(bench, TWO)
    bench.member.request_rejoin("test", bench.now)
    bench.take(m.JoinGroupRequest)
    bench.member.plan({"t": 5}, bench.now)
    bench.member.metadata_changed({"t": 6}, bench.now)
    assert bench.member._machine.rejoin_reason is None


# -- a leader of a broker below JoinGroup v9 --------------------------------------------------------


def test_a_leader_under_its_old_member_id_watches_the_topics() -> None:
    bench = Bench()
    bench.subscribe("t")
    bench.join(4, leader="old-i-0", members=[], probe=described(TWO))
    assert bench.member.is_leader
    assert bench.sync(*tps(0, 1)).request.assignments == []
    bench.tell()
    assert bench.member.returned
    assert bench.member.wanted_topics == {"t"}
    bench.member.plan({"t": 4}, bench.now)
    assert bench.state() is State.STABLE
    bench.member.metadata_changed({"t": 5}, bench.now)
    assert bench.take(m.JoinGroupRequest).request.reason == "partitions of t changed"


def test_a_follower_is_no_leader_because_of_the_old_ids() -> None:
    bench = Bench()
    bench.subscribe("t")
    bench.join(4, leader="old-i-1", members=[], probe=described(TWO))
    assert not bench.member.is_leader
    assert bench.member.wanted_topics is None


# -- topics that changed while it was away (KAFKA-12759) ----------------------------------------------


@pytest.mark.parametrize("assignors", [(), (RangeAssignor(),)], ids=["cooperative", "eager"])
def test_changed_topics_ask_for_a_rebalance_with_other_bytes(assignors: Any) -> None:
    bench = Bench(assignors=assignors)
    name = "range" if assignors else "cooperative-sticky"
    bench.subscribe("t", "u")
    first = bench.join(4, probe=described(TWO, name), protocol_name=name).request.protocols[0].metadata
    bench.sync(*tps(0, 1))
    bench.tell()
    again = bench.take(m.JoinGroupRequest).request
    assert again.member_id == "m-1", "an empty one would be one more return"
    assert again.protocols[0].metadata != first, "a known member with the same bytes brings no rebalance"
    subscription = decode_subscription(again.protocols[0].metadata)
    assert (subscription.topics, subscription.generation) == (("t", "u"), 4)
    assert again.reason == "subscribed to t, u since the return, before to t"


def test_bytes_differ_also_where_nothing_is_held() -> None:
    bench = Bench(assignors=[RangeAssignor()])
    group = {"i-0": (["t"], []), "i-1": (["t"], tps(0))}
    bench.subscribe("u")
    first = bench.join(4, probe=described(group, "range"), protocol_name="range").request
    bench.sync()
    bench.tell()
    assert bench.take(m.JoinGroupRequest).request.protocols != first.protocols


def test_unchanged_topics_ask_for_nothing() -> None:
    bench = Bench()
    bench.subscribe("t")
    bench.join(4, probe=described(TWO))
    bench.sync(*tps(0, 1))
    bench.tell()
    assert (bench.state(), bench.member.returned, bench.poll()) == (State.STABLE, True, [])


def test_a_join_that_was_a_rebalance_asks_for_nothing_more() -> None:
    """The group was Stable when asked, but the assignment is another: the leader has seen the topics."""
    bench = Bench()
    bench.subscribe("t", "u")
    bench.join(5, probe=described(TWO))
    bench.sync(*tps(0), *tps(0, topic="u"))
    bench.tell()
    assert (bench.state(), bench.member.returned) == (State.STABLE, False)


def test_topics_that_changed_within_the_process() -> None:
    """Too late with poll(), then other topics: the member itself remembers what it had told."""
    bench = Bench(max_poll_interval_ms=10_000)
    bench.settle(0)
    bench.member.caller_leaves(bench.now)
    bench.poll(bench.now + 10_000)
    bench.member.subscribe(["t", "u"], bench.now)
    bench.member.caller_polls(bench.now)
    bench.tell()
    bench.keep_place()
    bench.join(1, member_id="m-2")
    bench.sync(*tps(0))
    bench.tell()
    assert bench.member.returned
    again = bench.take(m.JoinGroupRequest).request
    assert (again.member_id, again.reason) == ("m-2", "subscribed to t, u since the return, before to t")


def test_every_join_without_an_id_asks_what_the_group_knows() -> None:
    bench = Bench()
    bench.subscribe()
    first = bench.take(m.JoinGroupRequest)
    assert first.ahead is not None
    bench.member.on_ahead(first, m.DescribeGroupsResponse())
    bench.answer(first, m.JoinGroupResponse(error_code=E.COORDINATOR_LOAD_IN_PROGRESS))
    bench.now += 100
    again = bench.take(m.JoinGroupRequest)
    assert again.ahead is not None
    bench.member.on_ahead(again, described(TWO))
    bench.answer(again, m.JoinGroupResponse(generation_id=4, member_id="m-1", leader="old-i-1",
                                            protocol_name="cooperative-sticky"))  # fmt: skip
    bench.sync(*tps(0, 1))
    assert bench.member.returned


# -- one rebalance for the topics of all (subscription_change_max_delay_ms) -----------------------------


def return_with_more_topics(group: Group, delay_ms: int = 60_000, **joined_as: Any) -> Bench:
    """i-0 returns, subscribed to t and u."""
    bench = Bench(subscription_change_max_delay_ms=delay_ms)
    bench.subscribe("t", "u")
    bench.join(4, probe=described(group), **joined_as)
    bench.sync(*tps(0, 1))
    bench.tell()
    assert bench.member.returned
    return bench


def ask(bench: Bench) -> Any:
    """The next question about the others' topics; heartbeats that come before are answered."""
    while True:
        (send,) = bench.poll() or bench.poll(bench.wake_at)
        if isinstance(send.request, m.DescribeGroupsRequest):
            return send
        assert isinstance(send.request, m.HeartbeatRequest)
        bench.answer(send, m.HeartbeatResponse())


CHANGED: Group = {"i-0": (["t", "u"], tps(0, 1)), "i-1": (["t", "u"], tps(2, 3))}


def test_a_member_that_others_follow_leaves_the_rebalance_to_the_last_of_them() -> None:
    bench = return_with_more_topics(TWO)
    assert (bench.state(), bench.poll()) == (State.STABLE, [])
    bench.answer(ask(bench), described(TWO))
    assert bench.state() is State.STABLE
    bench.answer(ask(bench), described(CHANGED))
    again = bench.take(m.JoinGroupRequest).request
    assert again.reason == "subscribed to t, u since the return, before to t"


def test_the_last_of_them_asks_at_once() -> None:
    bench = return_with_more_topics({"i-0": (["t"], tps(0, 1)), "i-1": (["t", "u"], tps(2, 3))})
    assert bench.take(m.JoinGroupRequest).request.reason


def test_the_delay_has_an_end() -> None:
    bench = return_with_more_topics(TWO, delay_ms=5_000)
    ends_at = bench.now + 5_000
    bench.answer(ask(bench), described(TWO))
    assert bench.now < ends_at
    (again,) = bench.poll(ends_at)
    assert isinstance(again.request, m.JoinGroupRequest)


def test_a_rebalance_in_between_is_the_one_that_was_to_come() -> None:
    bench = return_with_more_topics(TWO)
    bench.poll()
    bench.beat(E.REBALANCE_IN_PROGRESS)
    bench.join(5, member_id="m-1")
    bench.sync(*tps(0, 1), *tps(0, topic="u"))
    bench.tell()
    assert not bench.member.returned
    for _ in range(30):
        bench.poll()
        bench.beat()
    assert all(not isinstance(sent.request, m.DescribeGroupsRequest) for sent in bench.sent)


def test_partitions_of_a_topic_that_goes_are_left_unread_until_then() -> None:
    bench = Bench(subscription_change_max_delay_ms=60_000)
    bench.subscribe("t")
    both = (["t", "u"], [*tps(0), *tps(0, topic="u")])
    bench.join(4, probe=described({"i-0": both, "i-1": (["t", "u"], tps(1))}))
    bench.sync(*both[1])
    bench.tell()
    assert bench.owned == set(tps(0))
    assert (bench.state(), bench.poll()) == (State.STABLE, [])


def test_a_leader_that_waits_for_the_others_finds_no_fault_with_what_they_hold() -> None:
    bench = return_with_more_topics(
        TWO, leader="m-1", skip_assignment=True, members=joined(TWO, **{"i-0": ("t", "u")})
    )
    bench.member.plan({"t": 4, "u": 2}, bench.now)
    assert (bench.state(), bench.poll()) == (State.STABLE, [])


# -- assignors that fail -----------------------------------------------------------------------------


def test_an_assignor_that_fails_ends_the_member_with_its_reason() -> None:
    bench = Bench(assignors=[Whimsical()])
    bench.subscribe("t")
    bench.join(1, leader="m-1", protocol_name="whimsical", members=joined({"i-0": (["t"], [])}))
    bench.member.plan({"t": 1}, bench.now)
    assert bench.state() is State.DEAD
    assert "not asked" in str(bench.member.error)
    assert isinstance(bench.member.error.__cause__, AssertionError)  # type: ignore[union-attr]
