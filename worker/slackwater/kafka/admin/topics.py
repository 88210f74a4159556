"""Topics, the cluster, configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slackwater.kafka.admin.attempts import Attempts
from slackwater.kafka.admin.results import (
    ClusterDescription,
    NewTopic,
    PerItem,
    TopicDescription,
    TopicOperation,
)
from slackwater.kafka.errors import KafkaError, KafkaTimeoutError, UnsupportedVersionError, for_code
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.connection import ByVersion
from slackwater.kafka.protocol.metadata import ANY_NODE, Broker, Partition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_DELETE_BY_STRUCT = 6
"""DeleteTopics names topics in another field from this version on (KIP-516)."""
_NOT_ASKED = -(2**31)
"""In place of operations."""


def _controller(cluster: Cluster) -> int:
    known = cluster.metadata.controller_id
    return known if known in cluster.metadata.brokers else ANY_NODE


async def create(
    cluster: Cluster, attempts: Attempts, topics: Iterable[NewTopic], *, validate_only: bool
) -> PerItem[str, TopicDescription]:
    """Creates topics (CreateTopics), or only checks whether that would succeed."""
    by_name = {topic.name: topic for topic in topics}

    async def attempt(names: list[str]) -> Mapping[str, TopicDescription | KafkaError]:
        request = m.CreateTopicsRequest(
            topics=[_new_topic(by_name[name]) for name in names],
            timeout_ms=attempts.left_ms,
            validate_only=validate_only,
        )
        answer = await cluster.send(_controller(cluster), request, timeout_ms=attempts.left_ms)
        if any(topic.error_code == ErrorCode.NOT_CONTROLLER for topic in answer.topics):
            await cluster.refresh()
        return {topic.name: _created(topic) for topic in answer.topics}

    return await attempts.each(by_name, attempt)


def _new_topic(topic: NewTopic) -> m.CreateTopicsRequestTopic:
    return m.CreateTopicsRequestTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=[m.CreateTopicsRequestTopicConfig(name=k, value=v) for k, v in topic.configs.items()],
    )


def _created(topic: m.CreateTopicsResponseTopic) -> TopicDescription | KafkaError:
    if topic.error_code:
        return for_code(
            topic.error_code,
            f"of topic {topic.name!r}: {topic.error_message or 'not created'}",
            api="CreateTopics",
        )
    partitions = {n: Partition(-1) for n in range(max(0, topic.num_partitions))}
    return TopicDescription(topic.name, topic.topic_id, False, partitions)


async def delete(cluster: Cluster, attempts: Attempts, names: Iterable[str]) -> PerItem[str, None]:
    """Deletes topics (DeleteTopics)."""

    async def attempt(left: list[str]) -> Mapping[str, KafkaError | None]:
        def make(version: int) -> m.DeleteTopicsRequest:
            timeout_ms = attempts.left_ms
            if version < _DELETE_BY_STRUCT:
                return m.DeleteTopicsRequest(topic_names=left, timeout_ms=timeout_ms)
            named = [m.DeleteTopicsRequestTopic(name=name) for name in left]
            return m.DeleteTopicsRequest(topics=named, timeout_ms=timeout_ms)

        request = ByVersion(m.DeleteTopicsRequest, make)
        answer = await cluster.send(_controller(cluster), request, timeout_ms=attempts.left_ms)
        if any(topic.error_code == ErrorCode.NOT_CONTROLLER for topic in answer.responses):
            await cluster.refresh()
        return {
            topic.name: for_code(topic.error_code, f"of topic {topic.name!r}", api="DeleteTopics")
            if topic.error_code
            else None
            for topic in answer.responses
            if topic.name is not None
        }

    return await attempts.each(names, attempt)


async def describe(
    cluster: Cluster, attempts: Attempts, names: Iterable[str] | None, *, operations: bool = False
) -> PerItem[str, TopicDescription]:
    """Topics by name; all of them for ``None``. ``operations``: asks what this client may do with each."""
    if names is None:
        outcome = await attempts.each([None], lambda _: _describe_all(cluster, attempts))
        return outcome.unwrap()[None]

    async def attempt(left: list[str]) -> Mapping[str, TopicDescription | KafkaError]:
        asked = [m.MetadataRequestTopic(name=name) for name in left]
        request = m.MetadataRequest(
            topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=operations
        )
        answer = await cluster.send_any(request, timeout_ms=attempts.left_ms)
        return _descriptions(answer)

    return await attempts.each(names, attempt)


async def _describe_all(
    cluster: Cluster, attempts: Attempts
) -> Mapping[None, PerItem[str, TopicDescription] | KafkaError]:
    request = m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    answer = await cluster.send_any(request, timeout_ms=attempts.left_ms)
    return {None: _descriptions(answer)}


def _descriptions(answer: m.MetadataResponse) -> PerItem[str, TopicDescription]:
    return PerItem({topic.name: _described(topic) for topic in answer.topics if topic.name})


def _described(topic: m.MetadataResponseTopic) -> TopicDescription | KafkaError:
    if topic.error_code:
        return for_code(topic.error_code, f"of topic {topic.name!r}", api="Metadata")
    partitions = {
        p.partition_index: Partition(
            p.leader_id, p.leader_epoch, p.error_code, tuple(p.replica_nodes), tuple(p.isr_nodes)
        )
        for p in sorted(topic.partitions, key=lambda p: p.partition_index)
    }
    return TopicDescription(
        topic.name or "",
        topic.topic_id,
        topic.is_internal,
        partitions,
        _operations(topic.topic_authorized_operations),
    )


def _operations(bits: int) -> frozenset[TopicOperation] | None:
    if bits == _NOT_ASKED:
        return None
    return frozenset(operation for operation in TopicOperation if bits >> operation & 1)


async def wait_for(
    cluster: Cluster, attempts: Attempts, name: str, partitions: int | None, *, there: bool
) -> None:
    """Until every broker has the topic with a leader for each partition; or, not ``there``, none has it."""
    while True:
        try:
            await cluster.refresh()
            waiting = [
                str(node)
                for node in sorted(cluster.metadata.brokers)
                if not await _as_wanted(cluster, attempts, node, name, partitions, there)
            ]
            problem = f"not so at broker {', '.join(waiting)}"
            if not waiting:
                return
        except KafkaError as exc:
            if not exc.retriable:
                raise
            problem = str(exc)
        if not await attempts.again():
            wanted = "in the metadata of all brokers" if there else "gone from the metadata of all brokers"
            raise KafkaTimeoutError(
                f"topic {name!r} is not {wanted} after {attempts.timeout_ms} ms: {problem}"
            )


async def _as_wanted(
    cluster: Cluster, attempts: Attempts, node: int, name: str, partitions: int | None, there: bool
) -> bool:
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    answer = await cluster.send(node, request, timeout_ms=attempts.left_ms)
    topic = next((topic for topic in answer.topics if topic.name == name), None)
    gone = topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not there or topic is None or gone:
        return gone and not there
    count = len(topic.partitions)
    enough = count > 0 if partitions is None else count >= partitions
    led = all(p.leader_id >= 0 and p.error_code == 0 for p in topic.partitions)
    return topic.error_code == 0 and enough and led


async def describe_cluster(cluster: Cluster, attempts: Attempts) -> ClusterDescription:
    """Describes the cluster (DescribeCluster)."""

    async def attempt(_: list[None]) -> Mapping[None, ClusterDescription | KafkaError]:
        try:
            answer = await cluster.send_any(m.DescribeClusterRequest(), timeout_ms=attempts.left_ms)
        except UnsupportedVersionError:
            await cluster.refresh()
            known = cluster.metadata
            brokers = tuple(known.brokers.values())
            return {None: ClusterDescription(known.cluster_id, known.controller_id, brokers)}
        if answer.error_code:
            return {None: for_code(answer.error_code, answer.error_message or "", api="DescribeCluster")}
        brokers = tuple(Broker(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers)
        return {None: ClusterDescription(answer.cluster_id, answer.controller_id, brokers)}

    outcome = await attempts.each([None], attempt)
    return outcome.unwrap()[None]


async def describe_features(cluster: Cluster, attempts: Attempts) -> dict[str, int]:
    """The finalized features and their levels (KIP-584), as the answer to ApiVersions has them."""
    request = m.ApiVersionsRequest(
        client_software_name=cluster.settings.client_software_name,
        client_software_version=cluster.settings.client_software_version,
    )

    async def attempt(_: list[None]) -> Mapping[None, dict[str, int] | KafkaError]:
        answer = await cluster.send_any(request, timeout_ms=attempts.left_ms)
        if answer.error_code:
            return {None: for_code(answer.error_code, "", api="ApiVersions")}
        return {None: {feature.name: feature.max_version_level for feature in answer.finalized_features}}

    outcome = await attempts.each([None], attempt)
    return outcome.unwrap()[None]
