"""Assignors: fixed examples of Java's, and properties that hold for every group."""

from __future__ import annotations

import random
import struct

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from hypothesis import given, settings, strategies as st
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData

from slackwater.kafka.protocol.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    GroupSubscription,
    MemberAssignment,
    Plan,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
    common_protocol,
    generation_of,
    ordered,
)
from slackwater.kafka.protocol.assignors.assignment_state import Board
from slackwater.kafka.protocol.assignors.balanced_plan import share_out
from slackwater.kafka.protocol.assignors.local_search import improve
from slackwater.kafka.protocol.assignors.ownership import decode_sticky, encode_sticky
from slackwater.kafka.protocol.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition
from slackwater.kafka.wire.errors import DecodeError

TP = TopicPartition


def member(*topics: str, owned: list[TopicPartition] | None = None, **more: object) -> MemberSubscription:
    return MemberSubscription(topics, tuple(owned or ()), **more)  # type: ignore[arg-type]


def numbers(plan: Plan) -> dict[str, list[str]]:
    return {name: [f"{tp.topic}{tp.partition}" for tp in partitions] for name, partitions in plan.items()}


# -- examples of Java's documentation ----------------------------------------------------------------


def test_range_as_java_documents_it() -> None:
    plan = RangeAssignor().assign({"t": 3, "u": 3}, {"c0": member("t", "u"), "c1": member("t", "u")})
    assert numbers(plan) == {"c0": ["t0", "t1", "u0", "u1"], "c1": ["t2", "u2"]}


def test_range_orders_static_members_by_instance_id() -> None:
    members = {"z": member("t", instance_id="a"), "a": member("t", instance_id="b"), "b": member("t")}
    plan = RangeAssignor().assign({"t": 3}, members)
    assert numbers(plan) == {"z": ["t0"], "a": ["t1"], "b": ["t2"]}


def test_round_robin_as_java_documents_it() -> None:
    members = {"c0": member("t0"), "c1": member("t0", "t1"), "c2": member("t0", "t1", "t2")}
    plan = RoundRobinAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, members)
    assert plan == {
        "c0": [TP("t0", 0)],
        "c1": [TP("t1", 0)],
        "c2": [TP("t1", 1), TP("t2", 0), TP("t2", 1), TP("t2", 2)],
    }


def test_cooperative_takes_a_partition_away_before_it_gives_it() -> None:
    assignor = CooperativeStickyAssignor()
    first = {"a": member("t", owned=[TP("t", n) for n in range(4)], generation=1), "b": member("t")}
    plan = assignor.assign({"t": 4}, first)
    assert numbers(plan) == {"a": ["t0", "t1"], "b": []}
    second = {"a": member("t", owned=plan["a"], generation=2), "b": member("t", generation=2)}
    assert numbers(assignor.assign({"t": 4}, second)) == {"a": ["t0", "t1"], "b": ["t2", "t3"]}


def test_newer_claim_wins_and_equal_claims_are_given_to_nobody() -> None:
    assignor = CooperativeStickyAssignor()
    claims = {
        "old": member("t", owned=[TP("t", 0)], generation=1),
        "new": member("t", owned=[TP("t", 0)], generation=2),
    }
    assert TP("t", 0) in assignor.assign({"t": 2}, claims)["new"]
    equal = {name: member("t", owned=[TP("t", 0)], generation=2) for name in ("a", "b")}
    plan = assignor.assign({"t": 2}, equal)
    assert [tp for partitions in plan.values() for tp in partitions] == [TP("t", 1)]


def test_topics_that_do_not_exist_are_left_out() -> None:
    for assignor in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor()):
        assert assignor.assign({}, {"a": member("nope")}) == {"a": []}
        assert assignor.assign({"t": 1}, {}) == {}


def test_the_common_protocol_is_eager_if_one_assignor_is() -> None:
    assert common_protocol([CooperativeStickyAssignor()]) is RebalanceProtocol.COOPERATIVE
    assert common_protocol([CooperativeStickyAssignor(), RangeAssignor()]) is RebalanceProtocol.EAGER


# -- properties --------------------------------------------------------------------------------------


@st.composite
def groups(draw: st.DrawFn, *, same_topics: bool) -> tuple[dict[str, int], dict[str, MemberSubscription]]:
    """A group in the middle of anything: claims that are stale, made twice, or of what is gone."""
    counts = {f"t{n}": draw(st.integers(0, 9)) for n in range(draw(st.integers(1, 4)))}
    everything = [TP(topic, n) for topic, count in counts.items() for n in range(count + 1)]
    topics = st.lists(st.sampled_from(sorted(counts)), min_size=1, unique=True)
    shared = draw(topics)
    members = {}
    for n in range(draw(st.integers(1, 6))):
        mine = shared if same_topics else draw(topics)
        owned = draw(st.lists(st.sampled_from(everything), unique=True)) if everything else []
        members[f"m{n}"] = MemberSubscription(
            tuple(mine), tuple(owned), draw(st.integers(-1, 3)),
            instance_id=draw(st.one_of(st.none(), st.just(f"i{n}"))),
        )  # fmt: skip
    return counts, members


def rounds(counts: dict[str, int], members: dict[str, MemberSubscription]) -> list[Plan]:
    """What a group does: it takes each plan over and joins again until nothing moves."""
    assignor, plans = CooperativeStickyAssignor(), []
    for generation in range(10, 20):
        plans.append(assignor.assign(counts, members))
        members = {
            name: MemberSubscription(
                subscription.topics, tuple(plans[-1][name]), generation, instance_id=subscription.instance_id
            )
            for name, subscription in members.items()
        }
        if len(plans) > 1 and plans[-1] == plans[-2]:
            return plans
    raise AssertionError("the group does not come to rest")


@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor()])
@settings(max_examples=40)
@given(data=st.data(), same=st.booleans())
def test_plans_are_deterministic_and_assign_no_partition_twice(
    assignor: Assignor, data: st.DataObject, same: bool
) -> None:
    counts, members = data.draw(groups(same_topics=same))
    plan = assignor.assign(counts, members)
    given_out = [tp for partitions in plan.values() for tp in partitions]
    assert set(plan) == set(members)
    assert len(given_out) == len(set(given_out))
    for name, partitions in plan.items():
        assert {tp.topic for tp in partitions} <= set(members[name].topics)
        assert all(tp.partition < counts[tp.topic] for tp in partitions)
    shuffled = dict(random.Random(1).sample(sorted(members.items()), len(members)))
    assert assignor.assign(dict(reversed(counts.items())), shuffled) == plan


@given(data=st.data(), same=st.booleans())
def test_cooperative_never_gives_what_another_still_owns(data: st.DataObject, same: bool) -> None:
    counts, members = data.draw(groups(same_topics=same))
    plan = CooperativeStickyAssignor().assign(counts, members)
    for name, partitions in plan.items():
        for tp in partitions:
            newest = max(
                (member.generation for member in members.values() if tp in member.owned), default=None
            )
            holders = [
                other
                for other, subscription in members.items()
                if tp in subscription.owned
                and subscription.generation == newest
                and tp.partition < counts[tp.topic]
            ]
            assert holders in ([], [name])


@given(data=st.data(), same=st.booleans())
def test_cooperative_comes_to_rest_complete_and_balanced(data: st.DataObject, same: bool) -> None:
    counts, members = data.draw(groups(same_topics=same))
    plans = rounds(counts, members)
    final = plans[-1]
    assert len(plans) <= 3, "one rebalance, one follow-up, and then nothing changes"
    wanted = {topic for member in members.values() for topic in member.topics}
    everything = {TP(topic, n) for topic in wanted for n in range(counts[topic])}
    assert {tp for partitions in final.values() for tp in partitions} == everything
    sizes = {name: len(partitions) for name, partitions in final.items()}
    for name, partitions in final.items():
        for tp in partitions:
            able = [other for other, subscription in members.items() if tp.topic in subscription.topics]
            assert all(sizes[name] - sizes[other] <= 1 for other in able)


@given(count=st.integers(1, 60), before=st.integers(1, 8), after=st.integers(1, 8))
def test_cooperative_moves_as_little_as_it_can(count: int, before: int, after: int) -> None:
    counts = {"t": count}
    start = rounds(counts, {f"m{n}": member("t", instance_id=f"i{n}") for n in range(before)})[-1]
    members = {
        f"m{n}": member("t", owned=start.get(f"m{n}"), generation=1, instance_id=f"i{n}")
        for n in range(after)
    }
    final = rounds(counts, members)[-1]
    kept = sum(len(set(start[name]) & set(final[name])) for name in start.keys() & final.keys())
    share, ceilings = divmod(count, after)
    # Nobody can keep more than the ceiling, and only so many members may have it.
    held = sorted((len(start[name]) for name in start.keys() & final.keys()), reverse=True)
    best = sum(min(size, share + 1 if n < ceilings else share) for n, size in enumerate(held))
    assert kept == best


@settings(max_examples=25)
@given(data=st.data())
def test_a_member_that_goes_leaves_the_others_what_they_have(data: st.DataObject) -> None:
    counts, members = data.draw(groups(same_topics=True))
    start = rounds(counts, members)[-1]
    gone = data.draw(st.sampled_from(sorted(members)))
    left = {
        name: MemberSubscription(
            subscription.topics, tuple(start[name]), 30, instance_id=subscription.instance_id
        )
        for name, subscription in members.items()
        if name != gone
    }
    if left:
        final = CooperativeStickyAssignor().assign(counts, left)
        assert all(set(start[name]) <= set(final[name]) for name in left)


@pytest.mark.parametrize("same", [True, False])
def test_large_groups_are_balanced_too(same: bool) -> None:
    rng = random.Random(7)
    topics = {f"t{n}": 100 for n in range(30)}
    members = {f"m{n}": member(*(topics if same else rng.sample(sorted(topics), 20))) for n in range(70)}
    plan = CooperativeStickyAssignor().assign(topics, members)
    assert {len(partitions) for partitions in plan.values()} == {42, 43}


# -- what Java's does not do -------------------------------------------------------------------------


def test_balance_that_takes_two_moves_at_once() -> None:
    """No single partition can go from c to a; one from c to b and one from b to a can."""
    members = {"a": member("t"), "b": member("t", "u"), "c": member("u")}
    claims = {
        "b": [TP("t", 0), TP("t", 1)],
        "c": [TP("u", 0), TP("u", 1), TP("u", 2)],
        "a": [],
    }
    for name, owned in claims.items():
        members[name] = member(
            *members[name].topics, owned=owned, generation=1, user_data=encode_sticky(owned, 1)
        )
    plan = StickyAssignor().assign({"t": 2, "u": 3}, members)
    assert sorted(len(partitions) for partitions in plan.values()) == [1, 2, 2]
    chain = {
        "a": member("t"), "b": member("t", "u"), "c": member("u", "v"), "d": member("v"),
    }  # fmt: skip
    held = {"b": [TP("t", 0)], "c": [TP("u", 0)], "d": [TP("v", 0), TP("v", 1)]}
    for name, owned in held.items():
        chain[name] = member(
            *chain[name].topics, owned=owned, generation=1, user_data=encode_sticky(owned, 1)
        )
    plan = StickyAssignor().assign({"t": 1, "u": 1, "v": 2}, chain)
    assert {name: len(partitions) for name, partitions in plan.items()} == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_the_search_ends_within_its_steps() -> None:
    rng = random.Random(3)
    topics = {f"t{n}": 20 for n in range(20)}
    members = {f"m{n}": member(*rng.sample(sorted(topics), 3)) for n in range(30)}
    order = ordered(members)
    board = Board([None] * len(order))
    for topic, count in topics.items():
        readers = tuple(n for n, name in enumerate(order) if topic in members[name].topics)
        for number in range(count if readers else 0):
            board.add(TP(topic, number), readers, frozenset(), readers[-1])
    assert not improve(board, max_steps=2_000)
    given = [tp for partitions in board.plan() for tp in partitions]
    assert len(given) == len(set(given)) == sum(board.load), "what was moved so far is whole"
    assert improve(board)
    best = sum(load * load for load in board.load)
    assert improve(board)
    assert sum(load * load for load in board.load) == best


# -- sticky and racks --------------------------------------------------------------------------------


def test_sticky_keeps_by_its_user_data_alone() -> None:
    mine, theirs = StickyAssignor(), StickyAssignor()
    for assignor, owned in ((mine, [TP("t", 1), TP("t", 3)]), (theirs, [TP("t", 0), TP("t", 2)])):
        assignor.on_assignment(MemberAssignment(tuple(owned)), ConsumerGroupMetadata("g", 4, "m", None))
    members = {
        "a": member("t", user_data=mine.user_data(["t"], -1)),
        "b": member("t", user_data=theirs.user_data(["t"], -1)),
        # What an eager member says it owns does not count.
        "c": member("t", owned=[TP("t", 0), TP("t", 3)], generation=9),
    }
    plan = StickyAssignor().assign({"t": 4}, members)
    assert numbers(plan) == {"a": ["t1", "t3"], "b": ["t0"], "c": ["t2"]}


def test_sticky_believes_neither_of_two_equal_claims() -> None:
    data = encode_sticky([TP("t", 0)], 3)
    plan = StickyAssignor().assign({"t": 1}, {name: member("t", user_data=data) for name in ("b", "a")})
    assert [tp for partitions in plan.values() for tp in partitions] == [TP("t", 0)]


def test_members_of_topics_that_do_not_exist_do_not_count() -> None:
    plan = CooperativeStickyAssignor().assign({"t": 4}, {"a": member("gone"), "b": member("t", "gone")})
    assert numbers(plan) == {"a": [], "b": ["t0", "t1", "t2", "t3"]}


@pytest.mark.parametrize("assignor", [RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor()])
def test_racks_are_matched(assignor: Assignor) -> None:
    racks = {"t": [frozenset(rack) for rack in ("c", "b", "a", "c", "b", "a")]}
    members = {name: member("t", rack=name) for name in ("a", "b", "c")}
    plan = assignor.assign_group(GroupSubscription({"t": 6}, members, racks)).partitions
    assert numbers(plan) == {"a": ["t2", "t5"], "b": ["t1", "t4"], "c": ["t0", "t3"]}
    without = assignor.assign({"t": 6}, members)
    assert numbers(without) != numbers(plan)


def test_balance_counts_more_than_racks_and_racks_more_than_stickiness() -> None:
    racks = {"t": [frozenset("a")] * 3 + [frozenset("b")]}
    members = {
        "a": member("t", rack="a", owned=[TP("t", 3)], generation=1),
        "b": member("t", rack="b", owned=[TP("t", 0), TP("t", 1)], generation=1),
    }
    target = share_out(
        GroupSubscription({"t": 4}, members, racks),
        {tp: name for name, subscription in members.items() for tp in subscription.owned},
    )
    assert {len(partitions) for partitions in target.values()} == {2}
    assert TP("t", 3) in target["b"]
    assert len({TP("t", 0), TP("t", 1)} & set(target["b"])) == 1, "it keeps one of its two"


def test_racks_are_not_minded_where_all_have_everything() -> None:
    racks = {"t": [frozenset("ab")] * 4}
    members = {
        "a": member("t", rack="a", owned=[TP("t", 0), TP("t", 1)], generation=1),
        "b": member("t", rack="c", owned=[TP("t", 2), TP("t", 3)], generation=1),
    }
    plan = CooperativeStickyAssignor().assign_group(GroupSubscription({"t": 4}, members, racks)).partitions
    assert numbers(plan) == {"a": ["t0", "t1"], "b": ["t2", "t3"]}


# -- bytes -------------------------------------------------------------------------------------------


def test_subscription_bytes_of_all_versions() -> None:
    full = MemberSubscription(("a", "b"), (TP("a", 0), TP("a", 2)), 5, b"\0\0\0\5", "rack")
    for version in range(4):
        decoded = decode_subscription(encode_subscription(full, version), "i")
        assert decoded.topics == ("a", "b")
        assert decoded.user_data == b"\0\0\0\5"
        assert decoded.owned == (full.owned if version >= 1 else ())
        assert decoded.generation == (5 if version >= 2 else -1)
        assert decoded.rack == ("rack" if version >= 3 else None)
        assert generation_of(decoded) == 5


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    data = encode_subscription(MemberSubscription(("a",), (), 1), 3)
    assert decode_subscription(b"\0\x09" + data[2:] + b"more").topics == ("a",)
    assert decode_assignment(b"\0\x09" + encode_assignment([TP("a", 1)])[2:] + b"more") == (TP("a", 1),)
    assert decode_assignment(b"") == ()
    with pytest.raises(DecodeError):
        decode_subscription(b"\xff\xff")


def test_generation_from_user_data_of_java_and_librdkafka() -> None:
    assert CooperativeStickyAssignor().user_data(["t"], 7) == b"\0\0\0\7"
    assert generation_of(member("t", user_data=b"\0\0\0\7")) == 7
    sticky = struct.pack(">ih1siii", 1, 1, b"t", 1, 0, 9)
    assert generation_of(member("t", user_data=sticky)) == 9
    for junk in (b"", b"\1", b"\xff" * 9, b"\0" * 5):
        assert generation_of(member("t", user_data=junk)) == -1


def test_sticky_user_data_of_other_clients() -> None:
    owned, topic_partitions = [TP("t", 0), TP("t", 2)], [("t", [0, 2])]
    data = encode_sticky(owned, 7)
    assert StickyAssignorUserDataV1(topic_partitions, 7).encode() == data, "aiokafka"
    # kafka-python puts its version in front, so it can read nobody else's.
    assert decode_sticky(StickyAssignorUserData(topic_partitions, 7).encode()) == (tuple(owned), 7)
    assert decode_sticky(StickyAssignorUserData([], 7).encode()) == ((), 7)


def test_sticky_user_data_of_both_versions() -> None:
    owned = [TP("b", 2), TP("a", 1), TP("b", 0)]
    data = encode_sticky(owned, 7)
    assert decode_sticky(data) == ((TP("a", 1), TP("b", 0), TP("b", 2)), 7)
    assert decode_sticky(data[:-4]) == ((TP("a", 1), TP("b", 0), TP("b", 2)), -1)
    for junk in (None, b"", b"\0", data[:9], b"\x7f\xff\xff\xff" + data, data[:4] + b"\0\1\xff" + data[8:]):
        assert decode_sticky(junk) == ((), -1)


@given(data=st.binary(max_size=64))
def test_bad_user_data_does_not_stop_a_plan(data: bytes) -> None:
    members = {"a": member("t", user_data=data), "b": member("t")}
    for assignor in (StickyAssignor(), CooperativeStickyAssignor()):
        assert sum(map(len, assignor.assign({"t": 3}, members).values())) == 3
