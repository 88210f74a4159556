"""Frames and headers."""

from __future__ import annotations

import struct

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.frame import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    frame_size,
    skip_request_tags,
)
from slackwater.kafka.wire.primitives import Reader


def joined(parts: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(parts)


def test_request_header_v1_bytes() -> None:
    """A plain version: key, version, correlation id, client id, body."""
    data = joined(encode_request(RequestHeader(12, 0, 7, "me"), m.HeartbeatRequest(group_id="g")))
    body = b"\x00\x01g" + bytes(4) + bytes(2)
    expected = struct.pack(">hhih", 12, 0, 7, 2) + b"me" + body
    assert data == struct.pack(">i", len(expected)) + expected


def test_request_header_v2_bytes() -> None:
    """A flexible version has tagged fields behind the client id, which keeps its plain form."""
    data = joined(encode_request(RequestHeader(12, 4, 7, None), m.HeartbeatRequest()))
    head = struct.pack(">hhih", 12, 4, 7, -1) + b"\x00"
    assert data[4:].startswith(head)
    assert data[4 + len(head) :] == b"\x01" + bytes(4) + b"\x01" + b"\x00" + b"\x00"


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("client_id", ["me", "", None])
def test_request_round_trip(version: int, client_id: str | None) -> None:
    """What is sent is what is read."""
    header = RequestHeader(12, version, 99, client_id)
    request = m.HeartbeatRequest(group_id="g", member_id="x", generation_id=3)
    frame = joined(encode_request(header, request))
    assert frame_size(frame[:4], 1000) == len(frame) - 4
    reader = Reader(frame[4:])
    assert decode_request_header(reader) == header
    skip_request_tags(reader, header, m.HeartbeatRequest)
    assert m.HeartbeatRequest.read_from(reader, version) == request
    assert reader.remaining == 0


@pytest.mark.parametrize("version", range(5))
def test_response_round_trip(version: int) -> None:
    """Response header v1 for flexible versions."""
    header = RequestHeader(12, version, 99, None)
    frame = joined(encode_response(header, m.HeartbeatResponse(error_code=27)))
    assert decode_response(frame[4:], 12, version, m.HeartbeatResponse) == (
        99,
        m.HeartbeatResponse(error_code=27),
    )
    assert len(frame) == 4 + 4 + (0, 0, 0, 0, 1)[version] + 2 + (4 if version else 0) + (
        1 if version == 4 else 0
    )


@pytest.mark.parametrize("version", range(5))
def test_api_versions_answer_keeps_the_plain_header(version: int) -> None:
    """KIP-511: response header v0 at every version."""
    header = RequestHeader(18, version, 5, None)
    frame = joined(encode_response(header, m.ApiVersionsResponse(error_code=35)))
    assert frame[4:10] == struct.pack(">ih", 5, 35)
    assert decode_response(frame[4:], 18, version, m.ApiVersionsResponse)[1].error_code == 35


def test_unknown_tags_in_a_response_header() -> None:
    """Tagged fields of a header are passed over."""
    payload = struct.pack(">i", 5) + b"\x01\x09\x02ab" + m.HeartbeatResponse(error_code=1).encode(4)
    assert decode_response(payload, 12, 4, m.HeartbeatResponse)[1].error_code == 1


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_frame_size_out_of_bounds(size: int) -> None:
    """A negative or oversized frame raises DecodeError."""
    with pytest.raises(DecodeError, match=str(size)):
        frame_size(struct.pack(">i", size), 1000)


def test_leftover_and_missing_bytes() -> None:
    """Bytes behind the body, and a body that ends too early, raise DecodeError."""
    whole = struct.pack(">i", 1) + m.HeartbeatResponse().encode(0)
    assert decode_response(whole, 12, 0, m.HeartbeatResponse)[0] == 1
    with pytest.raises(DecodeError, match="left over"):
        decode_response(whole + b"\x00", 12, 0, m.HeartbeatResponse)
    for size in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_response(whole[:size], 12, 0, m.HeartbeatResponse)


def test_large_records_are_sent_without_a_copy() -> None:
    """A frame is a list of buffers; large records are one of them as they are."""
    data = b"r" * 100_000
    partition = m.ProduceRequestPartition(records=data)
    request = m.ProduceRequest(topic_data=[m.ProduceRequestTopic(partition_data=[partition])])
    parts = encode_request(RequestHeader(0, 9, 1, None), request)
    assert any(part is data for part in parts)
    assert frame_size(joined(parts)[:4], 1 << 20) == len(joined(parts)) - 4
