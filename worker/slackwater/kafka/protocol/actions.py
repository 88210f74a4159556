"""One table: what to do about an error code that a broker answers to a request.

Sources: the Kafka protocol guide's "Error Codes" table (which are retriable), and what a broker does
with static members, verified row by row by the conformance suite. A pair that is not in the table is
fatal, and so is every code that is not known.
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
    NEW_SESSION = "start a new fetch session"
    COMMIT_FAILED = "the commit was not stored: the group has moved on"
    FATAL = "give up and tell the caller"


_COORDINATOR = {
    E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
    E.COORDINATOR_NOT_AVAILABLE: Action.FIND_COORDINATOR,
    E.NOT_COORDINATOR: Action.FIND_COORDINATOR,
    E.REQUEST_TIMED_OUT: Action.RETRY,
    E.NETWORK_EXCEPTION: Action.FIND_COORDINATOR,
}
_MEMBER = {
    **_COORDINATOR,
    E.FENCED_INSTANCE_ID: Action.FENCED,
    E.UNKNOWN_MEMBER_ID: Action.REJOIN_DROPPING_ID,
    # A rebalance was completed without this member: its partitions may be another's.
    E.ILLEGAL_GENERATION: Action.REJOIN_LOSING,
    E.REBALANCE_IN_PROGRESS: Action.REJOIN_KEEPING_ID,
}
_LEADER = {
    E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH_METADATA,
    E.LEADER_NOT_AVAILABLE: Action.REFRESH_METADATA,
    E.NOT_LEADER_OR_FOLLOWER: Action.REFRESH_METADATA,
    E.REPLICA_NOT_AVAILABLE: Action.REFRESH_METADATA,
    E.KAFKA_STORAGE_ERROR: Action.REFRESH_METADATA,
    E.FENCED_LEADER_EPOCH: Action.REFRESH_METADATA,
    E.UNKNOWN_LEADER_EPOCH: Action.REFRESH_METADATA,
    E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
    E.INCONSISTENT_TOPIC_ID: Action.REFRESH_METADATA,
    E.OFFSET_NOT_AVAILABLE: Action.RETRY,
    E.REQUEST_TIMED_OUT: Action.RETRY,
    E.NETWORK_EXCEPTION: Action.REFRESH_METADATA,
    E.THROTTLING_QUOTA_EXCEEDED: Action.RETRY,
}

TABLE: dict[type[Request[Any]], dict[E, Action]] = {
    m.FindCoordinatorRequest: {
        E.COORDINATOR_NOT_AVAILABLE: Action.RETRY,
        E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
        E.REQUEST_TIMED_OUT: Action.RETRY,
        # A new cluster makes __consumer_offsets on the first request.
        E.INVALID_REPLICATION_FACTOR: Action.RETRY,
    },
    m.JoinGroupRequest: {
        **_MEMBER,
        E.MEMBER_ID_REQUIRED: Action.ADOPT_ID,
        # JoinGroup has no generation to be illegal; REBALANCE_IN_PROGRESS: the group is in between.
        E.REBALANCE_IN_PROGRESS: Action.RETRY,
    },
    m.SyncGroupRequest: _MEMBER,
    m.HeartbeatRequest: _MEMBER,
    m.LeaveGroupRequest: {
        **_COORDINATOR,
        # Someone else has removed it, or the session is over: left is left.
        E.UNKNOWN_MEMBER_ID: Action.FATAL,
        E.FENCED_INSTANCE_ID: Action.FENCED,
    },
    m.OffsetCommitRequest: {
        **_COORDINATOR,
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH_METADATA,
        E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
        E.FENCED_INSTANCE_ID: Action.FENCED,
        E.REBALANCE_IN_PROGRESS: Action.REJOIN_KEEPING_ID,
        E.UNKNOWN_MEMBER_ID: Action.COMMIT_FAILED,
        E.ILLEGAL_GENERATION: Action.COMMIT_FAILED,
        E.GROUP_ID_NOT_FOUND: Action.COMMIT_FAILED,
    },
    m.OffsetFetchRequest: {
        **_COORDINATOR,
        E.UNSTABLE_OFFSET_COMMIT: Action.RETRY,
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH_METADATA,
        E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
    },
    m.ListOffsetsRequest: _LEADER,
    m.FetchRequest: {
        **_LEADER,
        E.UNKNOWN_SERVER_ERROR: Action.REFRESH_METADATA,
        E.OFFSET_OUT_OF_RANGE: Action.RESET_OFFSET,
        E.FETCH_SESSION_ID_NOT_FOUND: Action.NEW_SESSION,
        E.INVALID_FETCH_SESSION_EPOCH: Action.NEW_SESSION,
        E.FETCH_SESSION_TOPIC_ID_ERROR: Action.NEW_SESSION,
    },
    m.MetadataRequest: {
        E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH_METADATA,
        E.LEADER_NOT_AVAILABLE: Action.REFRESH_METADATA,
        E.UNKNOWN_TOPIC_ID: Action.REFRESH_METADATA,
        E.REQUEST_TIMED_OUT: Action.RETRY,
    },
}


def action_for(request: type[Request[Any]], code: int) -> Action:
    """What to do about ``code`` (not ``NONE``) in the answer to ``request``. Unknown: fatal."""
    try:
        return TABLE.get(request, {}).get(E(code), Action.FATAL)
    except ValueError:
        return Action.FATAL
