"""Fault rules: what they match, how often, and an error in its right place for every API and version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from slackwater.devbroker.faults import error_responses
from slackwater.devbroker.faults.rules import Fault, FaultError, Faults
from slackwater.devbroker.network.router import API_NAMES, APIS
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Struct

CODE = ErrorCode.POLICY_VIOLATION
TOPIC_ID = UUID(int=9)


def example(request: type[Request[Any]], version: int) -> Request[Any]:
    """A request of that type that is about something."""
    made: dict[type, Request[Any]] = {
        m.ProduceRequest: m.ProduceRequest(
            topic_data=[
                m.ProduceRequestTopic(
                    name="t", topic_id=TOPIC_ID, partition_data=[m.ProduceRequestPartition(index=3)]
                )
            ]
        ),
        m.FetchRequest: m.FetchRequest(
            topics=[
                m.FetchRequestTopic(
                    topic="t", topic_id=TOPIC_ID, partitions=[m.FetchRequestPartition(partition=3)]
                )
            ]
        ),
        m.ListOffsetsRequest: m.ListOffsetsRequest(
            topics=[
                m.ListOffsetsRequestTopic(
                    name="t", partitions=[m.ListOffsetsRequestPartition(partition_index=3)]
                )
            ]
        ),
        m.OffsetForLeaderEpochRequest: m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderEpochRequestTopic(
                    topic="t", partitions=[m.OffsetForLeaderEpochRequestPartition(partition=3)]
                )
            ]
        ),
        m.MetadataRequest: m.MetadataRequest(topics=[m.MetadataRequestTopic(name="t")]),
        m.OffsetCommitRequest: m.OffsetCommitRequest(
            group_id="g",
            topics=[
                m.OffsetCommitRequestTopic(
                    name="t",
                    topic_id=TOPIC_ID,
                    partitions=[m.OffsetCommitRequestPartition(partition_index=3)],
                )
            ],
        ),
        m.OffsetFetchRequest: m.OffsetFetchRequest(
            group_id="g",
            topics=[m.OffsetFetchRequestTopic(name="t", partition_indexes=[3])],
        )
        if version < 8
        else m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=None)]),
        m.CreateTopicsRequest: m.CreateTopicsRequest(topics=[m.CreateTopicsRequestTopic(name="t")]),
        m.DeleteTopicsRequest: m.DeleteTopicsRequest(topic_names=["t"])
        if version < 6
        else m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="t")]),
        m.DescribeConfigsRequest: m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsRequestResource(resource_type=2, resource_name="t")]
        ),
        m.FindCoordinatorRequest: m.FindCoordinatorRequest(key="g")
        if version < 4
        else m.FindCoordinatorRequest(coordinator_keys=["g"]),
        m.DescribeGroupsRequest: m.DescribeGroupsRequest(groups=["g"]),
        m.DeleteGroupsRequest: m.DeleteGroupsRequest(groups_names=["g"]),
        m.ConsumerGroupDescribeRequest: m.ConsumerGroupDescribeRequest(group_ids=["g"]),
    }
    return made.get(request, request())


def codes(struct: Any) -> set[int]:
    """Every error code anywhere in a response."""
    result = set()
    for name, value in vars(struct).items():
        if name == "error_code":
            result.add(value)
        for entry in value if isinstance(value, list) else []:
            if isinstance(entry, Struct):
                result |= codes(entry)
    return result


EVERY_VERSION = [
    pytest.param(api.request, version, id=f"{api.name}-{version}")
    for api in APIS.values()
    for version in range(max(api.min_version, api.request.min_version), api.max_version + 1)
]


@pytest.mark.parametrize(("request_type", "version"), EVERY_VERSION)
def test_the_error_arrives_in_every_version_of_every_api(
    request_type: type[Request[Any]], version: int
) -> None:
    request = example(request_type, version)
    # What a broker sees is what the wire lets through.
    request = request_type.decode(request.encode(version), version)
    response = error_responses.error_response(request, version, CODE, "because")
    back = type(response).decode(response.encode(version), version)
    assert CODE in codes(back)


def rule(**values: Any) -> Fault:
    return Fault(**{"api": "Produce", "error": CODE, **values})


def faults(*rules: Fault) -> Faults:
    made = Faults({TOPIC_ID: "t"}.get)
    for each in rules:
        made.add(each)
    return made


def test_a_rule_applies_as_often_as_it_says_and_then_no_more() -> None:
    made = faults(rule(api="Heartbeat", times=2))
    taken = [made.take("Heartbeat", "c", m.HeartbeatRequest(group_id="g")) is not None for _ in range(4)]
    assert taken == [True, True, False, False]
    assert [(entry["left"], entry["hits"]) for entry in made.to_json()] == [(0, 2)]
    assert len(made) == 0


def test_a_rule_without_an_end_applies_until_it_is_removed() -> None:
    made = Faults(lambda _: None)
    active = made.add(rule(api="Heartbeat", times=None))
    assert all(made.take("Heartbeat", "c", m.HeartbeatRequest()) for _ in range(5))
    assert made.remove(active.id)
    assert not made.remove(active.id)
    assert made.take("Heartbeat", "c", m.HeartbeatRequest()) is None


@pytest.mark.parametrize(
    ("narrowed", "request_type", "applies"),
    [
        ({"group": "g"}, m.OffsetCommitRequest, True),
        ({"group": "other"}, m.OffsetCommitRequest, False),
        ({"topic": "t", "partition": 3}, m.OffsetCommitRequest, True),
        ({"topic": "t", "partition": 4}, m.OffsetCommitRequest, False),
        ({"topic": "other"}, m.ProduceRequest, False),
        ({"topic": "t"}, m.HeartbeatRequest, False),
        ({"topic": "t"}, m.MetadataRequest, True),
        ({"topic": "t"}, m.DeleteTopicsRequest, True),
        ({"group": "g"}, m.FindCoordinatorRequest, True),
        ({"group": "g"}, m.DescribeGroupsRequest, True),
        ({"group": "other"}, m.DeleteGroupsRequest, False),
        ({"group": "g"}, m.OffsetFetchRequest, True),
        ({"client_id": "me"}, m.ListGroupsRequest, True),
        ({"client_id": "you"}, m.ListGroupsRequest, False),
        ({"topic": "t", "partition": 7}, m.MetadataRequest, True),
        ({"instance": "i"}, m.HeartbeatRequest, False),
    ],
)
def test_a_rule_is_narrowed_down(
    narrowed: dict[str, Any], request_type: type[Request[Any]], applies: bool
) -> None:
    name = request_type.__name__.removesuffix("Request")
    made = faults(rule(api=name, **narrowed))
    version = request_type.max_version
    request = request_type.decode(example(request_type, version).encode(version), version)
    assert (made.take(name, "me", request) is not None) is applies


@pytest.mark.parametrize(
    "request_",
    [
        m.HeartbeatRequest(group_id="g", group_instance_id="i"),
        m.JoinGroupRequest(group_id="g", group_instance_id="i"),
        m.LeaveGroupRequest(group_id="g", members=[m.LeaveGroupRequestMember(group_instance_id="i")]),
    ],
)
def test_a_rule_for_one_member(request_: Request[Any]) -> None:
    name = type(request_).__name__.removesuffix("Request")
    assert faults(rule(api=name, instance="i")).take(name, "c", request_)
    assert not faults(rule(api=name, instance="j")).take(name, "c", request_)


@pytest.mark.parametrize(("code", "of_the_member"), [(25, True), (82, True), (16, False)])
def test_leave_group_has_a_members_error_at_the_member(code: int, of_the_member: bool) -> None:
    request = m.LeaveGroupRequest(members=[m.LeaveGroupRequestMember(member_id="m")])
    answer = error_responses.error_response(request, 5, ErrorCode(code), "because")
    assert isinstance(answer, m.LeaveGroupResponse)
    assert answer.error_code == (0 if of_the_member else code)
    assert [(member.member_id, member.error_code) for member in answer.members] == (
        [("m", code)] if of_the_member else []
    )
    old = error_responses.error_response(m.LeaveGroupRequest(member_id="m"), 2, ErrorCode(code), "because")
    assert codes(old) == {code}


def test_member_id_required_brings_one() -> None:
    answer = error_responses.error_response(
        m.JoinGroupRequest(group_id="g"), 9, ErrorCode.MEMBER_ID_REQUIRED, "because"
    )
    assert isinstance(answer, m.JoinGroupResponse)
    assert answer.member_id


def test_metadata_has_the_error_at_the_partition_where_the_rule_names_one() -> None:
    def answer() -> m.MetadataResponse:
        parts = [m.MetadataResponsePartition(partition_index=n, leader_id=1) for n in range(2)]
        return m.MetadataResponse(topics=[m.MetadataResponseTopic(name="t", partitions=parts)])

    code = ErrorCode.LISTENER_NOT_FOUND
    active = Faults(lambda _: None).add(rule(api="Metadata", topic="t", partition=1))
    (topic,) = error_responses.with_metadata_errors(answer(), active.matches, code, by_partition=True).topics
    assert topic.error_code == 0
    assert [(p.error_code, p.leader_id) for p in topic.partitions] == [(0, 1), (code, -1)]
    (topic,) = error_responses.with_metadata_errors(answer(), lambda *_: True, code).topics
    assert (topic.error_code, topic.partitions) == (code, [])


def test_topics_are_matched_by_name_also_where_the_request_has_ids() -> None:
    topic = m.FetchRequestTopic(topic_id=TOPIC_ID, partitions=[m.FetchRequestPartition(partition=0)])
    request = m.FetchRequest(topics=[topic])
    assert faults(rule(api="Fetch", topic="t")).take("Fetch", None, request)
    assert not faults(rule(api="Fetch", topic="u")).take("Fetch", None, request)


def test_any_api_leaves_version_negotiation_alone() -> None:
    made = faults(rule(api="*"))
    assert made.take("ApiVersions", None, m.ApiVersionsRequest()) is None
    assert made.take("Heartbeat", None, m.HeartbeatRequest()) is not None


def test_a_request_is_split_into_what_fails_and_what_is_handled() -> None:
    parts = [m.ProduceRequestPartition(index=i) for i in range(3)]
    request = m.ProduceRequest(
        topic_data=[m.ProduceRequestTopic(name=name, partition_data=parts) for name in ("t", "u")]
    )
    hit, rest = error_responses.split(request, lambda group, topic, part: topic == "t" and part == 1)
    assert isinstance(hit, m.ProduceRequest)
    assert isinstance(rest, m.ProduceRequest)
    assert [[p.index for p in topic.partition_data] for topic in hit.topic_data] == [[1]]
    assert [[p.index for p in topic.partition_data] for topic in rest.topic_data] == [[0, 2], [0, 1, 2]]


def test_rules_survive_the_way_through_json() -> None:
    for made in (
        rule(topic="t", partition=0, times=None),
        Fault(api="Fetch", delay_ms=5, client_id="c"),
        Fault(api="*", drop="after", group="g", times=3),
        Fault(api="SyncGroup", move_coordinator=0),
        Fault(api="Heartbeat", throttle_ms=20, instance="i"),
    ):
        assert Fault.from_json(made.to_json(), API_NAMES) == made


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "object"),
        ({"api": "Fetch"}, "one of"),
        ({"api": "Fetch", "error": "NONSENSE"}, "NONSENSE"),
        ({"api": "Fetch", "error": 4711}, "4711"),
        ({"api": "Fetch", "error": True}, "True"),
        ({"api": "Nope", "error": 1}, "Nope"),
        ({"error": 1}, "api"),
        ({"api": "Fetch", "error": 1, "drop": "after"}, "one of"),
        ({"api": "Fetch", "drop": "sideways"}, "sideways"),
        ({"api": "Fetch", "delay_ms": -1}, "delay_ms"),
        ({"api": "Fetch", "delay_ms": "5"}, "delay_ms"),
        ({"api": "Fetch", "error": 1, "times": 0}, "times"),
        ({"api": "Fetch", "error": 1, "partition": "0"}, "partition"),
        ({"api": "Fetch", "error": 1, "topic": 5}, "topic"),
        ({"api": "Fetch", "error": 1, "tpoic": "t"}, "tpoic"),
    ],
)
def test_a_rule_that_says_something_impossible_is_refused_by_name(value: Any, named: str) -> None:
    with pytest.raises(FaultError, match=named):
        Fault.from_json(value, API_NAMES)
