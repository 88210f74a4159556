"""From which version of an API on a throttled client keeps quiet by itself (KIP-219).

Before it the broker held the answer back; since then it answers at once, says how long, and stops reading
from the connection for that time. A client that goes on writing fills the socket, so none may.
"""

from __future__ import annotations

from typing import Any

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import Request

CLIENT_THROTTLES_SINCE: dict[type[Request[Any]], int] = {
    m.ProduceRequest: 6,
    m.FetchRequest: 8,
    m.ListOffsetsRequest: 3,
    m.MetadataRequest: 6,
    m.OffsetCommitRequest: 4,
    m.OffsetFetchRequest: 4,
    m.FindCoordinatorRequest: 2,
    m.JoinGroupRequest: 3,
    m.HeartbeatRequest: 2,
    m.LeaveGroupRequest: 2,
    m.SyncGroupRequest: 2,
    m.DescribeGroupsRequest: 2,
    m.ListGroupsRequest: 2,
    m.ApiVersionsRequest: 2,
    m.CreateTopicsRequest: 3,
    m.DeleteTopicsRequest: 2,
    m.InitProducerIdRequest: 1,
    m.DescribeConfigsRequest: 2,
    m.DeleteGroupsRequest: 1,
}
"""``shouldClientThrottle`` of the responses of Java's clients."""


def throttle_ms(api: type[Request[Any]], version: int, answer: Any) -> int:
    """For how long nothing may be written after this answer; 0: not throttled."""
    since = CLIENT_THROTTLES_SINCE.get(api)
    if since is None or version < since:
        return 0
    return max(0, int(getattr(answer, "throttle_time_ms", 0)))
