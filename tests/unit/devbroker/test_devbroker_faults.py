"""Fault rules: what they match, how often, and an error in its right place for every API and version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from slackwater.devbroker import errors_in_place
from slackwater.devbroker.faults import Fault, FaultError, Faults
from slackwater.devbroker.router import API_NAMES, APIS
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
    }
    return made.get(request, request())


def codes(struct: Any) -> set[int]:
    """Every error code anywhere in a response."""
    found = set()
    for name, value in vars(struct).items():
        if name == "error_code":
            found.add(value)
        for entry in value if isinstance(value, list) else []:
            if isinstance(entry, Struct):
                found |= codes(entry)
    return found


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
    response = errors_in_place.error_response(request, version, CODE, "because")
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
    hit, rest = errors_in_place.split(request, lambda group, topic, part: topic == "t" and part == 1)
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
