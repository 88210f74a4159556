"""The requests of a round: one to each broker that knows something, and what the answers say.

An answer holds an outcome for each group or partition, which may be an error: nothing is repeated here but
what a broker has sent elsewhere (a coordinator or a leader that has moved), once. The next round is soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import TypeVar

from slackwater.kafka.admin.results import ResourceType
from slackwater.kafka.errors import (
    CoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NotCoordinatorError,
    for_code,
)
from slackwater.kafka.group_states import DEAD, MEMBER_PROTOCOLS, STABLE
from slackwater.kafka.net import Cluster
from slackwater.kafka.net.connection import ByVersion
from slackwater.kafka.net.group_protocols import (
    OtherGroup,
    describe_others,
    partitions_of,
    progress_of,
    state_of,
)
from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.protocol.assignors import owner_in, owner_of
from slackwater.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from slackwater.kafka.protocol.metadata import ANY_NODE
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, ErrorCode
from slackwater.kafka.wire.schema import Request, Response
from slackwater.runtime.delivery.partition import CommitNote
from slackwater_operator.model.group import GroupView, MemberView

R = TypeVar("R", bound=Response)
T = TypeVar("T")

Committed = dict[TopicPartition, "int | KafkaError"]

_AT_ONCE = 500
"""So many groups are asked for in one request: more would hold the event loop up for too long."""
_MOVED = (NotCoordinatorError, CoordinatorNotAvailableError, KafkaConnectionError)


class Asking:
    """One round's requests. What has no answer by `deadline` (the loop's time, s) fails with a timeout."""

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        self._cluster, self._deadline = cluster, deadline
        self.answers = 0
        """How many requests were answered."""
        self.coordinators: dict[str, int] = {}
        """The node that has described each group."""
        self.handled: dict[str, dict[TopicPartition, int]] = {}
        """By group, up to where workers have handled records that they have not written and committed yet
        (`sink.maxAge`), as their commits say."""

    # ---- groups

    async def find(self, groups: Collection[str]) -> dict[str, int | KafkaError]:
        """Each group's coordinator; asks for those that are not known, in one request."""
        try:
            return await self._in_time(self._cluster.coordinators(list(groups)), "FindCoordinator")
        except KafkaError as error:
            return dict.fromkeys(groups, error)

    async def describe(self, groups: Collection[str]) -> dict[str, GroupView | KafkaError]:
        """DescribeGroups, one request a coordinator. A group that does not exist is `Dead`.

        DescribeGroups calls groups of other protocols Dead as well: `describe_others`.
        """

        async def some(node_id: int, groups: list[str]) -> dict[str, GroupView | KafkaError]:
            answer = await self._send(node_id, m.DescribeGroupsRequest(groups=groups))
            self.coordinators.update(dict.fromkeys(groups, node_id))
            views = {group.group_id: _group(group) for group in answer.groups}
            dead = [group for group, view in views.items() if view == GroupView(DEAD)]
            others = await describe_others(dead, partial(self._send, node_id)) if dead else {}
            return {**views, **{group: _other_group(other) for group, other in others.items()}}

        async def ask(node_id: int, at_node: list[str]) -> dict[str, GroupView | KafkaError]:
            return await _in_parts(at_node, _AT_ONCE, partial(some, node_id))

        return await self._by_coordinator(groups, ask)

    async def configs(self, groups: Collection[str], names: Collection[str]) -> dict[str, dict[str, int]]:
        """DescribeConfigs: configs of groups, which are numbers, by group and name; without those that the
        broker does not have, or the user may not describe. Raises KafkaError where no broker answers."""
        resources = [
            m.DescribeConfigsRequestResource(
                resource_type=ResourceType.GROUP, resource_name=group, configuration_keys=[*names]
            )
            for group in groups
        ]
        answer = await self._send(ANY_NODE, m.DescribeConfigsRequest(resources=resources))
        return {
            result.resource_name: {entry.name: int(entry.value) for entry in result.configs if entry.value}
            for result in answer.results
        }

    async def committed(self, groups: Collection[str]) -> dict[str, Committed | KafkaError]:
        """OffsetFetch, one request a coordinator; before Kafka 3.0 (KIP-709) one a group."""

        async def ask(node_id: int, at_node: list[str]) -> dict[str, Committed | KafkaError]:
            connection = await self._in_time(self._cluster.connection(node_id), f"broker {node_id}")
            version = connection.version_of(m.OffsetFetchRequest, o.LAST_BY_NAME)
            several = version >= o.BATCHED_OFFSET_FETCH
            return await _in_parts(at_node, _AT_ONCE if several else 1, partial(self._fetch, node_id))

        return await self._by_coordinator(groups, ask)

    async def _fetch(self, node_id: int, groups: list[str]) -> dict[str, Committed | KafkaError]:
        request = ByVersion(m.OffsetFetchRequest, partial(o.offset_fetch_of_groups, groups, None))
        answer = await self._send(node_id, request, version_cap=o.LAST_BY_NAME)
        offsets = o.read_offset_fetch_of_groups(answer, groups[0])
        cluster_id = self._cluster.metadata.cluster_id or ""
        self.handled.update({group: _handled(committed, cluster_id) for group, committed in offsets.items()})
        return {group: _committed(group, committed) for group, committed in offsets.items()}

    async def _by_coordinator(
        self,
        groups: Collection[str],
        ask: Callable[[int, list[str]], Awaitable[Mapping[str, T | KafkaError]]],
    ) -> dict[str, T | KafkaError]:
        results = await self._at_coordinators(groups, ask)
        moved = _forget_moved(self._cluster, results)
        if moved:
            results.update(await self._at_coordinators(moved, ask))
            _forget_moved(self._cluster, results)
        return results

    async def _at_coordinators(
        self,
        groups: Collection[str],
        ask: Callable[[int, list[str]], Awaitable[Mapping[str, T | KafkaError]]],
    ) -> dict[str, T | KafkaError]:
        nodes: dict[int, list[str]] = {}
        results: dict[str, T | KafkaError] = {}
        for group, node in (await self.find(groups)).items():
            if isinstance(node, int):
                nodes.setdefault(node, []).append(group)
            else:
                results[group] = node

        async def at(node_id: int, at_node: list[str]) -> Mapping[str, T | KafkaError]:
            try:
                return await ask(node_id, at_node)
            except KafkaError as error:
                return dict.fromkeys(at_node, error)

        for part in await asyncio.gather(*(at(node_id, some) for node_id, some in nodes.items())):
            results.update(part)
        for group in groups:
            results.setdefault(group, KafkaError(f"the broker's response does not contain group {group!r}"))
        return results

    # ---- partitions

    async def offsets(
        self, partitions: Iterable[TopicPartition], which: int, *, read_committed: bool
    ) -> dict[TopicPartition, int | KafkaError]:
        """ListOffsets, one request a leader. `which`: `EARLIEST` or `LATEST`; with `read_committed` the end
        is that of the decided transactions.
        """
        results = await self._at_leaders(partitions, which, read_committed)
        moved = [
            partition
            for partition, result in results.items()
            if isinstance(result, KafkaError) and result.invalid_metadata
        ]
        if moved:
            await self.refresh()
            results.update(await self._at_leaders(moved, which, read_committed))
        return results

    async def refresh(self) -> KafkaError | None:
        """Asks for metadata; gives why that failed."""
        try:
            await self._in_time(self._cluster.refresh(), "Metadata")
        except KafkaError as error:
            return error
        self.answers += 1
        return None

    async def _at_leaders(
        self, partitions: Iterable[TopicPartition], which: int, read_committed: bool
    ) -> dict[TopicPartition, int | KafkaError]:
        metadata = self._cluster.metadata
        nodes: dict[int, list[TopicPartition]] = {}
        results: dict[TopicPartition, int | KafkaError] = {}
        for partition in partitions:
            leader = metadata.leader(partition)
            if leader is None:
                results[partition] = for_code(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
            else:
                nodes.setdefault(leader, []).append(partition)

        async def at(node_id: int, some: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
            try:
                answer = await self._send(node_id, self._list_offsets(some, which, read_committed))
            except KafkaError as error:
                return dict.fromkeys(some, error)
            return {
                TopicPartition(topic.name, partition.partition_index): _offset(topic.name, partition)
                for topic in answer.topics
                for partition in topic.partitions
            }

        for part in await asyncio.gather(*(at(node_id, some) for node_id, some in nodes.items())):
            results.update(part)
        return results

    def _list_offsets(
        self, partitions: list[TopicPartition], which: int, read_committed: bool
    ) -> m.ListOffsetsRequest:
        topics: dict[str, m.ListOffsetsRequestTopic] = {}
        for partition in partitions:
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = m.ListOffsetsRequestTopic(name=partition.topic)
            topic.partitions.append(
                m.ListOffsetsRequestPartition(
                    partition_index=partition.partition,
                    current_leader_epoch=self._cluster.metadata.leader_epoch(partition),
                    timestamp=which,
                )
            )
        return m.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=list(topics.values()),
            timeout_ms=self._cluster.settings.request_timeout_ms,
        )

    # ---- sending

    async def _send(
        self, node_id: int, request: Request[R] | ByVersion[R], *, version_cap: int | None = None
    ) -> R:
        sent = self._cluster.send(node_id, request, version_cap=version_cap)
        answer = await self._in_time(sent, f"broker {node_id}")
        self.answers += 1
        return answer

    async def _in_time(self, call: Awaitable[T], whom: str) -> T:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await call
        except KafkaError:
            raise
        except TimeoutError as exc:
            raise KafkaTimeoutError(f"{whom}: no response in time") from exc


async def _in_parts(
    groups: list[str],
    size: int,
    ask: Callable[[list[str]], Awaitable[Mapping[str, T | KafkaError]]],
) -> dict[str, T | KafkaError]:
    """`ask` for parts of at most `size` groups, all at the same time; one that fails fails for its groups."""

    async def part(some: list[str]) -> Mapping[str, T | KafkaError]:
        try:
            return await ask(some)
        except KafkaError as error:
            return dict.fromkeys(some, error)

    parts = (groups[at : at + size] for at in range(0, len(groups), size))
    return {
        group: result
        for results in await asyncio.gather(*map(part, parts))
        for group, result in results.items()
    }


def _forget_moved(cluster: Cluster, results: Mapping[str, object]) -> list[str]:
    """The groups that are to be looked for again: their coordinator has moved, or is away."""
    moved = [group for group, result in results.items() if isinstance(result, _MOVED)]
    for group in moved:
        cluster.forget_coordinator(group)
    return moved


def _committed(group_id: str, answer: o.FetchedGroupOffsets) -> Committed | KafkaError:
    if answer.error_code:
        return for_code(answer.error_code, f"committed offsets of group {group_id!r}")
    committed: Committed = {tp: entry.offset for tp, entry in answer.offsets.items() if entry is not None}
    for tp, code in answer.errors.items():
        committed[tp] = for_code(code, f"committed offset of {tp} in group {group_id!r}")
    return committed


def _handled(answer: o.FetchedGroupOffsets, cluster_id: str) -> dict[TopicPartition, int]:
    """Of the partitions whose commits say it; not of offsets that were mirrored from another cluster."""
    handled = {}
    for tp, entry in answer.offsets.items():
        if entry is not None and '"handled":' in entry.metadata:
            note = CommitNote.decode(entry.metadata)
            if note is not None and note.handled is not None and not note.mirrored(cluster_id):
                handled[tp] = max(entry.offset, note.handled)
    return handled


def _offset(topic: str, answer: m.ListOffsetsResponsePartitionResponse) -> int | KafkaError:
    if answer.error_code:
        return for_code(answer.error_code, f"offset of {topic}-{answer.partition_index}")
    return answer.offset


def _group(answer: m.DescribeGroupsResponseGroup) -> GroupView | KafkaError:
    # A group that is not there: Dead up to v5, GROUP_ID_NOT_FOUND from v6 on (KIP-1043).
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return GroupView(DEAD)
    if answer.error_code:
        return for_code(answer.error_code, f"group {answer.group_id!r}")
    consumers = answer.protocol_type == PROTOCOL_TYPE
    return GroupView(
        answer.group_state,
        tuple(_member(member, answer.group_state, consumers) for member in answer.members),
        answer.protocol_data if consumers else "",
    )


def _other_group(answer: OtherGroup | KafkaError) -> GroupView | KafkaError:
    """A group that is not of the classic protocol; one that cannot be described has a member that stands for
    all of them."""
    if isinstance(answer, KafkaError):
        return answer
    if isinstance(answer, m.ListGroupsResponseGroup):
        member = MemberView(f"a {answer.group_type.lower()} group", None, frozenset(), synced=False)
        return GroupView(answer.group_state, (member,))
    state = state_of(answer)
    # The assignor is the broker's, which no worker names.
    members = tuple(_consumer(member, answer, state) for member in answer.members)
    return GroupView(state, members, consumer_protocol=True)


def _consumer(
    answer: m.ConsumerGroupDescribeResponseMember, group: m.ConsumerGroupDescribeResponseGroup, state: str
) -> MemberView:
    return MemberView(
        member_id=answer.member_id,
        instance_id=answer.instance_id,
        partitions=frozenset(partitions_of(answer.assignment)),
        synced=state == STABLE,
        client_id=answer.client_id,
        host=answer.client_host,
        owner=owner_in(answer.member_id),
        topics=frozenset(answer.subscribed_topic_names) if not answer.subscribed_topic_regex else None,
        protocol=MEMBER_PROTOCOLS.get(answer.member_type, ""),
        progress=progress_of(answer, group),
    )


def _member(answer: m.DescribeGroupsResponseMember, state: str, consumers: bool) -> MemberView:
    return MemberView(
        member_id=answer.member_id,
        instance_id=answer.group_instance_id,
        partitions=_assigned(answer.member_assignment) if consumers else frozenset(),
        synced=state == STABLE and bool(answer.member_assignment),
        # Not who is the member now: of a static member it is the first joiner's (`MemberView.client_id`).
        client_id=answer.client_id,
        host=answer.client_host,
        owner=_owner(answer.member_metadata) if consumers else "",
        # Of a group that is not Stable a broker gives no metadata.
        topics=_subscribed(answer.member_metadata) if consumers and answer.member_metadata else None,
    )


@lru_cache(maxsize=16_384)
def _owner(metadata: bytes) -> str:
    """Whom a member's subscription is marked with; "" without a mark, and where the broker shows none (in a
    group that is not Stable)."""
    try:
        return owner_of(decode_subscription(metadata).user_data) if metadata else ""
    except DecodeError:
        return ""


@lru_cache(maxsize=16_384)
def _assigned(data: bytes) -> frozenset[TopicPartition]:
    """The partitions of an assignment, which is the same from round to round; none if it cannot be read."""
    try:
        return frozenset(decode_assignment(data))
    except DecodeError:
        return frozenset()


@lru_cache(maxsize=16_384)
def _subscribed(data: bytes) -> frozenset[str] | None:
    """The topics of a subscription; None if it cannot be read."""
    try:
        return frozenset(decode_subscription(data).topics)
    except DecodeError:
        return None
