"""What the observer makes of a broker's answer about a group."""

from __future__ import annotations

from slackwater.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, encode_assignment
from slackwater.kafka.protocol.offsets import FetchedGroupOffsets
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.runtime.delivery.partition import CommitNote
from slackwater_operator.kafka.group_requests import _group, _handled
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


def test_only_the_notes_of_workers_say_how_far_records_are_handled() -> None:
    a, b, c, d, e = (TopicPartition("flights", number) for number in range(5))
    offsets = {
        a: OffsetAndMetadata(400, CommitNote(1, "w-0", handled=700).encode()),
        b: OffsetAndMetadata(400, CommitNote(1, "w-0").encode()),
        c: OffsetAndMetadata(400, '{"handled":700}'),
        d: OffsetAndMetadata(400, '{"at":1,"instance":"w-0","handled":"700"}'),
        e: None,
    }
    assert _handled(FetchedGroupOffsets(0, offsets, {}), "here") == {a: 700}


def test_an_offset_that_was_mirrored_from_another_kafka_says_nothing_of_handled_records() -> None:
    a, b = (TopicPartition("flights", number) for number in range(2))
    offsets = {
        a: OffsetAndMetadata(400, CommitNote(1, "w-0", handled=700, cluster_id="here").encode()),
        b: OffsetAndMetadata(400, CommitNote(1, "w-0", handled=700, cluster_id="there").encode()),
    }
    assert _handled(FetchedGroupOffsets(0, offsets, {}), "here") == {a: 700}
