"""ApiVersions, Metadata, DescribeCluster, CreateTopics, DeleteTopics, DescribeConfigs."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping

from slackwater.devbroker import topic_configs
from slackwater.devbroker.connection import Exchange
from slackwater.devbroker.options import BrokerOptions
from slackwater.devbroker.partition import LEADER_EPOCH
from slackwater.devbroker.topics import Topic, TopicStore, is_known_id, is_legal_topic_name
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_API_VERSIONS_KEY = 18
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_DYNAMIC_TOPIC, _STATIC_BROKER, _DEFAULT = 1, 4, 5
_BROKERS_ENDPOINT = 1
MAX_PARTITIONS = 10_000
"""Each is a folder and an open file: a slip of the finger should not fill the machine."""


def handle_api_versions(
    ranges: Mapping[int, tuple[int, int]], exchange: Exchange, request: m.ApiVersionsRequest | None
) -> None:
    """Says what is served. ``request`` is ``None`` for a version that is not: UNSUPPORTED_VERSION in
    the form of version 0, with the range of ApiVersions alone (KIP-511)."""
    served = [
        m.ApiVersionsResponseApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(ranges.items())
    ]
    if request is None:
        own = [entry for entry in served if entry.api_key == _API_VERSIONS_KEY]
        answer = m.ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=own)
        exchange.reply(answer, version=0)
        return
    response = m.ApiVersionsResponse(api_keys=served)
    names = (request.client_software_name, request.client_software_version)
    if exchange.header.api_version >= 3 and not all(_SOFTWARE_NAME.match(name) for name in names):
        response = m.ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    exchange.reply(response)


def handle_metadata(
    topics: TopicStore, options: BrokerOptions, address: tuple[str, int], exchange: Exchange,
    request: m.MetadataRequest,
) -> None:  # fmt: skip
    """Describes topics by name or id (KIP-516); makes those that are not there where both sides allow it."""
    version = exchange.header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        found = [_described(topic) for topic in topics]
    else:
        create = options.auto_create_topics_enable and (version < 4 or request.allow_auto_topic_creation)
        found = [_wanted_topic(topics, options, wanted, create) for wanted in request.topics]
    host, port = address
    exchange.reply(
        m.MetadataResponse(
            brokers=[m.MetadataResponseBroker(node_id=options.node_id, host=host, port=port)],
            cluster_id=topics.cluster_id,
            controller_id=options.node_id,
            topics=[_led_by(topic, options.node_id) for topic in found],
        )
    )


def _described(topic: Topic) -> m.MetadataResponseTopic:
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
                "topic %s made with %d partitions, for a client asked for it", name, options.num_partitions
            )
        except OSError as exc:
            log.error("cannot make topic %s: %s", name, exc.strerror)
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


def handle_create_topics(
    topics: TopicStore, options: BrokerOptions, exchange: Exchange, request: m.CreateTopicsRequest
) -> None:
    """Makes topics, each for itself: one that cannot be made does not stop the others."""
    named = Counter(wanted.name for wanted in request.topics)
    answers = []
    for name in named:
        wanted = next(topic for topic in request.topics if topic.name == name)
        error, reason = ErrorCode.INVALID_REQUEST, "Duplicate topic in request."
        if named[name] == 1:
            error, reason = _creation_problem(topics, options, wanted)
        answers.append(
            _created(topics, options, wanted, request.validate_only)
            if not error
            else m.CreateTopicsResponseTopic(name=name, error_code=int(error), error_message=reason)
        )
    exchange.reply(m.CreateTopicsResponse(topics=answers))


def _creation_problem(
    topics: TopicStore, options: BrokerOptions, wanted: m.CreateTopicsRequestTopic
) -> tuple[ErrorCode, str]:
    if not is_legal_topic_name(wanted.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {wanted.name!r}"
    if topics.by_name(wanted.name) is not None:
        return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists."
    if wanted.assignments:
        error, reason = _assignment_problem(options, wanted)
    elif wanted.num_partitions != -1 and wanted.num_partitions < 1:
        error, reason = ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."
    elif wanted.num_partitions > MAX_PARTITIONS:
        error = ErrorCode.INVALID_PARTITIONS
        reason = f"This broker makes at most {MAX_PARTITIONS} partitions a topic."
    elif wanted.replication_factor not in (-1, 1):
        error = ErrorCode.INVALID_REPLICATION_FACTOR
        reason = (
            f"Unable to replicate the partition {wanted.replication_factor} time(s): there is one broker."
        )
    else:
        error, reason = ErrorCode.NONE, ""
    problems = [reason for c in wanted.configs if (reason := topic_configs.problem_with(c.name, c.value))]
    if not error and problems:
        return ErrorCode.INVALID_CONFIG, problems[0]
    return error, reason


def _assignment_problem(options: BrokerOptions, wanted: m.CreateTopicsRequestTopic) -> tuple[ErrorCode, str]:
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        return (
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions or replicationFactor was not -1.",
        )
    indexes = sorted(entry.partition_index for entry in wanted.assignments)
    if indexes != list(range(len(indexes))):
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    if any(entry.broker_ids != [options.node_id] for entry in wanted.assignments):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {options.node_id}"
    return ErrorCode.NONE, ""


def _created(
    topics: TopicStore, options: BrokerOptions, wanted: m.CreateTopicsRequestTopic, validate_only: bool
) -> m.CreateTopicsResponseTopic:
    count = len(wanted.assignments) or (
        options.num_partitions if wanted.num_partitions == -1 else wanted.num_partitions
    )
    own = {config.name: config.value or "" for config in wanted.configs}
    answer = m.CreateTopicsResponseTopic(
        name=wanted.name, error_message=None, num_partitions=count, replication_factor=1
    )
    if not validate_only:
        try:
            answer.topic_id = topics.create(wanted.name, count, own).topic_id
        except OSError as exc:
            log.error("cannot make topic %s: %s", wanted.name, exc.strerror)
            return m.CreateTopicsResponseTopic(
                name=wanted.name,
                error_code=int(ErrorCode.KAFKA_STORAGE_ERROR),
                error_message=f"cannot make topic {wanted.name}: {exc.strerror}",
            )
    answer.configs = [
        m.CreateTopicsResponseTopicConfig(
            name=name,
            value=own.get(name, value),
            config_source=_DYNAMIC_TOPIC if name in own else _DEFAULT,
        )
        for name, (_, value) in sorted(topic_configs.defaults(options).items())
    ]
    return answer


def handle_delete_topics(topics: TopicStore, exchange: Exchange, request: m.DeleteTopicsRequest) -> None:
    """Deletes topics by name or, from v6 on, by id."""
    wanted = [*request.topics, *(m.DeleteTopicsRequestTopic(name=name) for name in request.topic_names)]
    exchange.reply(m.DeleteTopicsResponse(responses=[_deleted(topics, entry) for entry in wanted]))


def _deleted(topics: TopicStore, wanted: m.DeleteTopicsRequestTopic) -> m.DeleteTopicsResponseTopic:
    by_name = wanted.name is not None
    answer = m.DeleteTopicsResponseTopic(name=wanted.name, topic_id=wanted.topic_id)
    if by_name and is_known_id(wanted.topic_id):
        answer.error_code = int(ErrorCode.INVALID_REQUEST)
        answer.error_message = "You may not specify both topic name and topic id."
        return answer
    topic = topics.by_name(wanted.name or "") if by_name else topics.by_id(wanted.topic_id)
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        answer.error_code = int(error)
        answer.error_message = "This server does not host this topic."
        return answer
    try:
        topics.delete(topic)
    except OSError as exc:
        log.error("cannot delete topic %s: %s", topic.name, exc.strerror)
        answer.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
        return answer
    answer.name, answer.topic_id = topic.name, topic.topic_id
    return answer


def handle_describe_configs(
    topics: TopicStore,
    options: BrokerOptions,
    given: Mapping[str, str],
    exchange: Exchange,
    request: m.DescribeConfigsRequest,
) -> None:
    """Shows the settings of topics and of the broker; ``given`` are those it was started with."""
    response = m.DescribeConfigsResponse()
    for resource in request.resources:
        entry = m.DescribeConfigsResponseResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        if resource.resource_type == _TOPIC_RESOURCE:
            topic = topics.by_name(resource.resource_name)
            if topic is None:
                entry.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                entry.configs = _topic_settings(topic, options, given, request)
        elif resource.resource_type == _BROKER_RESOURCE:
            if resource.resource_name not in ("", str(options.node_id)):
                entry.error_code = int(ErrorCode.INVALID_REQUEST)
                entry.error_message = f"Unexpected broker id, expected {options.node_id} or empty string"
            else:
                entry.configs = _broker_settings(options, given, request)
        else:
            entry.error_code = int(ErrorCode.INVALID_REQUEST)
            entry.error_message = f"Unsupported resource type: {resource.resource_type}"
        keys = resource.configuration_keys
        entry.configs = [config for config in entry.configs if keys is None or config.name in keys]
        response.results.append(entry)
    exchange.reply(response)


_BROKER_NAME_OF = {
    "max.message.bytes": "message.max.bytes",
    "segment.bytes": "log.segment.bytes",
    "index.interval.bytes": "log.index.interval.bytes",
}


def _topic_settings(
    topic: Topic, options: BrokerOptions, given: Mapping[str, str], request: m.DescribeConfigsRequest
) -> list[m.DescribeConfigsResponseResourceResult]:
    shown = []
    for name, (kind, value) in sorted(topic_configs.defaults(options).items()):
        source = _STATIC_BROKER if _BROKER_NAME_OF.get(name, name) in given else _DEFAULT
        levels = [(_BROKER_NAME_OF.get(name, name), value, source)]
        if name in topic.configs:
            levels.insert(0, (name, topic.configs[name], _DYNAMIC_TOPIC))
        shown.append(_setting(name, kind, levels, request, read_only=False))
    return shown


def _broker_settings(
    options: BrokerOptions, given: Mapping[str, str], request: m.DescribeConfigsRequest
) -> list[m.DescribeConfigsResponseResourceResult]:
    shown = []
    for name, value in sorted(options.settings().items()):
        kind = topic_configs.BOOLEAN if value in ("true", "false") else topic_configs.INT
        source = _STATIC_BROKER if name in given else _DEFAULT
        shown.append(_setting(name, kind, [(name, value, source)], request, read_only=True))
    return shown


def _setting(
    name: str,
    kind: int,
    levels: list[tuple[str, str, int]],
    request: m.DescribeConfigsRequest,
    *,
    read_only: bool,
) -> m.DescribeConfigsResponseResourceResult:
    """One setting; ``levels`` are name, value and source, the one that holds first."""
    _, value, source = levels[0]
    synonyms = [m.DescribeConfigsResponseSynonym(name=n, value=v, source=s) for n, v, s in levels]
    return m.DescribeConfigsResponseResourceResult(
        name=name,
        value=value,
        read_only=read_only,
        config_source=source,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=kind,
        documentation=None,
    )
