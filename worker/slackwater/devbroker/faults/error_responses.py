"""Error responses: sets an error in the field where each API has it: top level, topic, partition or group.

Used for injected faults. ``matches(group, topic, partition)`` selects the items that get the error
(an argument is ``None`` where the API has no such field); the broker handles the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.schema import Request, Response, Struct

Matches = Callable[[str | None, Any, int | None], bool]
"""Group id, topic (name or id), partition -> whether the item gets the error."""
S = TypeVar("S", bound=Struct)

_FETCH_TOP_LEVEL = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


def changed(struct: S, **values: Any) -> S:
    """A copy of ``struct`` with other values."""
    return type(struct)(**{**vars(struct), **values})


def topic_key(topic: Any) -> Any:
    """The name of a request's topic, or its id if it has no name."""
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    return name or topic.topic_id


def is_top_level_in_fetch(code: ErrorCode) -> bool:
    """Whether a Fetch response has this error at the top level and not in partitions."""
    return code in _FETCH_TOP_LEVEL


def split(request: Request[Any], matches: Matches) -> tuple[Request[Any] | None, Request[Any] | None]:
    """Splits ``request`` into the part that gets the error and the part to handle; ``None``: empty."""
    name = type(request).__name__
    if name in _BY_PARTITION:
        topics_field, partitions_field, index_field = _BY_PARTITION[name]
        return _split_partitions(request, matches, topics_field, partitions_field, index_field)
    if name in _BY_ITEM:
        return _split_items(request, matches, *_BY_ITEM[name])
    return request, None


_BY_PARTITION = {
    "ProduceRequest": ("topic_data", "partition_data", "index"),
    "ListOffsetsRequest": ("topics", "partitions", "partition_index"),
    "OffsetForLeaderEpochRequest": ("topics", "partitions", "partition"),
    "OffsetCommitRequest": ("topics", "partitions", "partition_index"),
}
_BY_ITEM: dict[str, tuple[tuple[str, ...], str]] = {
    "CreateTopicsRequest": (("topics",), "topic"),
    "DeleteTopicsRequest": (("topics", "topic_names"), "topic"),
    "MetadataRequest": (("topics",), "topic"),
    "FindCoordinatorRequest": (("coordinator_keys",), "group"),
    "DescribeGroupsRequest": (("groups",), "group"),
    "DeleteGroupsRequest": (("groups_names",), "group"),
}


def _split_partitions(
    request: Request[Any], matches: Matches, topics_field: str, partitions_field: str, index_field: str
) -> tuple[Request[Any] | None, Request[Any] | None]:
    group = getattr(request, "group_id", None)
    hit: list[Any] = []
    rest: list[Any] = []
    for topic in getattr(request, topics_field):
        partitions = getattr(topic, partitions_field)
        chosen = [matches(group, topic_key(topic), getattr(part, index_field)) for part in partitions]
        for target, wanted in ((hit, True), (rest, False)):
            picked = [part for part, is_hit in zip(partitions, chosen, strict=True) if is_hit is wanted]
            if picked:
                target.append(changed(topic, **{partitions_field: picked}))
    return (
        changed(request, **{topics_field: hit}) if hit else None,
        changed(request, **{topics_field: rest}) if rest else None,
    )


def _split_items(
    request: Request[Any], matches: Matches, item_fields: tuple[str, ...], kind: str
) -> tuple[Request[Any] | None, Request[Any] | None]:
    hit: dict[str, list[Any]] = {}
    rest: dict[str, list[Any]] = {}
    for field in item_fields:
        for item in getattr(request, field) or []:
            key = item if isinstance(item, str) else topic_key(item)
            is_hit = matches(key, None, None) if kind == "group" else matches(None, key, None)
            (hit if is_hit else rest).setdefault(field, []).append(item)
    if not hit and not rest:
        return request, None
    return (
        changed(request, **{field: hit.get(field, []) for field in item_fields}) if hit else None,
        changed(request, **{field: rest.get(field, []) for field in item_fields}) if rest else None,
    )


_MERGED_LIST = {
    "ProduceResponse": "responses",
    "ListOffsetsResponse": "topics",
    "OffsetForLeaderEpochResponse": "topics",
    "OffsetCommitResponse": "topics",
    "CreateTopicsResponse": "topics",
    "DeleteTopicsResponse": "responses",
    "MetadataResponse": "topics",
    "FindCoordinatorResponse": "coordinators",
    "DescribeGroupsResponse": "groups",
    "DeleteGroupsResponse": "results",
}


def merge(handled: Response, failed: Response) -> Response:
    """The answer to the handled part, with the failed items added."""
    field = _MERGED_LIST[type(handled).__name__]
    return changed(handled, **{field: [*getattr(handled, field), *getattr(failed, field)]})


def error_response(request: Request[Any], version: int, code: ErrorCode, message: str) -> Response:
    """An answer to all of ``request`` with the error in every item."""
    maker = _MAKERS.get(type(request).__name__)
    if maker is not None:
        return maker(request, version, int(code), message)
    return _top_level(request.response_type, int(code), message)


def _top_level(response_type: type[Response], code: int, message: str) -> Response:
    response = response_type(error_code=code)
    if hasattr(response, "error_message"):
        response.error_message = message
    return response


def _produce(request: Any, version: int, code: int, message: str) -> Response:
    def part(index: int) -> m.ProduceResponsePartition:
        return m.ProduceResponsePartition(
            index=index, error_code=code, base_offset=-1, error_message=message if version >= 8 else None
        )

    return m.ProduceResponse(
        responses=[
            m.ProduceResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[part(p.index) for p in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: Any, version: int, code: int, message: str) -> Response:
    if code in _FETCH_TOP_LEVEL and version >= 7:
        return m.FetchResponse(error_code=code)
    topics = [
        m.FetchResponseTopic(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                m.FetchResponsePartition(
                    partition_index=part.partition, error_code=code, high_watermark=-1, records=b""
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return m.FetchResponse(responses=topics)


def _list_offsets(request: Any, version: int, code: int, message: str) -> Response:
    topics = [
        m.ListOffsetsResponseTopicResponse(
            name=topic.name,
            partitions=[
                m.ListOffsetsResponsePartitionResponse(partition_index=part.partition_index, error_code=code)
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return m.ListOffsetsResponse(topics=topics)


def _offset_for_leader_epoch(request: Any, version: int, code: int, message: str) -> Response:
    topics = [
        m.OffsetForLeaderEpochResponseTopic(
            topic=topic.topic,
            partitions=[
                m.OffsetForLeaderEpochResponsePartition(partition=part.partition, error_code=code)
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return m.OffsetForLeaderEpochResponse(topics=topics)


def _offset_commit(request: Any, version: int, code: int, message: str) -> Response:
    topics = [
        m.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                m.OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return m.OffsetCommitResponse(topics=topics)


_OF_A_MEMBER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
_MEMBERS_IN_LEAVE = 3


def _leave_group(request: Any, version: int, code: int, message: str) -> Response:
    """From version 3 on a member's error is in its entry, and the top level has NONE (KIP-345)."""
    if version < _MEMBERS_IN_LEAVE or code not in _OF_A_MEMBER:
        return m.LeaveGroupResponse(error_code=code)
    members = [
        m.LeaveGroupResponseMember(
            member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
        )
        for member in request.members
    ]
    return m.LeaveGroupResponse(members=members)


def _join_group(request: Any, version: int, code: int, message: str) -> Response:
    member_id = request.member_id
    if code == ErrorCode.MEMBER_ID_REQUIRED:
        member_id = f"{request.group_id}-a-fault-gave-this"
    return m.JoinGroupResponse(error_code=code, member_id=member_id)


def _metadata(request: Any, version: int, code: int, message: str) -> Response:
    if code == ErrorCode.REBOOTSTRAP_REQUIRED and version >= 13:
        return m.MetadataResponse(error_code=code)
    return m.MetadataResponse(
        topics=[
            m.MetadataResponseTopic(error_code=code, name=topic.name, topic_id=topic.topic_id)
            for topic in request.topics or []
        ]
    )


def _create_topics(request: Any, version: int, code: int, message: str) -> Response:
    return m.CreateTopicsResponse(
        topics=[
            m.CreateTopicsResponseTopic(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


def _delete_topics(request: Any, version: int, code: int, message: str) -> Response:
    answers = [
        m.DeleteTopicsResponseTopic(name=t.name, topic_id=t.topic_id, error_code=code, error_message=message)
        for t in request.topics
    ]
    answers += [
        m.DeleteTopicsResponseTopic(name=name, error_code=code, error_message=message)
        for name in request.topic_names
    ]
    return m.DeleteTopicsResponse(responses=answers)


def _describe_configs(request: Any, version: int, code: int, message: str) -> Response:
    return m.DescribeConfigsResponse(
        results=[
            m.DescribeConfigsResponseResult(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _find_coordinator(request: Any, version: int, code: int, message: str) -> Response:
    if version < 4:
        return m.FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, port=-1)
    return m.FindCoordinatorResponse(
        coordinators=[
            m.FindCoordinatorResponseCoordinator(
                key=key, node_id=-1, port=-1, error_code=code, error_message=message
            )
            for key in request.coordinator_keys
        ]
    )


def _describe_groups(request: Any, version: int, code: int, message: str) -> Response:
    return m.DescribeGroupsResponse(
        groups=[
            m.DescribeGroupsResponseGroup(
                group_id=group, error_code=code, error_message=message if version >= 6 else None
            )
            for group in request.groups
        ]
    )


def _delete_groups(request: Any, version: int, code: int, message: str) -> Response:
    return m.DeleteGroupsResponse(
        results=[m.DeleteGroupsResponseResult(group_id=g, error_code=code) for g in request.groups_names]
    )


def _offset_fetch(request: Any, version: int, code: int, message: str) -> Response:
    if version >= 8:
        groups = [m.OffsetFetchResponseGroup(group_id=g.group_id, error_code=code) for g in request.groups]
        return m.OffsetFetchResponse(groups=groups)
    # Version 1 has no top-level error, so versions below 8 also set it in every partition.
    topics = [
        m.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                m.OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, metadata="", error_code=code
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or []
    ]
    return m.OffsetFetchResponse(topics=topics, error_code=code)


_MAKERS: dict[str, Callable[[Any, int, int, str], Response]] = {
    "ProduceRequest": _produce,
    "FetchRequest": _fetch,
    "ListOffsetsRequest": _list_offsets,
    "OffsetForLeaderEpochRequest": _offset_for_leader_epoch,
    "OffsetCommitRequest": _offset_commit,
    "OffsetFetchRequest": _offset_fetch,
    "MetadataRequest": _metadata,
    "JoinGroupRequest": _join_group,
    "LeaveGroupRequest": _leave_group,
    "CreateTopicsRequest": _create_topics,
    "DeleteTopicsRequest": _delete_topics,
    "DescribeConfigsRequest": _describe_configs,
    "FindCoordinatorRequest": _find_coordinator,
    "DescribeGroupsRequest": _describe_groups,
    "DeleteGroupsRequest": _delete_groups,
}


def with_offset_fetch_errors(
    response: m.OffsetFetchResponse, matches: Matches, code: ErrorCode, group_id: str
) -> m.OffsetFetchResponse:
    """``response`` with the error in the partitions that match (OffsetFetch v1 to v10)."""
    for group in response.groups:
        for topic in group.topics:
            for part in topic.partitions:
                if matches(group.group_id, topic_key(topic), part.partition_index):
                    part.error_code, part.committed_offset, part.metadata = int(code), -1, ""
    for old_topic in response.topics:
        for old in old_topic.partitions:
            if matches(group_id, old_topic.name, old.partition_index):
                old.error_code, old.committed_offset, old.metadata = int(code), -1, ""
    return response


def with_metadata_errors(
    response: m.MetadataResponse, matches: Matches, code: ErrorCode, *, by_partition: bool = False
) -> m.MetadataResponse:
    """``response`` with the error in the topics that match, or (``by_partition``) in their partitions."""
    if code == ErrorCode.REBOOTSTRAP_REQUIRED:
        return m.MetadataResponse(error_code=int(code))
    for topic in response.topics:
        if by_partition:
            for part in topic.partitions:
                if matches(None, topic_key(topic), part.partition_index):
                    part.error_code, part.leader_id = int(code), -1
            continue
        if matches(None, topic_key(topic), None):
            topic.error_code, topic.partitions = int(code), []
    return response
