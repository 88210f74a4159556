"""Produce, fetch and list offsets by hand, on top of :mod:`tests.support.wire.rawclient`."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from slackwater.kafka import records
from slackwater.kafka.wire import messages as m
from tests.support.wire.rawclient import RawClient, topic_metadata


def batch(
    values: Sequence[bytes | None],
    *,
    compression: str = "none",
    timestamps: Sequence[int] | None = None,
    **numbers: int,
) -> bytes:
    """One record batch (magic 2); ``numbers``: producer_id, producer_epoch, base_sequence."""
    builder = records.BatchBuilder(compression, 1 << 30)
    for i, value in enumerate(values):
        assert builder.append(timestamps[i] if timestamps else 1_700_000_000_000 + i, None, value, [])
    return bytes(builder.build(**numbers))


def old_message(magic: int, value: bytes) -> bytes:
    """A message of the formats before batches: magic 0 or 1."""
    stamp = struct.pack(">q", 1_700_000_000_000) if magic else b""
    body = struct.pack(">bb", magic, 0) + stamp + struct.pack(">ii", -1, len(value)) + value
    framed = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(framed)) + framed


def produce_request(
    topic: str | UUID, data: bytes | None, *, partition: int = 0, acks: int = -1
) -> m.ProduceRequest:
    """A ProduceRequest of one partition, by name (v12 and below) or id (v13)."""
    where: dict[str, Any] = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    return m.ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            m.ProduceRequestTopic(
                **where, partition_data=[m.ProduceRequestPartition(index=partition, records=data)]
            )
        ],
    )


def produce(
    client: RawClient,
    topic: str | UUID,
    data: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = 9,
) -> m.ProduceResponsePartition:
    """Produces to one partition and returns its part of the answer."""
    answer = client.request(produce_request(topic, data, partition=partition, acks=acks), version)
    return answer.responses[0].partition_responses[0]


def fetch_request(
    topics: Sequence[tuple[str | UUID, int, int]] = (),
    *,
    max_wait_ms: int = 0,
    partition_max_bytes: int = 1 << 20,
    **fields: Any,
) -> m.FetchRequest:
    """A FetchRequest of (topic name or id, partition, offset) triples."""
    return m.FetchRequest(
        max_wait_ms=max_wait_ms,
        **{"min_bytes": 1, **fields},
        topics=[
            m.FetchRequestTopic(
                **({"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}),
                partitions=[
                    m.FetchRequestPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes
                    )
                ],
            )
            for topic, partition, offset in topics
        ],
    )


def fetch(
    client: RawClient, topic: str | UUID, offset: int, *, partition: int = 0, version: int = 12, **fields: Any
) -> m.FetchResponsePartition:
    """A fetch without a session of one partition, and its part of the answer."""
    answer = client.request(fetch_request([(topic, partition, offset)], **fields), version)
    assert answer.error_code == 0, answer
    return answer.responses[0].partitions[0]


def values_of(part: m.FetchResponsePartition, fetch_offset: int = 0) -> list[bytes | None]:
    """The values of the records of a fetched partition, from ``fetch_offset`` on."""
    columns = records.decode(part.records or b"", fetch_offset=fetch_offset)
    return [None if r.value is None else bytes(r.value) for r in columns.records("t", 0)]


def list_offset(
    client: RawClient, topic: str, timestamp: int, *, partition: int = 0, version: int = 7
) -> m.ListOffsetsResponsePartitionResponse:
    """ListOffsets of one partition."""
    request = m.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            m.ListOffsetsRequestTopic(
                name=topic,
                partitions=[m.ListOffsetsRequestPartition(partition_index=partition, timestamp=timestamp)],
            )
        ],
    )
    return client.request(request, version).topics[0].partitions[0]


def topic_id_of(client: RawClient, topic: str) -> UUID:
    """The topic's id by Metadata."""
    return topic_metadata(client, topic).topic_id
