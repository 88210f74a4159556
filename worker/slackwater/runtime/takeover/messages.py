"""The bodies of takeover requests and answers. All are JSON objects; a fault is a ValueError of one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.untrusted import json_object, one_line, text, whole

MOST_BYTES = 4 * 1024 * 1024
"""Of a body, as read from the network: an answer has an offset and a note a partition, about 250 bytes."""
_MAX_MS = 10**15
"""Some 30,000 years: no sum of times is beyond what a clock can hold."""
_MAX_INT32 = 2**31 - 1
_WILDCARDS = ("", "0.0.0.0", "::")


def encode(document: Mapping[str, Any]) -> bytes:
    """A body."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def decode(body: bytes) -> dict[str, Any]:
    """Reads a body. Raises ValueError."""
    return json_object(body)


def _text(document: Mapping[str, Any], name: str) -> str:
    return text(document.get(name), name)


def _number(document: Mapping[str, Any], name: str, least: int = 0, most: int = _MAX_MS) -> int:
    return whole(document.get(name), name, least, most)


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` (IPv6: ``[host]:port``) in two. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{one_line(repr(address), 300)} is not host:port")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of :func:`split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_order(body: bytes) -> tuple[str, str]:
    """The predecessor's ``host:port`` in POST /takeover, and who a request to it is signed for.

    The first is "" where there is nobody to ask, the second where that is not known. Raises ValueError.
    """
    document = decode(body)
    address = _text(document, "predecessor")
    if address:
        split_address(address)
    return address, text(document.get("target", ""), "target")


def read_withdrawal(body: bytes) -> str:
    """The pod that does not come, in DELETE /handover. Raises ValueError."""
    return _text(decode(body), "by")


@dataclass(frozen=True)
class HandoverRequest:
    """POST /handover: ``by`` (a pod) asks its predecessor to hand over the member ``instance``.

    ``address``: where ``by`` answers GET /healthz. ``deadline_ms``: how long it waits for the answer.
    ``trace``: what the request's header ``traceparent`` says; "": nothing. It decides nothing, and is not
    signed.
    """

    instance: str
    by: str
    address: str
    deadline_ms: int
    trace: str = ""

    def encode(self) -> bytes:
        """The body."""
        return encode(
            {
                "instance": self.instance,
                "by": self.by,
                "address": self.address,
                "deadline_ms": self.deadline_ms,
            }
        )

    @classmethod
    def read(cls, body: bytes, peer_host: str, trace: str = "") -> HandoverRequest:
        """Reads a body that came from ``peer_host``, which stands for an address that names no machine.

        Raises ValueError.
        """
        document = decode(body)
        request = cls(
            _text(document, "instance"),
            _text(document, "by"),
            _text(document, "address"),
            _number(document, "deadline_ms"),
            trace,
        )
        if request.deadline_ms <= 0:
            raise ValueError(f"deadline_ms must be above 0, not {request.deadline_ms}")
        host, _, port = request.address.rpartition(":")
        if host.strip("[]") in _WILDCARDS:
            request = replace(request, address=join_address(peer_host, split_address(f"x:{port}")[1]))
        split_address(request.address)
        return request


@dataclass(frozen=True)
class HandoverAnswer:
    """What the predecessor leaves: the group's ``generation`` as it knows it, and the committed
    ``offsets`` with their notes. ``drain_ms``, ``committed_ms``: its wall clock when it began to drain,
    and had committed. ``unserved_ms``: how long before the answer each partition was last served
    (:attr:`slackwater.runtime.delivery.partition.OwnedPartition.served_ms`), ``took_ms``: from the request's
    arrival to the answer; both by its monotonic clock. ``clock``: which clock that is
    (:meth:`slackwater.clock.Clock.mono_id`), ``sent_ms``: when it answered, by that. Empty and 0 from older
    workers. They decide nothing.
    """

    generation: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    drain_ms: int
    committed_ms: int
    unserved_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    took_ms: int = 0
    clock: str = ""
    sent_ms: int = 0

    def document(self) -> dict[str, Any]:
        """The answer's body."""
        return {
            "generation": self.generation,
            "offsets": {str(tp): [at.offset, at.metadata] for tp, at in sorted(self.offsets.items())},
            "drain_ms": self.drain_ms,
            "committed_ms": self.committed_ms,
            "unserved_ms": {str(tp): ms for tp, ms in sorted(self.unserved_ms.items())},
            "took_ms": self.took_ms,
            "clock": self.clock,
            "sent_ms": self.sent_ms,
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> HandoverAnswer:
        """Reads an answer's body. Raises ValueError."""
        offsets = document.get("offsets")
        if not isinstance(offsets, dict):
            raise ValueError(f"offsets must be a mapping, not {type(offsets).__name__}")
        parsed = {}
        for name, pair in offsets.items():
            tp = _partition(name)
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError(f"{one_line(name, 300)}: must be [offset, metadata]")
            parsed[tp] = OffsetAndMetadata(
                whole(pair[0], f"the offset of {one_line(tp, 300)}"),
                text(pair[1], f"the metadata of {one_line(tp, 300)}", MOST_BYTES),
            )
        return cls(
            _number(document, "generation", -1, _MAX_INT32),
            parsed,
            _number(document, "drain_ms"),
            _number(document, "committed_ms"),
            _durations(document, "unserved_ms"),
            whole(document.get("took_ms", 0), "took_ms", 0, _MAX_MS),
            text(document.get("clock", ""), "clock"),
            whole(document.get("sent_ms", 0), "sent_ms", 0, _MAX_MS),
        )


def _partition(name: object) -> TopicPartition:
    topic, _, partition = str(name).rpartition("-")
    if not topic or not partition.isascii() or not partition.isdigit() or len(partition) > 10:
        raise ValueError(f"{one_line(repr(name), 300)} is not a partition")
    return TopicPartition(topic, whole(int(partition), "a partition", 0, _MAX_INT32))


def _durations(document: Mapping[str, Any], name: str) -> dict[TopicPartition, int]:
    """Durations by partition, in ms; empty where the document has none of that name."""
    durations = document.get(name, {})
    if not isinstance(durations, dict):
        raise ValueError(f"{name} must be a mapping, not {type(durations).__name__}")
    return {
        _partition(tp): whole(ms, f"{name} of {one_line(tp, 300)}", 0, _MAX_MS)
        for tp, ms in durations.items()
    }


@dataclass(frozen=True)
class HandedOver:
    """To whom a worker has handed over: a pod, and where it answers GET /healthz."""

    by: str
    address: str
