"""CreateTopics, DeleteTopics and DescribeConfigs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from slackwater.devbroker.api import topic_configs
from slackwater.devbroker.network.connection import Exchange
from slackwater.devbroker.options import BrokerOptions
from slackwater.devbroker.storage.topics import StoredTopic, TopicStore, is_known_id, is_legal_topic_name
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_DYNAMIC_TOPIC, _STATIC_BROKER, _DEFAULT = 1, 4, 5
MAX_PARTITIONS = 10_000
"""Each partition is a folder and an open file; a mistyped number must not exhaust the machine."""


def handle_create_topics(
    topics: TopicStore, options: BrokerOptions, exchange: Exchange, request: m.CreateTopicsRequest
) -> None:
    """Creates topics; the error of one does not affect the others."""
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
        reason = f"This broker allows at most {MAX_PARTITIONS} partitions per topic."
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
            log.error("cannot create topic %s: %s", wanted.name, exc.strerror)
            return m.CreateTopicsResponseTopic(
                name=wanted.name,
                error_code=int(ErrorCode.KAFKA_STORAGE_ERROR),
                error_message=f"cannot create topic {wanted.name}: {exc.strerror}",
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
    """Describes the settings of topics and of the broker; ``given``: those the broker was started with."""
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
    topic: StoredTopic, options: BrokerOptions, given: Mapping[str, str], request: m.DescribeConfigsRequest
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
    """One setting; ``levels`` are (name, value, source), the effective one first."""
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
