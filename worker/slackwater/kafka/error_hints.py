"""Advice on error codes, for the messages of :mod:`~slackwater.kafka.errors`.

Which ACL operation an API needs: Kafka's documentation, "Operations and resources on protocols" (7.4).
"""

from __future__ import annotations

from slackwater.kafka.wire.errors import ErrorCode as E

_TOPIC_OPERATION = {
    "Fetch": "Read",
    "Produce": "Write",
    "OffsetCommit": "Read",
    "CreateTopics": "Create",
    "DeleteTopics": "Delete",
    "DescribeConfigs": "DescribeConfigs",
}
"""Others need Describe, which Read, Write and Delete bring with them."""
_GROUP_OPERATION = {
    "FindCoordinator": "Describe",
    "OffsetFetch": "Describe",
    "DescribeGroups": "Describe",
    "ConsumerGroupDescribe": "Describe",
    "ListGroups": "Describe",
    "DeleteGroups": "Delete",
}
"""Others need Read."""
_CLUSTER_OPERATION = {
    "InitProducerId": "IdempotentWrite on the Cluster, or Write on some Topic",
    "Produce": "IdempotentWrite on the Cluster, or Write on some Topic",
    "CreateTopics": "Create on the Cluster",
    "ListGroups": "Describe on the Cluster",
    "DescribeCluster": "Describe on the Cluster",
}
_RELEASES = {
    "ApiVersions": "0.10.0",
    "Metadata": "0.10.0",
    "Produce": "0.11.0",
    "Fetch": "0.11.0",
    "ListOffsets": "0.10.1",
    "OffsetForLeaderEpoch": "2.1",
    "InitProducerId": "0.11.0",
    "SaslAuthenticate": "1.0",
    "DeleteGroups": "1.1",
    "DescribeConfigs": "1.1",
    "AddPartitionsToTxn": "0.11.0",
    "AddOffsetsToTxn": "0.11.0",
    "EndTxn": "0.11.0",
    "TxnOffsetCommit": "0.11.0",
    "CreateTopics": "0.11.0",
    "DeleteTopics": "0.11.0",
    "DescribeCluster": "2.8",
    "ConsumerGroupDescribe": "3.7",
}
"""API -> the first release of Apache Kafka with the lowest version that this client speaks."""

_ANY_API = {
    E.UNKNOWN_SERVER_ERROR: "the broker failed to process the request; see its log",
    E.STALE_MEMBER_EPOCH: "the group's generation has changed; call poll() to rejoin",
    E.INVALID_PRODUCER_ID_MAPPING: "the cluster no longer knows the producer id; create a new producer",
    E.INVALID_REQUIRED_ACKS: 'acks must be "all", 1 or 0',
    E.OFFSET_OUT_OF_RANGE: "the position is outside the log; seek() to an offset within it",
    E.CORRUPT_MESSAGE: "the broker has stored a damaged batch; check its log and disk, or seek() past it",
    E.UNKNOWN_TOPIC_OR_PARTITION: "check the name; a new topic may take a moment; without the ACL "
    "operation Describe a topic is not shown",
    E.INVALID_TOPIC_EXCEPTION: "a topic name has 1 to 249 of the characters A-Z a-z 0-9 . _ -, and must "
    "not be . or ..",
    E.MESSAGE_TOO_LARGE: "send smaller records or batches, or raise the topic's max.message.bytes",
    E.RECORD_LIST_TOO_LARGE: "lower batch_size, or raise the topic's segment.bytes",
    E.OFFSET_METADATA_TOO_LARGE: "shorten the metadata of the commit, or raise the broker's "
    "offset.metadata.max.bytes",
    E.INVALID_COMMIT_OFFSET_SIZE: "the commit is larger than the topic __consumer_offsets allows: shorten "
    "its metadata, commit fewer partitions at a time, or raise that topic's "
    "max.message.bytes",
    E.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading its log; it takes a moment",
    E.COORDINATOR_NOT_AVAILABLE: "the group has no coordinator at present: check that the partitions of "
    "__consumer_offsets have leaders",
    E.NOT_COORDINATOR: "the coordinator has moved",
    E.ILLEGAL_GENERATION: "the group has rebalanced since; call poll() to rejoin",
    E.INVALID_GROUP_ID: "group_id must not be empty",
    E.UNKNOWN_MEMBER_ID: "the member's session has timed out, or it was removed from the group",
    E.INVALID_TIMESTAMP: "the record's time is outside what the topic's message.timestamp.before.max.ms and "
    "message.timestamp.after.max.ms allow",
    E.UNSUPPORTED_SASL_MECHANISM: "set sasl_mechanism to one that the broker has enabled",
    E.ILLEGAL_SASL_STATE: "check security_protocol against the broker's listener",
    E.SASL_AUTHENTICATION_FAILED: "check user name and password",
    E.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic keeps a message format without times: raise "
    "its message.format.version, or look up no times",
    E.INVALID_REPLICATION_FACTOR: "there are fewer brokers than the requested number of replicas",
    E.POLICY_VIOLATION: "the cluster's policy forbids it",
    E.GROUP_ID_NOT_FOUND: "the group does not exist (it has expired, or was deleted), or is of another type",
    E.NON_EMPTY_GROUP: "stop the group's members first",
    E.KAFKA_STORAGE_ERROR: "a disk of the broker fails; check its log",
    E.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than the topic's min.insync.replicas",
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "fewer replicas are in sync than the topic's min.insync.replicas",
    E.LISTENER_NOT_FOUND: "the partition's leader has no listener of the name that this client connects to: "
    "give all brokers the same listener names",
    E.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not support this codec (zstd requires Kafka 2.1)",
    E.FENCED_INSTANCE_ID: "another consumer has joined with this group.instance.id; stop one of the two, "
    "or use different ids",
    E.INVALID_RECORD: "the broker rejects the record, such as one without a key in a compacted topic",
    E.UNSTABLE_OFFSET_COMMIT: "a transaction with offsets of this group is open; it will end or time out",
    E.PRODUCER_FENCED: "a newer producer with this transactional id has taken over",
    E.INVALID_PRODUCER_EPOCH: "a newer producer has taken over, or a transaction has timed out",
    E.UNRELEASED_INSTANCE_ID: "a member of the consumer protocol has this group.instance.id: stop it, or, if "
    "it has ended without leaving, wait until its session is over (group.consumer.session.timeout.ms, by "
    "default 45000)",
    E.INVALID_REGULAR_EXPRESSION: "a broker takes RE2's syntax: no look-around, no references, "
    "repetitions of at most 1,000",
    E.REBALANCE_IN_PROGRESS: "call poll() to rejoin, then repeat",
    E.INVALID_TXN_STATE: "no transaction is open in the cluster: it has timed out (transaction_timeout_ms)",
    E.TRANSACTION_ABORTABLE: "abort the transaction, and do its work again",
    E.INVALID_TRANSACTION_TIMEOUT: "transaction_timeout_ms must be above 0 and not above the broker's "
    "transaction.max.timeout.ms (by default 900000)",
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user needs the ACL operation Write on the TransactionalId",
    E.OFFSET_MOVED_TO_TIERED_STORAGE: "seek() to the beginning of the broker's log",
    E.FENCED_LEADER_EPOCH: "the partition has a newer leader",
    E.UNKNOWN_LEADER_EPOCH: "the broker does not know the partition's newest leader yet",
    E.INVALID_REQUEST: "the broker rejects the request as malformed; see its log",
}
_BY_API = {
    ("SyncGroup", E.UNKNOWN_SERVER_ERROR): "the broker could not store the assignment: it may be larger than "
    "max.message.bytes of the topic __consumer_offsets",
    ("LeaveGroup", E.FENCED_INSTANCE_ID): "the member id is not the current one: another process has joined "
    "with this group.instance.id since, and was not removed",
    ("OffsetCommit", E.REBALANCE_IN_PROGRESS): "call poll() to take part, then commit again",
}


def hint(code: int, api: str = "") -> str:
    """The advice on ``code`` in an answer to ``api`` (Kafka's name of it; empty: any); may be empty."""
    if code == E.TOPIC_AUTHORIZATION_FAILED and api == "ConsumerGroupDescribe":
        return "the user needs the ACL operation Describe on every Topic that the group's members consume"
    if code == E.TOPIC_AUTHORIZATION_FAILED:
        return f"the user needs the ACL operation {_TOPIC_OPERATION.get(api, 'Describe')} on the Topic"
    if code == E.GROUP_AUTHORIZATION_FAILED:
        return f"the user needs the ACL operation {_GROUP_OPERATION.get(api, 'Read')} on the Group"
    if code == E.CLUSTER_AUTHORIZATION_FAILED:
        return (
            f"the user needs the ACL operation {_CLUSTER_OPERATION.get(api, 'ClusterAction on the Cluster')}"
        )
    if code == E.UNSUPPORTED_VERSION:
        return needs_release(api) or "the broker does not support this version of the request"
    try:
        known = E(code)
    except ValueError:
        return ""
    return _BY_API.get((api, known)) or _ANY_API.get(known, "")


def needs_release(api: str) -> str:
    """The first release that serves ``api`` in a version of this client; empty if all current ones do."""
    release = _RELEASES.get(api)
    return f"{api} as this client speaks it needs Apache Kafka {release} or later" if release else ""
