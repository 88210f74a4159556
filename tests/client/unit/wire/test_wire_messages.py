"""Encoding and decoding of every message at every version, with good and with bad bytes."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, EncodeError
from slackwater.kafka.wire.primitives import Reader, Writer
from slackwater.kafka.wire.schema import ARRAY, BYTES, RECORDS, STRING, Field, Message, Request, Struct
from tests.fuzz.wire import instance
from tests.support.wire.definitions import declared, item_of, structs_at, versions

KINDS = pytest.mark.parametrize("kind", declared(), ids=lambda kind: kind.__name__)
_EXAMPLES = 6


@KINDS
def test_round_trip(kind: type[Message]) -> None:
    """decode(encode(x)) == x at every version, and every shorter or longer frame is refused."""
    for version in versions(kind):
        rng = Random(f"{kind.__name__} {version}")
        for _ in range(_EXAMPLES):
            value = instance(rng, kind, version, kind)
            data = value.encode(version)
            assert kind.decode(data, version) == value
            assert kind.decode(memoryview(bytearray(data)), version) == value
            with pytest.raises(DecodeError):
                kind.decode(data + b"\0", version)


@KINDS
def test_truncated_anywhere(kind: type[Message]) -> None:
    """A frame that ends at any earlier byte raises DecodeError and nothing else."""
    for version in versions(kind):
        data = filled(kind, version).encode(version)
        for size in range(len(data)):
            with pytest.raises(DecodeError):
                kind.decode(data[:size], version)


def filled(kind: type[Any], version: int) -> Any:
    """A value with something in every field of ``version``: one element in each array."""
    values: dict[str, Any] = {}
    for field in kind._fields:
        if field.present(version):
            values[field.name] = filler(field, version)
    return kind(**values)


def filler(field: Field, version: int) -> Any:
    is_array, item = item_of(field.type)
    if isinstance(item, type):
        value: Any = filled(item, version)
    else:
        value = {
            "boolean": True,
            "uuid": UUID(int=7),
            "string": "abc",
            "bytes": b"xyz",
            "records": b"rec",
        }.get(item.name, 3)
    return [value] if is_array else value


@KINDS
def test_wild_lengths_neither_allocate_nor_escape(kind: type[Message]) -> None:
    """Any length in a frame may be made huge or negative: DecodeError or a value, in little memory."""
    patterns = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff", b"\x7f\xff")
    tracemalloc.start()
    try:
        for version in {kind.min_version, kind.max_version}:
            data = filled(kind, version).encode(version)
            for at in range(len(data)):
                for pattern in patterns:
                    broken = data[:at] + pattern + data[at + len(pattern) :]
                    try:
                        kind.decode(broken, version)
                    except DecodeError:
                        continue
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@KINDS
def test_no_element_is_empty(kind: type[Message]) -> None:
    """Every element of an array takes a byte at least: the reader's check of counts rests on it."""
    for version in versions(kind):
        for _, field in structs_at(kind, version):
            is_array, item = item_of(field.type)
            if field.present(version) and is_array and isinstance(item, type):
                writer = Writer()
                item.codec(version, version >= kind.flexible)[1](writer, item())
                assert len(writer.getvalue()) >= 1, (field.name, version)


@KINDS
def test_unknown_tagged_fields_are_skipped(kind: type[Message]) -> None:
    """KIP-482: a tagged field that is not declared is passed over."""
    for version in versions(kind):
        if version < kind.flexible:
            continue
        plain = kind().encode(version)
        assert plain[-1] == 0, "no tagged field is sent at its default"
        newer = plain[:-1] + b"\x01" + b"\x88\x27" + b"\x03" + b"abc"
        assert kind.decode(newer, version) == kind()


def assignments(kind: type[Message], version: int, wanted: Field, owner: type[Struct], value: Any) -> Any:
    """A message in which ``wanted`` of one ``owner`` in it is ``value``."""

    def build(struct: type[Any]) -> Any:
        values: dict[str, Any] = {}
        for field in struct._fields:
            is_array, item = item_of(field.type)
            if struct is owner and field is wanted:
                values[field.name] = value
            elif field.present(version) and isinstance(item, type):
                values[field.name] = [build(item)] if is_array else build(item)
        return struct(**values)

    return build(kind)


@KINDS
def test_fields_of_other_versions(kind: type[Message]) -> None:
    """A field that must not be lost raises EncodeError where the version lacks it; others are left out."""
    for version in versions(kind):
        for owner, field in structs_at(kind, version):
            if field.present(version):
                continue
            value = filler(field, field.since if field.since > version else field.until)
            if value == field.make_default():
                continue
            message = assignments(kind, version, field, owner, value)
            if field.ignorable:
                plain = assignments(kind, version, field, owner, field.make_default())
                assert message.encode(version) == plain.encode(version)
            else:
                with pytest.raises(EncodeError, match=field.name):
                    message.encode(version)


@KINDS
def test_versions_outside_the_range(kind: type[Message]) -> None:
    """A version that is not declared raises EncodeError, on both sides."""
    for version in (kind.min_version - 1, kind.max_version + 1):
        with pytest.raises(EncodeError, match=kind.__name__):
            kind().encode(version)
        with pytest.raises(EncodeError, match=kind.__name__):
            kind.decode(b"", version)


@KINDS
def test_none_where_none_is_not_allowed(kind: type[Message]) -> None:
    """None in a field that may not be null raises EncodeError that names it."""
    version = kind.max_version
    for field in kind._fields:
        sized = field.type in (STRING, BYTES, RECORDS) or isinstance(field.type, ARRAY)
        if field.present(version) and version < field.nullable and sized and field.tag is None:
            with pytest.raises(EncodeError, match=field.name):
                kind(**{field.name: None}).encode(version)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (m.HeartbeatRequest(generation_id=2**31), 4),
        (m.HeartbeatRequest(generation_id=-(2**31) - 1), 4),
        (m.HeartbeatRequest(group_id="x" * 40_000), 3),
        (m.ProduceRequest(acks=70_000), 9),
    ],
    ids=["too-large", "too-small", "long-string", "int16"],
)
def test_values_that_do_not_fit(message: Request[Any], version: int) -> None:
    """A value outside its type raises EncodeError."""
    with pytest.raises(EncodeError):
        message.encode(version)


def test_unknown_keyword() -> None:
    """A field that does not exist is an error at once, by its name."""
    with pytest.raises(TypeError, match="grupp_id"):
        m.HeartbeatRequest(grupp_id="x")  # type: ignore[call-arg]


def test_strings_must_be_utf8() -> None:
    """Bytes that are no UTF-8 raise DecodeError."""
    with pytest.raises(DecodeError, match="UTF-8"):
        m.HeartbeatRequest.decode(b"\x00\x02\xff\xfe" + bytes(6), 0)


def test_records_are_not_copied() -> None:
    """``records`` come back as a view into the frame."""
    partition = m.ProduceRequestPartition(records=b"r" * 100)
    request = m.ProduceRequest(topic_data=[m.ProduceRequestTopic(partition_data=[partition])])
    frame = bytearray(request.encode(9))
    view = m.ProduceRequest.decode(frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    frame[frame.index(b"rrr")] = ord("X")
    assert view[0] == ord("X")


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varint(value: int) -> None:
    """Unsigned variable-length integers of 32 bits."""
    writer = Writer()
    writer.uvarint(value)
    reader = Reader(writer.getvalue())
    assert reader.uvarint() == value
    assert reader.remaining == 0


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x1f", b"\x80" * 10, b"\x80", b""]
)
def test_bad_varints(data: bytes) -> None:
    """Too long, too large or cut off: DecodeError."""
    with pytest.raises(DecodeError):
        Reader(data).uvarint()
