"""Versions, broken frames, metadata, topics and configuration."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from slackwater.kafka.wire.frame import RequestHeader, decode_response, encode_request
from slackwater.kafka.wire.schema import Request
from tests.conformance.brokers import RANGES, is_refused, lacks, needs, on_old_brokers
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.kafka.brokers import GROUP_CONFIG
from tests.support.wire.rawclient import (
    ConnectionClosed,
    RawClient,
    create_topic,
    parse_address,
    topic_metadata,
)


@pytest.mark.parametrize("version", range(6))
@needs(m.ApiVersionsRequest)
def test_api_versions(client: RawClient, broker_name: str, version: int) -> None:
    """ApiVersions 0-5: the ranges of the APIs that the client uses."""
    request = m.ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    answer = client.request(request, version)
    assert answer.error_code == E.NONE
    versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
    expected = {kind.api_key: span if span[1] >= 0 else None for kind, span in RANGES[broker_name].items()}
    assert {key: versions.get(key) for key in expected} == expected


@on_old_brokers
def test_api_versions_out_of_range(client: RawClient, broker_name: str) -> None:
    """ApiVersions out of range: UNSUPPORTED_VERSION in v0 form (KIP-511), and the connection lives on."""
    client.send_bytes(b"".join(_frame(m.ApiVersionsRequest, 99, b"\x00\x01\x01\x00")))
    _, answer = decode_response(client.receive_frame(), 18, 0, m.ApiVersionsResponse)
    assert answer.error_code == E.UNSUPPORTED_VERSION
    assert [(k.min_version, k.max_version) for k in answer.api_keys if k.api_key == 18] == [
        RANGES[broker_name][m.ApiVersionsRequest]
    ]
    assert client.request(m.ApiVersionsRequest(), 0).error_code == E.NONE


def _frame(kind: type[m.ApiVersionsRequest], version: int, body: bytes) -> list[bytes]:
    head = struct.pack(">hhih", kind.api_key, version, 1, -1)
    return [struct.pack(">i", len(head) + len(body)), head, body]


def test_api_versions_wants_a_software_name(client: RawClient) -> None:
    """ApiVersions v3+ with an empty or odd client software name: INVALID_REQUEST (KIP-511)."""
    assert client.request(m.ApiVersionsRequest(), 3).error_code == E.INVALID_REQUEST
    odd = m.ApiVersionsRequest(client_software_name="a b", client_software_version="1")
    assert client.request(odd, 3).error_code == E.INVALID_REQUEST


@pytest.mark.parametrize(
    "message",
    [
        m.ProduceRequest, m.FetchRequest, m.MetadataRequest, m.JoinGroupRequest, m.HeartbeatRequest,
        m.OffsetCommitRequest, m.OffsetFetchRequest, None,
    ],
    ids=lambda message: message.__name__ if message else "unknown",
)  # fmt: skip
@on_old_brokers
def test_out_of_range_closes_the_connection(
    bootstrap: str, broker_name: str, message: type[Request[Any]] | None
) -> None:
    """Above the highest and below the lowest version, and a call that is not there: connection closed."""
    if message is None:
        assert is_refused(bootstrap, 999, 0)
        return
    low, high = RANGES[broker_name][message]
    for version in (low - 1, high + 1):
        if message.min_version <= version <= message.max_version:
            assert lacks(bootstrap, message, version), version
        elif version >= 0:
            assert is_refused(bootstrap, message.api_key, version), version


@pytest.mark.parametrize("version", range(3))
def test_oldest_produce_closes_the_connection(bootstrap: str, version: int) -> None:
    """Produce 0-2 close the connection, although ApiVersions names them, for old librdkafkas (KIP-896)."""
    assert is_refused(bootstrap, m.ProduceRequest.api_key, version)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0x7FFFFFFF) + b"x" * 100,
        struct.pack(">i", 104857601) + b"x" * 100,
        struct.pack(">i", 4) + b"\xff" * 4,
        struct.pack(">i", 40) + struct.pack(">hhih", 3, 9, 1, -1) + b"\xff" * 30,
        struct.pack(">i", 24) + struct.pack(">hhih", 3, 0, 1, -1) + struct.pack(">i", 0x7FFFFFF0) + bytes(10),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["negative", "huge", "over-the-limit", "short", "garbage", "array-too-long", "http"],
)
def test_broken_frames_end_the_connection_alone(client: RawClient, bootstrap: str, data: bytes) -> None:
    """A truncated, oversized or garbage frame ends that connection, never the process."""
    client.send_bytes(data)
    assert client.closed_by_broker()
    with RawClient.to(bootstrap) as other:
        assert other.request(m.ApiVersionsRequest(), 0).error_code == E.NONE


def test_a_connection_closed_within_a_frame_disturbs_nobody(bootstrap: str, client: RawClient) -> None:
    """A connection closed in the middle of a frame disturbs nobody."""
    with RawClient.to(bootstrap) as other:
        other.send_bytes(struct.pack(">i", 1000) + b"x" * 10)
    assert client.request(m.ApiVersionsRequest(), 0).error_code == E.NONE


def test_answers_come_in_order(client: RawClient) -> None:
    """Requests sent in a row are answered in their order."""
    kinds: list[Request[Any]] = [
        m.MetadataRequest(topics=[]),
        m.ListGroupsRequest(),
        m.FindCoordinatorRequest(key="g"),
    ] * 5
    for kind in kinds:
        client.send(kind, 3)
    for kind in kinds:
        assert isinstance(client.receive(), type(kind).response_type)


def test_frame_in_pieces(bootstrap: str) -> None:
    """A frame may arrive byte by byte."""
    with RawClient.to(bootstrap) as client:
        request = m.MetadataRequest(topics=[])
        data = b"".join(encode_request(RequestHeader(3, 9, 5, "x"), request))
        for i in range(len(data)):
            client.send_bytes(data[i : i + 1])
        correlation_id, _ = decode_response(client.receive_frame(), 3, 9, m.MetadataResponse)
        assert correlation_id == 5


# --- metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
@needs(m.MetadataRequest)
def test_metadata(client: RawClient, name: str, broker: KafkaCluster | DevBroker, version: int) -> None:
    """Metadata 0-13: the brokers, and a topic with its partitions."""
    create_topic(client, name, 3)
    answer = client.request(m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)]), version)
    assert (answer.brokers[0].host, answer.brokers[0].port) == parse_address(broker.bootstrap)
    [topic] = answer.topics
    assert (topic.error_code, topic.name) == (E.NONE, name)
    node = answer.brokers[0].node_id
    assert sorted((p.partition_index, p.leader_id, p.error_code) for p in topic.partitions) == [
        (i, node, 0) for i in range(3)
    ]
    assert all(p.isr_nodes == [node] == p.replica_nodes for p in topic.partitions)
    if version >= 10:
        assert topic.topic_id == topic_metadata(client, name).topic_id != uuid.UUID(int=0)
    if version >= 2:
        assert answer.cluster_id


def test_metadata_of_all_and_of_none(client: RawClient, name: str) -> None:
    """topics null: all of them; empty: none (v1+), all (v0)."""
    create_topic(client, name)
    everything = client.request(m.MetadataRequest(topics=None), 12)
    assert name in {t.name for t in everything.topics}
    assert client.request(m.MetadataRequest(topics=[]), 12).topics == []
    assert name in {t.name for t in client.request(m.MetadataRequest(topics=[]), 0).topics}


@needs(m.MetadataRequest, 12)
def test_metadata_by_id(client: RawClient, name: str) -> None:
    """Metadata v12 by topic id; an id that nobody has: UNKNOWN_TOPIC_ID."""
    create_topic(client, name)
    topic_id = topic_metadata(client, name).topic_id

    def ask(wanted: uuid.UUID) -> m.MetadataResponseTopic:
        topics = [m.MetadataRequestTopic(topic_id=wanted, name=None)]
        return client.request(m.MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12).topics[0]

    assert (ask(topic_id).error_code, ask(topic_id).name) == (E.NONE, name)
    assert ask(uuid.uuid4()).error_code == E.UNKNOWN_TOPIC_ID


def test_metadata_of_a_missing_topic(client: RawClient, name: str) -> None:
    """No such topic: UNKNOWN_TOPIC_OR_PARTITION; a name that none may have: INVALID_TOPIC_EXCEPTION."""
    assert topic_metadata(client, name).error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert topic_metadata(client, "not a name!").error_code == E.INVALID_TOPIC_EXCEPTION


# --- topics --------------------------------------------------------------------------------------


def create(client: RawClient, version: int = 7, validate_only: bool = False, **fields: object) -> int:
    values: dict[str, object] = {"num_partitions": 1, "replication_factor": 1}
    topic = m.CreateTopicsRequestTopic(**{**values, **fields})  # type: ignore[arg-type]
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=validate_only)
    return client.request(request, version).topics[0].error_code


def test_create_topics_errors(client: RawClient, name: str) -> None:
    """CreateTopics: what it refuses, by error code."""
    config = m.CreateTopicsRequestTopicConfig
    assert create(client, name=name, validate_only=True) == E.NONE
    assert topic_metadata(client, name).error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert create(client, name=name, num_partitions=0) == E.INVALID_PARTITIONS
    assert create(client, name=name, replication_factor=2) == E.INVALID_REPLICATION_FACTOR
    assert create(client, name="not a name!") == E.INVALID_TOPIC_EXCEPTION
    assert create(client, name="") == E.INVALID_TOPIC_EXCEPTION
    assert create(client, name=name, configs=[config(name="no.such", value="1")]) == E.INVALID_CONFIG
    assert create(client, name=name, configs=[config(name="retention.ms", value="x")]) == E.INVALID_CONFIG
    assert create(client, name=name, num_partitions=-1, replication_factor=-1) == E.NONE
    assert create(client, name=name) == E.TOPIC_ALREADY_EXISTS


def test_create_topics_tells_what_it_made(client: RawClient, name: str) -> None:
    """CreateTopics v7 answers with id, partition count and replication factor."""
    topic = m.CreateTopicsRequestTopic(name=name, num_partitions=4, replication_factor=1)
    made = client.request(m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics[0]
    assert (made.error_code, made.num_partitions, made.replication_factor) == (E.NONE, 4, 1)
    assert made.topic_id != uuid.UUID(int=0)
    assert create(client, name=name, validate_only=True) == E.TOPIC_ALREADY_EXISTS


def test_delete_topics(client: RawClient, name: str) -> None:
    """DeleteTopics by name and by id; unknown: UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID."""

    def delete(**fields: object) -> int:
        topic = m.DeleteTopicsRequestTopic(**fields)  # type: ignore[arg-type]
        request = m.DeleteTopicsRequest(topics=[topic], timeout_ms=10_000)
        return client.request(request, 6).responses[0].error_code

    create_topic(client, name)
    topic_id = topic_metadata(client, name).topic_id
    assert delete(topic_id=topic_id) == E.NONE
    assert delete(topic_id=topic_id) == E.UNKNOWN_TOPIC_ID
    assert delete(name=name) == E.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(client, name)
    assert topic_metadata(client, name).topic_id != topic_id
    assert delete(name=name) == E.NONE


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_topic_configs(client: RawClient, name: str, version: int) -> None:
    """DescribeConfigs of a topic: what was set, and defaults; a missing topic: an error."""
    create_topic(client, name, 1, retention_ms="12345")

    def ask(topic: str, keys: list[str] | None) -> m.DescribeConfigsResponseResult:
        resource = m.DescribeConfigsRequestResource(
            resource_type=2, resource_name=topic, configuration_keys=keys
        )
        return client.request(m.DescribeConfigsRequest(resources=[resource]), version).results[0]

    [retention] = ask(name, ["retention.ms"]).configs
    assert (retention.name, retention.value, retention.config_source) == ("retention.ms", "12345", 1)
    everything = {c.name: c.value for c in ask(name, None).configs}
    assert everything["retention.ms"] == "12345"
    assert everything["cleanup.policy"] == "delete"
    assert ask("no-" + name, None).error_code == E.UNKNOWN_TOPIC_OR_PARTITION


def test_describe_broker_configs(client: RawClient) -> None:
    """DescribeConfigs of the broker, which a client asks for the group's limits."""
    node = client.request(m.MetadataRequest(topics=[]), 12).brokers[0].node_id
    resource = m.DescribeConfigsRequestResource(
        resource_type=4, resource_name=str(node), configuration_keys=None
    )
    result = client.request(m.DescribeConfigsRequest(resources=[resource]), 4).results[0]
    assert result.error_code == E.NONE
    options = {c.name: c.value for c in result.configs}
    assert options["group.min.session.timeout.ms"] == "6000"
    assert options["group.initial.rebalance.delay.ms"] == GROUP_CONFIG["group.initial.rebalance.delay.ms"]


# --- coordinator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
@needs(m.FindCoordinatorRequest)
def test_find_coordinator_of_one_group(
    client: RawClient, broker: KafkaCluster | DevBroker, version: int
) -> None:
    """FindCoordinator 0-3: one group."""
    answer = client.request(m.FindCoordinatorRequest(key="some-group"), version)
    assert answer.error_code == E.NONE
    assert (answer.host, answer.port) == parse_address(broker.bootstrap)


@pytest.mark.parametrize("version", range(4, 7))
@needs(m.FindCoordinatorRequest)
def test_find_coordinator_of_many_groups(
    client: RawClient, broker: KafkaCluster | DevBroker, version: int
) -> None:
    """FindCoordinator 4+: many groups at once."""
    answer = client.request(m.FindCoordinatorRequest(coordinator_keys=["g1", "g2"]), version)
    assert [(c.key, c.error_code) for c in answer.coordinators] == [("g1", E.NONE), ("g2", E.NONE)]
    assert {(c.host, c.port) for c in answer.coordinators} == {parse_address(broker.bootstrap)}


def test_closed_means_closed(bootstrap: str) -> None:
    """A connection that the broker closed gives :class:`ConnectionClosed`, not a hang (our own tool)."""
    client = RawClient.to(bootstrap)
    client.send_bytes(struct.pack(">i", -5))
    with pytest.raises(ConnectionClosed):
        client.receive_frame()
