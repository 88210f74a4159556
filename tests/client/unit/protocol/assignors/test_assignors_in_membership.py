"""What assignors need, from the metadata to the leader's plan: racks, bytes, when to rejoin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.kafka.protocol.assignors import (
    Assignor,
    GroupAssignment,
    GroupSubscription,
    MemberAssignment,
    Members,
    Plan,
    RangeAssignor,
)
from slackwater.kafka.protocol.consumer_protocol import (
    MemberSubscription,
    encode_assignment,
    encode_subscription,
    read_assignment,
)
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.states import MembershipConfig, State
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from tests.support.virtual_time import steady

TP = TopicPartition


def metadata(replicas: Mapping[int, list[int]], racks: Mapping[int, str | None]) -> m.MetadataResponse:
    return m.MetadataResponse(
        brokers=[
            m.MetadataResponseBroker(node_id=node, host="h", port=9092, rack=rack)
            for node, rack in racks.items()
        ],
        topics=[
            m.MetadataResponseTopic(
                name="t",
                partitions=[
                    m.MetadataResponsePartition(partition_index=n, leader_id=nodes[0], replica_nodes=nodes)
                    for n, nodes in replicas.items()
                ],
            )
        ],
    )


def test_racks_of_replicas() -> None:
    known = ClusterMetadata()
    assert known.replica_racks(["t"]) == {}
    known.update(metadata({1: [2, 3], 0: [1]}, {1: "a", 2: "b", 3: None}), 0)
    assert known.replica_racks(["t", "u"]) == {"t": [frozenset("a"), frozenset("b")]}


def test_a_broker_that_is_away_keeps_its_rack() -> None:
    known = ClusterMetadata()
    known.update(metadata({0: [1, 2]}, {1: "a", 2: "b"}), 0)
    known.update(metadata({0: [1, 2]}, {1: "a"}), 1)
    assert known.replica_racks(["t"]) == {"t": [frozenset("ab")]}
    known.update(metadata({0: [1, 2]}, {1: "a", 2: "c"}), 2)
    assert known.replica_racks(["t"]) == {"t": [frozenset("ac")]}


class Leader:
    """A member that leads a group of two."""

    def __init__(self, assignor: Assignor, rack: str | None = "a") -> None:
        config = MembershipConfig("g", rack=rack)
        self.member = Membership(config, [assignor], lambda: (), steady().delay_ms)
        self.member.caller_polls(0)
        self.member.subscribe(["t"], 0)
        self.other = encode_subscription(MemberSubscription(("t",), rack="b", user_data=b"hello"))

    def join(self) -> None:
        (send,) = self.member.poll(10)[0]
        mine = send.request.protocols[0]
        members = [
            m.JoinGroupResponseMember(member_id="m-1", metadata=mine.metadata),
            m.JoinGroupResponseMember(member_id="m-2", metadata=self.other),
        ]
        answer = m.JoinGroupResponse(
            generation_id=1, member_id="m-1", leader="m-1", protocol_name=mine.name, members=members
        )
        self.member.on_response(send, answer, 10)

    def sync(self) -> dict[str, MemberAssignment]:
        """Sends the plan, and gives what is in it."""
        (send,) = self.member.poll(20)[0]
        plan = {
            assignment.member_id: read_assignment(assignment.assignment)
            for assignment in send.request.assignments
        }
        mine = encode_assignment(plan["m-1"].partitions, plan["m-1"].user_data)
        self.member.on_response(send, m.SyncGroupResponse(assignment=mine), 30)
        while self.member.notices:
            self.member.notice_done(30)
        return plan


RACKS = {"t": [frozenset("b"), frozenset("a")]}


def test_racks_reach_the_assignor() -> None:
    leader = Leader(RangeAssignor())
    leader.join()
    leader.member.plan({"t": 2}, 15, RACKS)
    assert {name: assignment.partitions for name, assignment in leader.sync().items()} == {
        "m-1": (TP("t", 1),),
        "m-2": (TP("t", 0),),
    }


def test_a_leader_with_a_rack_watches_the_racks() -> None:
    moved = {"t": [frozenset("b"), frozenset("c")]}
    for rack, state in (("a", State.JOINING), (None, State.STABLE)):
        leader = Leader(RangeAssignor(), rack)
        leader.join()
        leader.member.plan({"t": 2}, 15, RACKS)
        leader.sync()
        leader.member.metadata_changed({"t": 2}, 40, {"t": list(RACKS["t"])})
        assert leader.member.state is State.STABLE
        leader.member.metadata_changed({"t": 2}, 50, moved)
        assert leader.member.state is state


class Chatty(Assignor):
    """Notes what it is given, and sends bytes to one member."""

    name = "chatty"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def user_data(self, topics: Any, generation: int) -> bytes:
        return f"{sorted(topics)} {generation}".encode()

    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        return {"m-1": [TP("t", 0)], "m-2": []}

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        self.calls.append(group)
        plan = self.assign(group.partitions, group.members)
        return GroupAssignment(plan, {"m-1": b"for you"}, frozenset([TP("t", 1)]), rejoin_at_ms=500)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        self.calls.append((assignment, metadata))


def test_user_data_is_exchanged_and_the_leader_rejoins_in_time() -> None:
    assignor = Chatty()
    leader = Leader(assignor)
    leader.join()
    leader.member.plan({"t": 2}, 15, RACKS)
    plan = leader.sync()
    group, notified = assignor.calls
    assert (group.partitions, group.racks, group.generation, group.now_ms) == ({"t": 2}, RACKS, 1, 15)
    assert {name: member.user_data for name, member in group.members.items()} == {
        "m-1": b"['t'] -1",
        "m-2": b"hello",
    }
    assert (plan["m-1"].user_data, plan["m-2"].user_data) == (b"for you", None)
    assignment, metadata_given = notified
    assert assignment == MemberAssignment((TP("t", 0),), b"for you")
    assert metadata_given[:4] == ("g", 1, "m-1", None)
    leader.member.poll(499)
    assert leader.member.state is State.STABLE
    leader.member.poll(500)
    assert leader.member.state is not State.STABLE
