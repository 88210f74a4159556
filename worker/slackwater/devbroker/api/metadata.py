"""ApiVersions, Metadata and DescribeCluster."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from slackwater.devbroker.network.connection import Exchange
from slackwater.devbroker.options import BrokerOptions
from slackwater.devbroker.storage.partition import LEADER_EPOCH
from slackwater.devbroker.storage.topics import StoredTopic, TopicStore, is_known_id, is_legal_topic_name
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_API_VERSIONS_KEY = 18
_BROKERS_ENDPOINT = 1
_ALL_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""What Kafka without an authorizer says of a topic."""


_FEATURE = "group.version"
"""The consumer protocol is usable where this feature is finalized at 1 (KIP-848)."""


def handle_api_versions(
    ranges: Mapping[int, tuple[int, int]], exchange: Exchange, request: m.ApiVersionsRequest | None
) -> None:
    """Answers with the served versions.

    ``request`` is ``None`` for an unsupported version: the answer is UNSUPPORTED_VERSION in the form of
    version 0, with the range of ApiVersions only (KIP-511).
    """
    served = [
        m.ApiVersionsResponseApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(ranges.items())
    ]
    if request is None:
        own = [entry for entry in served if entry.api_key == _API_VERSIONS_KEY]
        answer = m.ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=own)
        exchange.reply(answer, version=0)
        return
    response = m.ApiVersionsResponse(
        api_keys=served,
        supported_features=[m.ApiVersionsResponseSupportedFeatureKey(name=_FEATURE, max_version=1)],
        finalized_features_epoch=0,
        finalized_features=[
            m.ApiVersionsResponseFinalizedFeatureKey(name=_FEATURE, max_version_level=1, min_version_level=1)
        ],
    )
    names = (request.client_software_name, request.client_software_version)
    if exchange.header.api_version >= 3 and not all(_SOFTWARE_NAME.match(name) for name in names):
        response = m.ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    exchange.reply(response)


def handle_metadata(
    topics: TopicStore, options: BrokerOptions, address: tuple[str, int], exchange: Exchange,
    request: m.MetadataRequest,
) -> None:  # fmt: skip
    """Describes topics by name or id (KIP-516); creates missing ones if broker and client allow it."""
    version = exchange.header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        described = [_described(topic) for topic in topics]
    else:
        create = options.auto_create_topics_enable and (version < 4 or request.allow_auto_topic_creation)
        described = [_wanted_topic(topics, options, wanted, create) for wanted in request.topics]
    if request.include_topic_authorized_operations:
        for topic in described:
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = _ALL_OPERATIONS
    host, port = address
    exchange.reply(
        m.MetadataResponse(
            brokers=[m.MetadataResponseBroker(node_id=options.node_id, host=host, port=port)],
            cluster_id=topics.cluster_id,
            controller_id=options.node_id,
            topics=[_led_by(topic, options.node_id) for topic in described],
        )
    )


def _described(topic: StoredTopic) -> m.MetadataResponseTopic:
    return m.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            m.MetadataResponsePartition(partition_index=partition.index, leader_epoch=LEADER_EPOCH)
            for partition in topic.partitions
        ],
    )


def _led_by(topic: m.MetadataResponseTopic, node_id: int) -> m.MetadataResponseTopic:
    for partition in topic.partitions:
        partition.leader_id = node_id
        partition.replica_nodes = partition.isr_nodes = [node_id]
    return topic


def _wanted_topic(
    topics: TopicStore, options: BrokerOptions, wanted: m.MetadataRequestTopic, create: bool
) -> m.MetadataResponseTopic:
    if is_known_id(wanted.topic_id) and not wanted.name:
        topic = topics.by_id(wanted.topic_id)
        if topic is None:
            return m.MetadataResponseTopic(
                error_code=int(ErrorCode.UNKNOWN_TOPIC_ID), name=None, topic_id=wanted.topic_id
            )
        return _described(topic)
    name = wanted.name or ""
    topic = topics.by_name(name)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not is_legal_topic_name(name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif topic is None and create:
        try:
            topic = topics.create(name, options.num_partitions, {})
            log.info(
                "topic %s created with %d partitions, because a client asked for its metadata",
                name,
                options.num_partitions,
            )
        except OSError as exc:
            log.error("cannot create topic %s: %s", name, exc.strerror)
            error = ErrorCode.KAFKA_STORAGE_ERROR
    if topic is not None:
        return _described(topic)
    return m.MetadataResponseTopic(error_code=int(error), name=name)


def handle_describe_cluster(
    topics: TopicStore, options: BrokerOptions, address: tuple[str, int], exchange: Exchange,
    request: m.DescribeClusterRequest,
) -> None:  # fmt: skip
    """Describes the cluster of one broker (KIP-700)."""
    if request.endpoint_type != _BROKERS_ENDPOINT:
        exchange.reply(
            m.DescribeClusterResponse(
                error_code=int(ErrorCode.MISMATCHED_ENDPOINT_TYPE),
                error_message="The request was sent to an endpoint of type BROKER.",
                endpoint_type=request.endpoint_type,
            )
        )
        return
    host, port = address
    exchange.reply(
        m.DescribeClusterResponse(
            cluster_id=topics.cluster_id,
            controller_id=options.node_id,
            brokers=[m.DescribeClusterResponseBroker(broker_id=options.node_id, host=host, port=port)],
        )
    )
