"""How large an answer may be, by API: a broker, or what answers in its place, is not trusted with more.

Answers before and during a login, and those of a fixed form, have little. What an answer to Fetch may have
follows from what was asked for. All others have what the client allows, ``receive_message_max_bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import Request

ANSWER_BYTES = 32 * 1024 * 1024
"""The default of ``receive_message_max_bytes``: Metadata of about 700,000 partitions of three replicas."""
BATCH_BYTES = 64 * 1024 * 1024
"""What an answer to Fetch may have beyond ``max_bytes``: a broker gives a first batch whole, however large
(KIP-74), and says something about each partition."""
_MAX_FRAME_BYTES = 0x7FFFFFFF
_KIB = 1024

_FIXED_BYTES: dict[type[Request[Any]], int] = {
    m.ApiVersionsRequest: 64 * _KIB,
    m.SaslHandshakeRequest: 64 * _KIB,
    m.SaslAuthenticateRequest: 512 * _KIB,
    m.HeartbeatRequest: 64 * _KIB,
    m.InitProducerIdRequest: 64 * _KIB,
}
"""Answers that are small in any cluster; one to a login may be as large as a broker takes from clients
(``sasl.server.max.receive.size``)."""


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    """How many bytes an answer may have, and what to do if a right one has more."""

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
