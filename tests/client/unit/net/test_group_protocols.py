"""An administrator's description of groups that DescribeGroups calls Dead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.kafka.admin import GroupDescription, groups
from slackwater.kafka.errors import GroupAuthorizationFailedError, UnsupportedVersionError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode


class FakeCoordinator:
    """A broker that calls every group Dead. `consumers`: its answers to ConsumerGroupDescribe; `listed`:
    those to ListGroups; None: it does not know the API, or that version."""

    def __init__(
        self,
        consumers: list[m.ConsumerGroupDescribeResponseGroup] | None = None,
        listed: list[m.ListGroupsResponseGroup] | None = None,
    ) -> None:
        self.consumers, self.listed = consumers, listed

    async def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Any:
        if isinstance(request, m.DescribeGroupsRequest):
            made = [
                m.DescribeGroupsResponseGroup(group_id=name, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
                for name in request.groups
            ]
            return m.DescribeGroupsResponse(groups=made)
        if isinstance(request, m.ConsumerGroupDescribeRequest):
            if self.consumers is None:
                raise UnsupportedVersionError("no ConsumerGroupDescribe")
            return m.ConsumerGroupDescribeResponse(groups=self.consumers)
        request.make(5 if self.listed is not None else 4)
        return m.ListGroupsResponse(groups=self.listed or [])


async def describe(coordinator: FakeCoordinator) -> Any:
    async def by_coordinator(
        _: Any, ids: list[str], ask: Callable[[int, list[str]], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        return await ask(0, ids)

    attempts = SimpleNamespace(left_ms=1_000, by_coordinator=by_coordinator)
    return (await groups.describe(coordinator, attempts, ["g"]))["g"]  # type: ignore[arg-type]


async def test_the_members_of_a_group_of_the_consumer_protocol_are_described() -> None:
    member = m.ConsumerGroupDescribeResponseMember(member_id="x", instance_id="i", client_id="c")
    answer = m.ConsumerGroupDescribeResponseGroup(group_id="g", group_state="Assigning", members=[member])
    described = await describe(FakeCoordinator([answer]))
    assert (described.state, described.protocol_type) == ("Assigning", "consumer")
    assert [(member.member_id, member.instance_id) for member in described.members] == [("x", "i")]


@pytest.mark.parametrize(
    ("state", "epochs", "target", "at_rest"),
    [
        ("Stable", (7, 7), [0], True),
        ("Reconciling", (7, -2), [0], True),  # a static member is away for a moment
        ("Reconciling", (7, 6), [0], False),
        ("Reconciling", (7, -2), [0, 1], False),  # the other is to get a partition
        ("Assigning", (7, -2), [0], False),
    ],
)
async def test_a_group_is_at_rest_where_no_partition_is_on_its_way(
    state: str, epochs: tuple[int, ...], target: list[int], at_rest: bool
) -> None:
    def assigned(numbers: list[int]) -> m.ConsumerGroupDescribeResponseAssignment:
        topic = m.ConsumerGroupDescribeResponseTopicPartitions(topic_name="t", partitions=numbers)
        return m.ConsumerGroupDescribeResponseAssignment(topic_partitions=[topic])

    members = [
        m.ConsumerGroupDescribeResponseMember(
            member_epoch=epoch, assignment=assigned([0]), target_assignment=assigned(target)
        )
        for epoch in epochs
    ]
    answer = m.ConsumerGroupDescribeResponseGroup(
        group_id="g", group_state=state, group_epoch=7, assignment_epoch=7, members=members
    )
    described = await describe(FakeCoordinator([answer]))
    assert (described.state, described.epoch, described.at_rest) == (state, 7, at_rest)
    assert [member.epoch for member in described.members] == [*epochs]


async def test_a_share_group_is_one_of_another_type() -> None:
    listed = m.ListGroupsResponseGroup(
        group_id="g", group_state="Stable", protocol_type="share", group_type="Share"
    )
    described = await describe(FakeCoordinator([], [listed]))
    assert (described.state, described.protocol_type) == ("Stable", "share")


@pytest.mark.parametrize("coordinator", [FakeCoordinator(), FakeCoordinator([], [])])
async def test_a_group_that_no_answer_names_does_not_exist(coordinator: FakeCoordinator) -> None:
    assert await describe(coordinator) == GroupDescription("g", "Dead", "", "", (), 0)


async def test_a_group_that_may_not_be_described_is_an_error() -> None:
    answer = m.ConsumerGroupDescribeResponseGroup(
        group_id="g", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    assert isinstance(await describe(FakeCoordinator([answer])), GroupAuthorizationFailedError)
