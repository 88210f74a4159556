"""Limits by API: the size of an answer, and the version from which a throttled client keeps silent.

Size: answers before and during a login, and those of a fixed form, may have little. What an answer to Fetch
may have follows from the request. All others may have ``receive_message_max_bytes``.

Throttling (KIP-219): from :data:`CLIENT_THROTTLES_SINCE` on a broker answers a throttled client at once, says
for how long it is throttled, and stops reading from the connection for that time. A client that goes on
writing fills the socket. In older versions the broker holds the answer back instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import Request

ANSWER_BYTES = 32 * 1024 * 1024
"""The default of ``receive_message_max_bytes``: Metadata of about 700,000 partitions of three replicas."""
BATCH_BYTES = 64 * 1024 * 1024
"""How much an answer to Fetch may exceed ``max_bytes``: a broker returns a first batch whole, however large
(KIP-74), and adds fields for each partition."""
_MAX_FRAME_BYTES = 0x7FFFFFFF
_KIB = 1024

_FIXED_BYTES: dict[type[Request[Any]], int] = {
    m.ApiVersionsRequest: 64 * _KIB,
    m.SaslHandshakeRequest: 64 * _KIB,
    m.SaslAuthenticateRequest: 512 * _KIB,
    m.HeartbeatRequest: 64 * _KIB,
    m.InitProducerIdRequest: 64 * _KIB,
    m.AddOffsetsToTxnRequest: 64 * _KIB,
    m.EndTxnRequest: 64 * _KIB,
}
"""Answers that are small in any cluster; one to a login may be as large as a broker takes from clients
(``sasl.server.max.receive.size``)."""


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    """The size limit of an answer, and the advice for a valid answer that exceeds it."""

    size_bytes: int
    advice: str


def answer_limit(request: Request[Any], default_bytes: int) -> AnswerLimit:
    """The limit of the answer to ``request``; ``default_bytes`` where its API has none of its own."""
    if isinstance(request, m.FetchRequest):
        size = min(max(0, request.max_bytes) + BATCH_BYTES, _MAX_FRAME_BYTES)
        return AnswerLimit(size, "raise fetch_max_bytes if the topic has batches of that size")
    fixed = _FIXED_BYTES.get(type(request))
    if fixed is not None:
        return AnswerLimit(fixed, "no broker answers so much; check that this is the address of one")
    return AnswerLimit(default_bytes, "raise receive_message_max_bytes if the cluster is that large")


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
    m.ConsumerGroupHeartbeatRequest: 0,
    m.LeaveGroupRequest: 2,
    m.SyncGroupRequest: 2,
    m.DescribeGroupsRequest: 2,
    m.ConsumerGroupDescribeRequest: 0,
    m.ListGroupsRequest: 2,
    m.ApiVersionsRequest: 2,
    m.CreateTopicsRequest: 3,
    m.DeleteTopicsRequest: 2,
    m.InitProducerIdRequest: 1,
    m.AddPartitionsToTxnRequest: 1,
    m.AddOffsetsToTxnRequest: 1,
    m.EndTxnRequest: 1,
    m.TxnOffsetCommitRequest: 1,
    m.DescribeConfigsRequest: 2,
    m.IncrementalAlterConfigsRequest: 0,
    m.DeleteGroupsRequest: 1,
}
"""``shouldClientThrottle`` of the responses of Java's clients."""


def throttle_ms(api: type[Request[Any]], version: int, answer: Any) -> int:
    """How long nothing may be written after this answer; 0: not throttled."""
    since = CLIENT_THROTTLES_SINCE.get(api)
    if since is None or version < since:
        return 0
    return max(0, int(getattr(answer, "throttle_time_ms", 0)))
