"""The table of what to do about each error code of each API.

Sources: the Kafka protocol guide's "Error Codes" table (which are retriable), what the handlers of Java's
clients do with each (``AbstractCoordinator``, ``ConsumerCoordinator``, ``FetchCollector``,
``OffsetFetcherUtils``, ``OffsetsForLeaderEpochUtils``, ``Sender``, ``TransactionManager``, ``NetworkClient``
of 4.x), and what a broker does with static members, verified row by row by the conformance suite. A pair
that is not in the table is fatal, and so is every code that is not known; those that brokers are known to
give are listed all the same, so that :data:`TABLE` says of each of them what was decided.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from slackwater.kafka.wire.schema import Request


class Action(Enum):
    """What the client does next."""

    RETRY = "back off, send again"
    REFRESH_METADATA = "refresh metadata, back off, send again"
    FIND_COORDINATOR = "find the coordinator, back off, send again"
    REJOIN_KEEPING_ID = "join again with the member.id"
    REJOIN_LOSING = "join again with the member.id; what was owned is lost"
    REJOIN_DROPPING_ID = "join again with an empty member.id; what was owned is lost"
    ADOPT_ID = "join again with the member.id of the answer"
    FENCED = "stop: another consumer has the group.instance.id"
    RESET_OFFSET = "apply auto_offset_reset"
    NO_OFFSET = "take it for an answer: no record is that late"
    NEW_SESSION = "start a new fetch session"
    COMMIT_FAILED = "the commit was not stored: the group has moved on"
    DONE = "take it as done"
    LEARN_EPOCH = "send a heartbeat, which tells the member's epoch, back off, send again"
    NEW_EPOCH = "go on in the producer's next epoch"
    ABORT = "abort the transaction"
    ASK_EPOCH = "ask by InitProducerId, with the own id and epoch, whether another producer has taken over"
    OLDER_VERSION = "send again in the highest version that the answer names"
    RECONNECT = "close the connection, back off, connect again"
    REBOOTSTRAP = "forget the brokers, start again from the bootstrap servers"
    FATAL = "give up and tell the caller"


_Row = dict[E, Action]


def _fatal(*codes: E) -> _Row:
    return dict.fromkeys(codes, Action.FATAL)


_COORDINATOR: _Row = {
    E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
    E.COORDINATOR_NOT_AVAILABLE: Action.FIND_COORDINATOR,
    E.NOT_COORDINATOR: Action.FIND_COORDINATOR,
    E.REQUEST_TIMED_OUT: Action.RETRY,
    E.NETWORK_EXCEPTION: Action.FIND_COORDINATOR,
    **_fatal(E.GROUP_AUTHORIZATION_FAILED, E.INVALID_GROUP_ID),
}
_MEMBER: _Row = {
    **_COORDINATOR,
    E.FENCED_INSTANCE_ID: Action.FENCED,
    E.UNKNOWN_MEMBER_ID: Action.REJOIN_DROPPING_ID,
    # A rebalance was completed without this member: its partitions may be another's.
    E.ILLEGAL_GENERATION: Action.REJOIN_LOSING,
    E.REBALANCE_IN_PROGRESS: Action.REJOIN_KEEPING_ID,
    # A group that Sync cannot store (too large for its topic) is answered UNKNOWN_SERVER_ERROR.
    **_fatal(E.UNKNOWN_SERVER_ERROR),
}
_LEADER: _Row = {
    E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH_METADATA,
    E.LEADER_NOT_AVAILABLE: Action.REFRESH_METADATA,
    E.NOT_LEADER_OR_FOLLOWER: Action.REFRESH_METADATA,
    E.REPLICA_NOT_AVAILABLE: Action.REFRESH_METADATA,
    E.KAFKA_STORAGE_ERROR: Action.REFRESH_METADATA,
    E.FENCED_LEADER_EPOCH: Action.REFRESH_METADATA,
    E.UNKNOWN_LEADER_EPOCH: Action.REFRESH_METADATA,
    E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
    E.INCONSISTENT_TOPIC_ID: Action.REFRESH_METADATA,
    E.LISTENER_NOT_FOUND: Action.REFRESH_METADATA,
    E.OFFSET_NOT_AVAILABLE: Action.RETRY,
    E.REQUEST_TIMED_OUT: Action.RETRY,
    E.NETWORK_EXCEPTION: Action.REFRESH_METADATA,
    E.THROTTLING_QUOTA_EXCEEDED: Action.RETRY,
    # Java logs it and tries again, for Fetch, ListOffsets and OffsetForLeaderEpoch alike.
    E.UNKNOWN_SERVER_ERROR: Action.REFRESH_METADATA,
    **_fatal(E.TOPIC_AUTHORIZATION_FAILED, E.INVALID_TOPIC_EXCEPTION, E.UNSUPPORTED_VERSION),
}
_TRANSACTION: _Row = {
    E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
    E.COORDINATOR_NOT_AVAILABLE: Action.FIND_COORDINATOR,
    E.NOT_COORDINATOR: Action.FIND_COORDINATOR,
    E.REQUEST_TIMED_OUT: Action.FIND_COORDINATOR,
    E.NETWORK_EXCEPTION: Action.FIND_COORDINATOR,
    # The transaction before is still being ended.
    E.CONCURRENT_TRANSACTIONS: Action.RETRY,
    # Also of a producer whose transaction has timed out, and that nobody has displaced.
    E.INVALID_PRODUCER_EPOCH: Action.ASK_EPOCH,
    E.PRODUCER_FENCED: Action.ASK_EPOCH,
    # Nothing is open: it has timed out.
    E.INVALID_TXN_STATE: Action.ABORT,
    E.TRANSACTION_ABORTABLE: Action.ABORT,
    E.UNKNOWN_PRODUCER_ID: Action.ABORT,
    E.UNKNOWN_SERVER_ERROR: Action.ABORT,
    **_fatal(E.INVALID_PRODUCER_ID_MAPPING, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.UNSUPPORTED_VERSION),
}
_LOGIN: _Row = _fatal(
    E.UNSUPPORTED_SASL_MECHANISM, E.ILLEGAL_SASL_STATE, E.SASL_AUTHENTICATION_FAILED, E.UNKNOWN_SERVER_ERROR
)

TABLE: dict[type[Request[Any]], _Row] = {
    m.ApiVersionsRequest: {
        E.UNSUPPORTED_VERSION: Action.OLDER_VERSION,
        # Java ends the connection and comes back to the broker after a back-off.
        E.INVALID_REQUEST: Action.RECONNECT,
        E.UNKNOWN_SERVER_ERROR: Action.RECONNECT,
        E.CLUSTER_AUTHORIZATION_FAILED: Action.RECONNECT,
    },
    m.SaslHandshakeRequest: _LOGIN,
    m.SaslAuthenticateRequest: _LOGIN,
    m.MetadataRequest: {
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH_METADATA,
        E.LEADER_NOT_AVAILABLE: Action.REFRESH_METADATA,
        E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
        E.INCONSISTENT_TOPIC_ID: Action.REFRESH_METADATA,
        # Of a partition: the leader has no listener of the name that this client came by.
        E.LISTENER_NOT_FOUND: Action.REFRESH_METADATA,
        E.REPLICA_NOT_AVAILABLE: Action.REFRESH_METADATA,
        # A topic that is made on request, in a cluster whose brokers are not all up yet.
        E.INVALID_REPLICATION_FACTOR: Action.REFRESH_METADATA,
        E.REQUEST_TIMED_OUT: Action.REFRESH_METADATA,
        E.UNKNOWN_SERVER_ERROR: Action.REFRESH_METADATA,
        E.REBOOTSTRAP_REQUIRED: Action.REBOOTSTRAP,
        **_fatal(E.TOPIC_AUTHORIZATION_FAILED, E.INVALID_TOPIC_EXCEPTION),
    },
    m.FindCoordinatorRequest: {
        E.COORDINATOR_NOT_AVAILABLE: Action.RETRY,
        E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
        E.NOT_COORDINATOR: Action.RETRY,
        E.REQUEST_TIMED_OUT: Action.RETRY,
        E.NETWORK_EXCEPTION: Action.RETRY,
        # A new cluster makes __consumer_offsets on the first request.
        E.INVALID_REPLICATION_FACTOR: Action.RETRY,
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.RETRY,
        E.LEADER_NOT_AVAILABLE: Action.RETRY,
        **_fatal(
            E.GROUP_AUTHORIZATION_FAILED,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            E.INVALID_GROUP_ID,
            E.INVALID_REQUEST,
            E.UNSUPPORTED_VERSION,
        ),
    },
    m.JoinGroupRequest: {
        **_MEMBER,
        E.MEMBER_ID_REQUIRED: Action.ADOPT_ID,
        # JoinGroup has no generation to be illegal; REBALANCE_IN_PROGRESS: the group is in between.
        E.REBALANCE_IN_PROGRESS: Action.RETRY,
        **_fatal(
            E.INCONSISTENT_GROUP_PROTOCOL,
            E.INVALID_SESSION_TIMEOUT,
            E.GROUP_MAX_SIZE_REACHED,
            E.UNSUPPORTED_VERSION,
            E.UNRELEASED_INSTANCE_ID,
        ),
    },
    m.SyncGroupRequest: {**_MEMBER, **_fatal(E.INCONSISTENT_GROUP_PROTOCOL)},
    m.HeartbeatRequest: _MEMBER,
    m.ConsumerGroupHeartbeatRequest: {
        **_COORDINATOR,
        # The topics' own errors are told by their metadata; the rest of the assignment goes on (as in Java).
        E.TOPIC_AUTHORIZATION_FAILED: Action.RETRY,
        E.FENCED_MEMBER_EPOCH: Action.REJOIN_LOSING,
        E.UNKNOWN_MEMBER_ID: Action.REJOIN_LOSING,
        # The group was deleted, or is a classic one again; a static member stops, and so does one that joins.
        E.GROUP_ID_NOT_FOUND: Action.REJOIN_LOSING,
        E.FENCED_INSTANCE_ID: Action.FENCED,
        **_fatal(
            E.UNRELEASED_INSTANCE_ID,
            E.UNSUPPORTED_ASSIGNOR,
            E.INVALID_REGULAR_EXPRESSION,
            E.INVALID_REQUEST,
            E.GROUP_MAX_SIZE_REACHED,
            E.UNSUPPORTED_VERSION,
            E.UNKNOWN_SERVER_ERROR,
        ),
    },
    m.LeaveGroupRequest: {
        **_COORDINATOR,
        # Someone else has removed it, the session is over, or another has the id: left is left.
        E.UNKNOWN_MEMBER_ID: Action.DONE,
        E.FENCED_INSTANCE_ID: Action.DONE,
    },
    m.OffsetCommitRequest: {
        **_COORDINATOR,
        # By Java's ConsumerCoordinator; a topic may be so new that the coordinator has not heard of it.
        E.REQUEST_TIMED_OUT: Action.FIND_COORDINATOR,
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.RETRY,
        # Or the topic was deleted, and another one may have its name.
        E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
        E.FENCED_INSTANCE_ID: Action.FENCED,
        E.REBALANCE_IN_PROGRESS: Action.REJOIN_KEEPING_ID,
        E.UNKNOWN_MEMBER_ID: Action.COMMIT_FAILED,
        E.ILLEGAL_GENERATION: Action.COMMIT_FAILED,
        E.GROUP_ID_NOT_FOUND: Action.COMMIT_FAILED,
        E.STALE_MEMBER_EPOCH: Action.LEARN_EPOCH,
        **_fatal(
            E.OFFSET_METADATA_TOO_LARGE,
            E.INVALID_COMMIT_OFFSET_SIZE,
            E.TOPIC_AUTHORIZATION_FAILED,
            E.UNKNOWN_SERVER_ERROR,
        ),
    },
    m.OffsetFetchRequest: {
        **_COORDINATOR,
        E.UNSTABLE_OFFSET_COMMIT: Action.RETRY,
        # Of a member of the consumer protocol, which alone says who it is.
        E.STALE_MEMBER_EPOCH: Action.LEARN_EPOCH,
        E.UNKNOWN_MEMBER_ID: Action.LEARN_EPOCH,
        # Java gives up; but a topic may be so new that the coordinator has not heard of it.
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.RETRY,
        # Or the topic was deleted, and another one may have its name.
        E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
        **_fatal(
            E.TOPIC_AUTHORIZATION_FAILED,
            E.UNKNOWN_SERVER_ERROR,
        ),
    },
    m.ListOffsetsRequest: {
        **_LEADER,
        # Message format 0 has no timestamps to look for.
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT: Action.NO_OFFSET,
        **_fatal(E.INVALID_REQUEST),
    },
    m.OffsetForLeaderEpochRequest: {**_LEADER},
    m.OffsetForLeaderEpochRequest: _LEADER,
    m.FetchRequest: {
        **_LEADER,
        E.OFFSET_OUT_OF_RANGE: Action.RESET_OFFSET,
        E.FETCH_SESSION_ID_NOT_FOUND: Action.NEW_SESSION,
        E.INVALID_FETCH_SESSION_EPOCH: Action.NEW_SESSION,
        E.FETCH_SESSION_TOPIC_ID_ERROR: Action.NEW_SESSION,
        **_fatal(E.CORRUPT_MESSAGE, E.UNSUPPORTED_COMPRESSION_TYPE, E.OFFSET_MOVED_TO_TIERED_STORAGE),
    },
    m.InitProducerIdRequest: {
        E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
        E.COORDINATOR_NOT_AVAILABLE: Action.RETRY,
        E.NOT_COORDINATOR: Action.RETRY,
        E.CONCURRENT_TRANSACTIONS: Action.RETRY,
        E.REQUEST_TIMED_OUT: Action.RETRY,
        E.NETWORK_EXCEPTION: Action.RETRY,
        **_fatal(
            E.CLUSTER_AUTHORIZATION_FAILED,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.INVALID_TRANSACTION_TIMEOUT,
        ),
    },
    m.AddPartitionsToTxnRequest: {
        **_TRANSACTION,
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.RETRY,
        # Of another partition in the request.
        E.OPERATION_NOT_ATTEMPTED: Action.RETRY,
        E.TOPIC_AUTHORIZATION_FAILED: Action.ABORT,
    },
    m.AddOffsetsToTxnRequest: {**_TRANSACTION, E.GROUP_AUTHORIZATION_FAILED: Action.ABORT},
    # Whether it is committed is not known then, so its work must not be done again.
    m.EndTxnRequest: {**_TRANSACTION, E.UNKNOWN_SERVER_ERROR: Action.FATAL},
    # A broker would commit a transaction without the offsets that it has refused: each refusal aborts.
    m.TxnOffsetCommitRequest: {
        **_TRANSACTION,
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.RETRY,
        E.ILLEGAL_GENERATION: Action.ABORT,
        E.UNKNOWN_MEMBER_ID: Action.ABORT,
        E.STALE_MEMBER_EPOCH: Action.ABORT,
        E.FENCED_INSTANCE_ID: Action.ABORT,
        E.REBALANCE_IN_PROGRESS: Action.ABORT,
        E.GROUP_ID_NOT_FOUND: Action.ABORT,
        E.GROUP_AUTHORIZATION_FAILED: Action.ABORT,
        E.TOPIC_AUTHORIZATION_FAILED: Action.ABORT,
        E.INVALID_GROUP_ID: Action.ABORT,
        E.OFFSET_METADATA_TOO_LARGE: Action.ABORT,
        E.INVALID_COMMIT_OFFSET_SIZE: Action.ABORT,
    },
    # FATAL is of a batch here; in a transaction, that has to be aborted then.
    m.ProduceRequest: {
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH_METADATA,
        E.LEADER_NOT_AVAILABLE: Action.REFRESH_METADATA,
        E.NOT_LEADER_OR_FOLLOWER: Action.REFRESH_METADATA,
        E.KAFKA_STORAGE_ERROR: Action.REFRESH_METADATA,
        E.FENCED_LEADER_EPOCH: Action.REFRESH_METADATA,
        E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
        E.INCONSISTENT_TOPIC_ID: Action.REFRESH_METADATA,
        E.NETWORK_EXCEPTION: Action.REFRESH_METADATA,
        E.LISTENER_NOT_FOUND: Action.REFRESH_METADATA,
        E.REPLICA_NOT_AVAILABLE: Action.REFRESH_METADATA,
        E.UNKNOWN_LEADER_EPOCH: Action.RETRY,
        # Damaged on its way: the same bytes again may arrive whole.
        E.CORRUPT_MESSAGE: Action.RETRY,
        E.REQUEST_TIMED_OUT: Action.RETRY,
        E.NOT_ENOUGH_REPLICAS: Action.RETRY,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Action.RETRY,
        E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
        E.COORDINATOR_NOT_AVAILABLE: Action.RETRY,
        E.NOT_COORDINATOR: Action.RETRY,
        E.CONCURRENT_TRANSACTIONS: Action.RETRY,
        E.THROTTLING_QUOTA_EXCEEDED: Action.RETRY,
        E.DUPLICATE_SEQUENCE_NUMBER: Action.DONE,
        E.OUT_OF_ORDER_SEQUENCE_NUMBER: Action.NEW_EPOCH,
        E.UNKNOWN_PRODUCER_ID: Action.NEW_EPOCH,
        # Of an idempotent producer, fatal for the producer and not only for the batch.
        **_fatal(
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.MESSAGE_TOO_LARGE,
            E.RECORD_LIST_TOO_LARGE,
            E.INVALID_RECORD,
            E.INVALID_TIMESTAMP,
            E.INVALID_REQUIRED_ACKS,
            E.INVALID_TOPIC_EXCEPTION,
            E.TOPIC_AUTHORIZATION_FAILED,
            E.CLUSTER_AUTHORIZATION_FAILED,
            E.UNSUPPORTED_COMPRESSION_TYPE,
            E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            E.POLICY_VIOLATION,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_ABORTABLE,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            E.UNKNOWN_SERVER_ERROR,
        ),
    },
}


def action_for(request: type[Request[Any]], code: int) -> Action:
    """What to do about ``code`` (not ``NONE``) in the answer to ``request``. Unknown: fatal."""
    try:
        return TABLE.get(request, {}).get(E(code), Action.FATAL)
    except ValueError:
        return Action.FATAL
