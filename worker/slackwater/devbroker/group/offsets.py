"""OffsetCommit and OffsetFetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from slackwater.devbroker.group.config import GroupConfig, TopicLookup
from slackwater.devbroker.group.consumer.group import ConsumerGroup, Part
from slackwater.devbroker.group.group import Group, GroupError, GroupState
from slackwater.devbroker.group.rebalance import Rebalancer
from slackwater.devbroker.group.store import GroupStore, GroupStoreError, OffsetRecord
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from slackwater.kafka.wire.primitives import ZERO_UUID

_TOPIC_IDS_FROM = 10
_GROUP_ID_NOT_FOUND_FROM = _EPOCHS_FROM = 9
_GROUPS_FROM = 8
_TOP_LEVEL_ERROR_FROM = 2
_REFRESHING = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)


class OffsetHandler:
    """Commits offsets to the store and reads them from its image."""

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        rebalancer: Rebalancer,
        groups: dict[str, Group],
        consumer_groups: dict[str, ConsumerGroup],
        topics: TopicLookup,
    ) -> None:
        self._config = config
        self._store = store
        self._rebalancer = rebalancer
        self._groups, self._consumer_groups = groups, consumer_groups
        self._topics = topics

    # -- commit

    def commit(
        self, request: m.OffsetCommitRequest, version: int, unavailable: ErrorCode
    ) -> m.OffsetCommitResponse:
        """Commits the valid partitions; every partition has its own error.

        Partitions that do not exist are refused before the group is asked, and a commit of
        nothing else never reaches it. ``unavailable``: the error of a coordinator that does not
        serve, or NONE.
        """
        answer = _CommitAnswer(version)
        valid = [
            partition for topic in request.topics for partition in self._existing(topic, version, answer)
        ]
        if not valid:
            return answer.response
        of_parts: dict[Part, ErrorCode] = {}
        group = self._consumer_groups.get(request.group_id)
        if group is None or unavailable:
            error = unavailable or self._check_group(request, version)
        else:
            error, of_parts = self._check_consumer_group(group, request, version, valid)
        records = []
        for name, topic_id, partition in valid:
            code = error
            if of_parts and not code:
                code = of_parts.get(self._part(name, partition), ErrorCode.NONE)
            code = code or self._check_metadata(partition.committed_metadata)
            answer.add(name, topic_id, partition.partition_index, code)
            if code is ErrorCode.NONE:
                records.append(_offset_record(request.group_id, name, partition))
        if records:
            try:
                self._store.append(records)
            except GroupStoreError:
                answer.fail(valid, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return answer.response

    def _existing(
        self, topic: m.OffsetCommitRequestTopic, version: int, answer: _CommitAnswer
    ) -> list[tuple[str, UUID, m.OffsetCommitRequestPartition]]:
        name: str | None = topic.name
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= _TOPIC_IDS_FROM:
            name, unknown = self._topics.topic_name(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        count = None if name is None else self._topics.partition_count(name)
        existing = []
        for partition in topic.partitions:
            if name is None or count is None:
                answer.add(topic.name, topic.topic_id, partition.partition_index, unknown)
            elif not 0 <= partition.partition_index < count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.add(name, topic.topic_id, partition.partition_index, error)
            else:
                existing.append((name, topic.topic_id, partition))
        return existing

    def _check_group(self, request: m.OffsetCommitRequest, version: int) -> ErrorCode:
        """The error of the commit as a whole; an accepted commit restarts the member's session."""
        generation = request.generation_id_or_member_epoch
        group = self._groups.get(request.group_id)
        if group is None:
            if generation >= 0:
                newer = version >= _GROUP_ID_NOT_FOUND_FROM
                return ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION
            # A consumer that only stores offsets, or an administrator: such a group has no members.
            group = self._groups[request.group_id] = Group(request.group_id)
        try:
            _check_commit(group, request)
        except GroupError as exc:
            return exc.code
        member = group.members.get(request.member_id)
        if member is not None and group.state in _REFRESHING:
            self._rebalancer.restart_session(group, member)
        return ErrorCode.NONE

    def _check_consumer_group(
        self,
        group: ConsumerGroup,
        request: m.OffsetCommitRequest,
        version: int,
        valid: Sequence[tuple[str, UUID, m.OffsetCommitRequestPartition]],
    ) -> tuple[ErrorCode, dict[Part, ErrorCode]]:
        """The error of the commit as a whole, and of single partitions. It does not restart a session."""
        epoch = request.generation_id_or_member_epoch
        parts = [self._part(name, partition) for name, _, partition in valid]
        try:
            of_parts = group.check_commit(request.member_id, epoch, parts, by_epoch=version >= _EPOCHS_FROM)
            return ErrorCode.NONE, of_parts
        except GroupError as exc:
            return exc.code, {}

    def _part(self, name: str, partition: m.OffsetCommitRequestPartition) -> Part:
        return self._topics.topic_id(name) or ZERO_UUID, partition.partition_index

    def _check_metadata(self, metadata: str | None) -> ErrorCode:
        units = len((metadata or "").encode("utf-16-le", "surrogatepass")) // 2
        too_large = units > self._config.max_offset_metadata_chars
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE

    # -- fetch

    def fetch(
        self, request: m.OffsetFetchRequest, version: int, unavailable: ErrorCode
    ) -> m.OffsetFetchResponse:
        """Reads committed offsets. ``require_stable`` changes nothing: there are no transactions.

        ``unavailable`` as in :meth:`commit`.
        """
        if version >= _GROUPS_FROM:
            groups = [self._fetch_group(group, version, unavailable) for group in request.groups]
            return m.OffsetFetchResponse(groups=groups)
        return self._fetch_single(request, version, unavailable)

    def _fetch_single(
        self, request: m.OffsetFetchRequest, version: int, unavailable: ErrorCode
    ) -> m.OffsetFetchResponse:
        """Versions 1 to 7 in terms of version 8."""
        topics = None
        if request.topics is not None:
            topics = [
                m.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            ]
        if unavailable and version < _TOP_LEVEL_ERROR_FROM:
            made = [
                _failed_topic(topic.name, ZERO_UUID, topic.partition_indexes, unavailable)
                for topic in topics or []
            ]
            return m.OffsetFetchResponse(topics=[_as_old_topic(topic) for topic in made])
        group = m.OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
        answer = self._fetch_group(group, _GROUPS_FROM, unavailable)
        return m.OffsetFetchResponse(
            error_code=answer.error_code, topics=[_as_old_topic(topic) for topic in answer.topics]
        )

    def _fetch_group(
        self, request: m.OffsetFetchRequestGroup, version: int, unavailable: ErrorCode
    ) -> m.OffsetFetchResponseGroup:
        answer = m.OffsetFetchResponseGroup(group_id=request.group_id, error_code=unavailable)
        if unavailable:
            return answer
        consumers = self._consumer_groups.get(request.group_id)
        if consumers is not None:
            try:
                consumers.check_fetch(request.member_id, request.member_epoch)
            except GroupError as exc:
                answer.error_code = exc.code
                return answer
        stored = self._store.image.group_offsets(request.group_id)
        if request.topics is None:
            for name, partitions in stored.items():
                topic_id = self._topics.topic_id(name) if version >= _TOPIC_IDS_FROM else ZERO_UUID
                if topic_id is not None:
                    offsets = [_fetched(index, record) for index, record in sorted(partitions.items())]
                    answer.topics.append(
                        m.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=offsets)
                    )
            return answer
        for topic in request.topics:
            by_id = version >= _TOPIC_IDS_FROM
            topic_name = self._topics.topic_name(topic.topic_id) if by_id else topic.name
            if topic_name is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
                answer.topics.append(_failed_topic("", topic.topic_id, topic.partition_indexes, error))
                continue
            partitions = stored.get(topic_name, {})
            offsets = [_fetched(index, partitions.get(index)) for index in topic.partition_indexes]
            answer.topics.append(
                m.OffsetFetchResponseTopics(name=topic_name, topic_id=topic.topic_id, partitions=offsets)
            )
        return answer

    # -- delete

    def forget_topics(self, names: Iterable[str]) -> None:
        """Drops every group's offsets of topics that have been deleted. Raises ``GroupStoreError``."""
        gone = set(names)
        image = self._store.image
        self._store.append(
            [
                OffsetRecord(group_id=group_id, topic=topic, partition=partition, deleted=True)
                for group_id, topics in image.offsets.items()
                for topic in gone & topics.keys()
                for partition in topics[topic]
            ]
        )


def _check_commit(group: Group, request: m.OffsetCommitRequest) -> None:
    """Raises :class:`GroupError`. Kafka's ``ClassicGroup.validateOffsetCommit``."""
    generation = request.generation_id_or_member_epoch
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or request.member_id or request.group_instance_id is not None:
        group.check_member(request.member_id, request.group_instance_id)
        if generation != group.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
    elif group.state is not GroupState.EMPTY:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is GroupState.COMPLETING_REBALANCE:
        raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)


class _CommitAnswer:
    """Collects partitions by topic: by name up to version 9, by id from 10 on."""

    def __init__(self, version: int) -> None:
        self.response = m.OffsetCommitResponse()
        self._by_id = version >= _TOPIC_IDS_FROM
        self._topics: dict[str | UUID, m.OffsetCommitResponseTopic] = {}

    def add(self, name: str, topic_id: UUID, partition: int, error: ErrorCode) -> None:
        key = topic_id if self._by_id else name
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = m.OffsetCommitResponseTopic(name=name, topic_id=topic_id)
            self.response.topics.append(topic)
        topic.partitions.append(m.OffsetCommitResponsePartition(partition_index=partition, error_code=error))

    def fail(
        self, committed: list[tuple[str, UUID, m.OffsetCommitRequestPartition]], error: ErrorCode
    ) -> None:
        """Turns every success into ``error``; what was refused keeps its own."""
        for name, topic_id, _ in committed:
            for partition in self._topics[topic_id if self._by_id else name].partitions:
                partition.error_code = partition.error_code or error


def _offset_record(group_id: str, topic: str, partition: m.OffsetCommitRequestPartition) -> OffsetRecord:
    return OffsetRecord(
        group_id=group_id,
        topic=topic,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
    )


def _fetched(partition: int, record: OffsetRecord | None) -> m.OffsetFetchResponsePartitions:
    if record is None:
        return m.OffsetFetchResponsePartitions(partition_index=partition, committed_offset=-1)
    return m.OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=record.offset,
        committed_leader_epoch=record.leader_epoch,
        metadata=record.metadata,
    )


def _failed_topic(
    name: str, topic_id: UUID, partitions: Iterable[int], error: ErrorCode
) -> m.OffsetFetchResponseTopics:
    failed = [
        m.OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=error)
        for index in partitions
    ]
    return m.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=failed)


def _as_old_topic(topic: m.OffsetFetchResponseTopics) -> m.OffsetFetchResponseTopic:
    return m.OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            m.OffsetFetchResponsePartition(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                committed_leader_epoch=partition.committed_leader_epoch,
                metadata=partition.metadata,
                error_code=partition.error_code,
            )
            for partition in topic.partitions
        ],
    )
