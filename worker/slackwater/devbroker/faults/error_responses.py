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


_TOPICS, _PARTITIONS = ("topics", "topic_data"), ("partitions", "partition_data")
_INDEXES = ("partition_index", "partition", "index")
"""What the APIs call a request's topics, a topic's partitions, and a partition's number."""


def _name_in(struct: Any, names: tuple[str, ...]) -> str:
    return next(name for name in names if hasattr(struct, name))


def partition_index(part: Any) -> int:
    """The number of a request's partition."""
    return int(getattr(part, _name_in(part, _INDEXES)))


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
        return _split_partitions(request, matches)
    if name in _BY_ITEM:
        return _split_items(request, matches, *_BY_ITEM[name])
    return request, None


_BY_PARTITION = {
    "ProduceRequest",
    "ListOffsetsRequest",
    "OffsetForLeaderEpochRequest",
    "OffsetCommitRequest",
}
_BY_ITEM: dict[str, tuple[tuple[str, ...], str]] = {
    "CreateTopicsRequest": (("topics",), "topic"),
    "DeleteTopicsRequest": (("topics", "topic_names"), "topic"),
    "MetadataRequest": (("topics",), "topic"),
    "FindCoordinatorRequest": (("coordinator_keys",), "group"),
    "DescribeGroupsRequest": (("groups",), "group"),
    "ConsumerGroupDescribeRequest": (("group_ids",), "group"),
    "DeleteGroupsRequest": (("groups_names",), "group"),
}


def _split_partitions(
    request: Request[Any], matches: Matches
) -> tuple[Request[Any] | None, Request[Any] | None]:
    group = getattr(request, "group_id", None)
    topics_field = _name_in(request, _TOPICS)
    hit: list[Any] = []
    rest: list[Any] = []
    for topic in getattr(request, topics_field):
        partitions_field = _name_in(topic, _PARTITIONS)
        partitions = getattr(topic, partitions_field)
        chosen = [matches(group, topic_key(topic), partition_index(part)) for part in partitions]
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
    "ConsumerGroupDescribeResponse": "groups",
    "DeleteGroupsResponse": "results",
}


def merge(handled: Response, failed: Response) -> Response:
    """The answer to the handled part, with the failed items added."""
    field = _MERGED_LIST[type(handled).__name__]
    return changed(handled, **{field: [*getattr(handled, field), *getattr(failed, field)]})


_LISTS = (
    *(*_TOPICS, *_PARTITIONS, "topic_names", "resources", "coordinator_keys"),
    *("groups", "groups_names", "group_ids", "members"),
)
"""What a request is about; a plain text in such a list is the first of the keys that the answer has."""
_KEYS = (
    *("name", "key", "group_id", "topic", "topic_id", "member_id", "group_instance_id"),
    *("resource_type", "resource_name"),
)
"""What an item of an answer repeats of the request's, beside a partition's number."""
_NONE: dict[type[Struct], dict[str, Any]] = {
    m.ProduceResponsePartition: {"base_offset": -1},
    m.FetchResponsePartition: {"high_watermark": -1, "records": b""},
    m.FindCoordinatorResponse: {"node_id": -1, "port": -1},
    m.FindCoordinatorResponseCoordinator: {"node_id": -1, "port": -1},
}
"""What stands for nothing in other fields of an item with an error, where that is not the default."""


def error_response(request: Request[Any], version: int, code: ErrorCode, message: str) -> Response:
    """An answer to all of ``request`` with the error in every item."""
    maker = _MAKERS.get(type(request).__name__, _in_items)
    return maker(request, version, int(code), message)


def _in_items(request: Any, version: int, code: int, message: str) -> Response:
    """The error in each item that the request is about, or at the top where the answer has no items."""
    kind: type[Response] = request.response_type
    if _errors_in(kind) is None:
        return _failed(kind, version, code, message, {})
    return _answer(kind, request, version, code, message)


def _at_the_top(request: Any, version: int, code: int, message: str) -> Response:
    kind: type[Response] = request.response_type
    return _failed(kind, version, code, message, {})


def _errors_in(kind: type[Struct]) -> tuple[str, type[Struct]] | None:
    """The list in ``kind`` whose items, or items within them, have the error, and their type."""
    for field in kind._fields:
        item = getattr(field.type, "_item", None)
        if isinstance(item, type) and (_has(item, "error_code") or _errors_in(item)):
            return field.name, item
    return None


def _has(kind: type[Struct], name: str) -> bool:
    return any(field.name == name for field in kind._fields)


def _failed(kind: type[S], version: int, code: int, message: str, values: dict[str, Any]) -> S:
    if any(field.name == "error_message" and field.present(version) for field in kind._fields):
        values = {**values, "error_message": message}
    return kind(error_code=code, **_NONE.get(kind, {}), **values)


def _answer(kind: type[S], about: Any, version: int, code: int, message: str) -> S:
    """A ``kind`` for a request, or for a part of it, with the error in its items."""
    listed = _errors_in(kind)
    assert listed is not None
    name, item_kind = listed
    items = [item for field in _LISTS for item in getattr(about, field, None) or []]
    made = []
    for item in items:
        plain = isinstance(item, str)
        keys = [key for key in _KEYS if _has(item_kind, key) and (plain or hasattr(item, key))]
        values = {keys[0]: item} if plain else {key: getattr(item, key) for key in keys}
        if _has(item_kind, "error_code"):
            values |= {key: partition_index(item) for key in _INDEXES if _has(item_kind, key)}
            made.append(_failed(item_kind, version, code, message, values))
        else:
            made.append(changed(_answer(item_kind, item, version, code, message), **values))
    return kind(**{name: made})


def _fetch(request: Any, version: int, code: int, message: str) -> Response:
    at_the_top = code in _FETCH_TOP_LEVEL and version >= 7
    return (_at_the_top if at_the_top else _in_items)(request, version, code, message)


_OF_A_MEMBER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
_MEMBERS_IN_LEAVE = 3


def _leave_group(request: Any, version: int, code: int, message: str) -> Response:
    """From version 3 on a member's error is in its entry, and the top level has NONE (KIP-345)."""
    of_a_member = version >= _MEMBERS_IN_LEAVE and code in _OF_A_MEMBER
    return (_in_items if of_a_member else _at_the_top)(request, version, code, message)


def _join_group(request: Any, version: int, code: int, message: str) -> Response:
    member_id = request.member_id
    if code == ErrorCode.MEMBER_ID_REQUIRED:
        member_id = f"{request.group_id}-a-fault-gave-this"
    return m.JoinGroupResponse(error_code=code, member_id=member_id)


def _metadata(request: Any, version: int, code: int, message: str) -> Response:
    at_the_top = code == ErrorCode.REBOOTSTRAP_REQUIRED and version >= 13
    return (_at_the_top if at_the_top else _in_items)(request, version, code, message)


def _find_coordinator(request: Any, version: int, code: int, message: str) -> Response:
    return (_at_the_top if version < 4 else _in_items)(request, version, code, message)


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
    "FetchRequest": _fetch,
    "OffsetFetchRequest": _offset_fetch,
    "MetadataRequest": _metadata,
    "JoinGroupRequest": _join_group,
    "LeaveGroupRequest": _leave_group,
    "FindCoordinatorRequest": _find_coordinator,
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
