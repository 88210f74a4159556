"""Groups with members that DescribeGroups calls Dead: of the consumer protocol, and share groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater.kafka.errors import KafkaError, UnsupportedVersionError
from slackwater.kafka.group_states import CLASSIC, CONSUMER, EpochProgress
from slackwater.kafka.net.connection import ByVersion
from slackwater.kafka.net.group_protocols import AWAY
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater_operator.kafka.group_requests import Asking
from slackwater_operator.model.group import GroupView, MemberView

E = ErrorCode


class FakeCoordinator:
    """A cluster of one broker, which coordinates every group. `consumers`: its answers to
    ConsumerGroupDescribe, by group; `listed`: those to ListGroups. None: it does not know the API, or not in
    that version."""

    def __init__(self) -> None:
        self.consumers: dict[str, m.ConsumerGroupDescribeResponseGroup] | None = {}
        self.listed: list[m.ListGroupsResponseGroup] | None = []

    async def coordinators(self, groups: list[str]) -> dict[str, int]:
        return dict.fromkeys(groups, 0)

    async def send(self, node_id: int, request: Any, *, version_cap: int | None = None) -> Any:
        if isinstance(request, ByVersion):
            return self._list(request.make(5 if self.listed is not None else 4))
        if isinstance(request, m.DescribeGroupsRequest):
            dead = {"group_state": "Dead"}
            return m.DescribeGroupsResponse(
                groups=[m.DescribeGroupsResponseGroup(group_id=name, **dead) for name in request.groups]
            )
        if self.consumers is None:
            raise UnsupportedVersionError("the broker does not support ConsumerGroupDescribe")
        missing = {"error_code": E.GROUP_ID_NOT_FOUND}
        return m.ConsumerGroupDescribeResponse(
            groups=[
                self.consumers.get(name) or m.ConsumerGroupDescribeResponseGroup(group_id=name, **missing)
                for name in request.group_ids
            ]
        )

    def _list(self, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
        listed = [group for group in self.listed or () if group.group_type in request.types_filter]
        return m.ListGroupsResponse(groups=listed)


async def described(coordinator: Any, *groups: str) -> dict[str, Any]:
    return await Asking(coordinator, asyncio.get_running_loop().time() + 60).describe(groups)


async def test_a_group_with_members_of_both_protocols_has_them_all() -> None:
    held = m.ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            m.ConsumerGroupDescribeResponseTopicPartitions(topic_name="flights", partitions=[0, 2])
        ]
    )
    members = [
        m.ConsumerGroupDescribeResponseMember(
            member_id="w", instance_id="flights-0", subscribed_topic_names=["flights"], assignment=held,
            member_type=0, member_epoch=5,
        ),
        m.ConsumerGroupDescribeResponseMember(
            member_id="x.owner-uid-1", client_id="theirs", client_host="/10.1.2.3",
            subscribed_topic_regex="fl.*", member_type=1, member_epoch=6, target_assignment=held,
        ),
        m.ConsumerGroupDescribeResponseMember(
            member_id="y", instance_id="flights-1", member_type=1, member_epoch=AWAY,
            subscribed_topic_regex="f",
        ),
    ]  # fmt: skip
    coordinator = FakeCoordinator()
    coordinator.consumers = {
        "flights": m.ConsumerGroupDescribeResponseGroup(
            group_id="flights", group_state="Reconciling", group_epoch=6, assignment_epoch=6, members=members
        )
    }
    view = (await described(coordinator, "flights", "none"))["flights"]
    partitions = frozenset({TopicPartition("flights", 0), TopicPartition("flights", 2)})
    assert view.rebalancing
    assert view.members == (
        MemberView(
            "w", "flights-0", partitions, False, topics=frozenset({"flights"}),
            protocol=CLASSIC, progress=EpochProgress.BEHIND,
        ),
        MemberView(
            "x.owner-uid-1", None, frozenset(), False, "theirs", "/10.1.2.3", "uid-1",
            protocol=CONSUMER, progress=EpochProgress.WAITING,
        ),
        MemberView("y", "flights-1", frozenset(), False, protocol=CONSUMER, progress=EpochProgress.AWAY),
    )  # fmt: skip
    assert view.situation == (
        "the group is Reconciling (not yet in the newest epoch: flights-0; "
        "waiting for partitions: x.owner-uid-1; away: flights-1)"
    )


async def test_a_group_of_another_type_has_a_member_that_stands_for_all() -> None:
    coordinator = FakeCoordinator()
    coordinator.listed = [
        m.ListGroupsResponseGroup(group_id="flights", group_state="Stable", group_type="share")
    ]
    views = await described(coordinator, "flights", "none")
    assert views["none"] == GroupView("Dead")
    assert (views["flights"].state, views["flights"].members[0].member_id) == ("Stable", "a share group")


@pytest.mark.parametrize("code", [E.GROUP_ID_NOT_FOUND, E.UNSUPPORTED_VERSION])
@pytest.mark.parametrize("old", [False, True])
async def test_a_group_that_no_answer_names_is_dead(code: ErrorCode, old: bool) -> None:
    coordinator = FakeCoordinator()
    answer = m.ConsumerGroupDescribeResponseGroup(group_id="flights", error_code=code)
    coordinator.consumers = None if old else {"flights": answer}
    coordinator.listed = None if old else []
    assert await described(coordinator, "flights") == {"flights": GroupView("Dead")}


@pytest.mark.parametrize(
    ("code", "grant"),
    [
        (E.GROUP_AUTHORIZATION_FAILED, "Describe on the Group"),
        # Of a topic that any member consumes, such as a stranger's.
        (E.TOPIC_AUTHORIZATION_FAILED, "Describe on every Topic that the group's members consume"),
    ],
)
async def test_a_group_that_may_not_be_described_is_unknown(code: ErrorCode, grant: str) -> None:
    coordinator = FakeCoordinator()
    answer = m.ConsumerGroupDescribeResponseGroup(group_id="flights", error_code=code)
    coordinator.consumers = {"flights": answer}
    refused = (await described(coordinator, "flights"))["flights"]
    assert isinstance(refused, KafkaError)
    assert (refused.code, grant in str(refused)) == (code, True)
