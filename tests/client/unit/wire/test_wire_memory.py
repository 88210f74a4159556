"""What a frame's elements take in memory is counted before they are made, for every message and version."""

from __future__ import annotations

import tracemalloc

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, MemoryLimitError
from slackwater.kafka.wire.primitives import ROOM_BYTES, ROOM_FACTOR, Reader, Writer, room_of
from slackwater.kafka.wire.schema import ARRAY, INT32, STRING, Message, Struct, f
from tests.support.wire.definitions import declared
from tests.support.wire.floods import floods

_ELEMENTS = 100
_SLACK_BYTES = 8 * 1024
_TEXT_FACTOR = 4
"""A character beyond the Basic Multilingual Plane makes every character of its string four bytes."""


@pytest.mark.parametrize("kind", declared(), ids=lambda kind: kind.__name__)
def test_no_array_takes_more_than_was_counted(kind: type[Message]) -> None:
    for version in range(kind.min_version, kind.max_version + 1):
        for path, message in floods(kind, version, _ELEMENTS):
            data = message.encode(version)
            kind.decode(data, version)  # makes the codec, which is kept
            reader = Reader(data)
            tracemalloc.start()
            read = kind.read_from(reader, version)
            taken = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            counted = room_of(len(data)) - reader.room_bytes
            assert taken <= counted + _TEXT_FACTOR * len(data) + _SLACK_BYTES, f"v{version} {path}"
            assert read == message


def _synonyms(count: int) -> bytes:
    """An answer to DescribeConfigs with elements of four bytes, which are objects of several hundred."""
    synonym = m.DescribeConfigsResponseSynonym(value=None)
    config = m.DescribeConfigsResponseResourceResult(synonyms=[synonym] * count)
    result = m.DescribeConfigsResponseResult(configs=[config])
    return m.DescribeConfigsResponse(results=[result]).encode(4)


def test_a_frame_takes_a_small_multiple_of_its_size_or_is_refused() -> None:
    data = _synonyms(300_000)
    tracemalloc.start()
    with pytest.raises(MemoryLimitError, match="array of 300000 elements"):
        m.DescribeConfigsResponse.decode(data, 4)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < ROOM_BYTES + ROOM_FACTOR * len(data)
    assert taken < 100_000  # it is refused before its elements are made


def test_arrays_in_arrays_share_the_room() -> None:
    """None of them is too large by itself."""
    synonym = m.DescribeConfigsResponseSynonym(value=None)
    config = m.DescribeConfigsResponseResourceResult(synonyms=[synonym] * 100)
    result = m.DescribeConfigsResponseResult(configs=[config] * 600)
    data = m.DescribeConfigsResponse(results=[result]).encode(4)
    with pytest.raises(MemoryLimitError, match="array of 100 elements"):
        m.DescribeConfigsResponse.decode(data, 4)


@pytest.mark.parametrize("version", [0, 8, 12])
def test_an_answer_of_a_cluster_of_any_size_is_read(version: int) -> None:
    """What its objects take is within what each byte may, without what any frame may."""
    partition = m.MetadataResponsePartition(leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
    topics = [m.MetadataResponseTopic(name=f"topic-{n}", partitions=[partition] * 6) for n in range(200)]
    data = m.MetadataResponse(topics=topics).encode(version)
    read = m.MetadataResponse.read_from(Reader(data, ROOM_FACTOR * len(data)), version)
    assert len(read.topics) == 200


class Numbers(Message, versions=(0, 1), flexible=1):
    names: list[str] = f(ARRAY(STRING), factory=list)
    numbers: list[int] = f(ARRAY(INT32), factory=list)


@pytest.mark.parametrize(("version", "claim"), [(0, 4), (0, 5), (1, 8), (1, 9)])
def test_an_array_cannot_have_more_elements_than_fit_what_is_left(version: int, claim: int) -> None:
    """A string has two bytes at least, and one in the compact form."""
    writer = Writer()
    if version:
        writer.uvarint(claim + 1)
    else:
        writer.int32(claim)
    data = writer.getvalue() + bytes(8)
    fits = claim * (1 if version else 2) <= 8
    with pytest.raises(DecodeError) as raised:
        Numbers.decode(data, version)
    assert (f"array of {claim} elements" in str(raised.value)) is not fits


def test_unknown_tagged_fields_are_counted() -> None:
    whole = Numbers().encode(1)[:-1]
    writer = Writer()
    writer.uvarint(40_000)
    flood = Reader(whole + writer.getvalue() + bytes(2 * 40_000), 1_000_000)
    with pytest.raises(MemoryLimitError, match="array of 40000"):
        Numbers.read_from(flood, 1)
    writer = Writer()
    writer.uvarint(1 << 30)
    with pytest.raises(DecodeError, match="array of 1073741824 elements of at least 2 bytes"):
        Numbers.decode(whole + writer.getvalue() + bytes(100), 1)


def test_a_tagged_array_is_counted() -> None:
    endpoint = m.FetchResponseNodeEndpoint()
    data = m.FetchResponse(node_endpoints=[endpoint] * 100).encode(16)
    read = Reader(data)
    m.FetchResponse.read_from(read, 16)
    assert room_of(len(data)) - read.room_bytes > 100 * 100


def test_an_element_of_no_size_cannot_be_declared() -> None:
    class Nothing(Struct):
        pass

    class Message0(Message, versions=(0, 0)):
        nothing: list[Nothing] = f(ARRAY(Nothing), factory=list)

    with pytest.raises(TypeError, match="no size"):
        Message0().encode(0)
