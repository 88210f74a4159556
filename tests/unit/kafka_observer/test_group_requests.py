"""What the observer makes of a broker's answer about a group."""

from __future__ import annotations

from slackwater.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, encode_assignment
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater_operator.kafka.group_requests import _group
from slackwater_operator.model.group import GroupView, MemberView


def test_a_member_has_both_of_its_ids() -> None:
    held = frozenset({TopicPartition("flights", 3)})
    member = m.DescribeGroupsResponseMember(
        member_id="flights-3-5ac1",
        group_instance_id="flights-3",
        client_id="flights-a-3",
        member_assignment=encode_assignment(list(held)),
    )
    answer = m.DescribeGroupsResponseGroup(
        group_id="flights", group_state="Stable", protocol_type=PROTOCOL_TYPE, members=[member]
    )
    group = _group(answer)
    assert isinstance(group, GroupView)
    assert group.member("flights-3") == MemberView("flights-3-5ac1", "flights-3", held, True, "flights-a-3")
