"""Frames come out of the stream as they went in, however it is cut up."""

from __future__ import annotations

import random

import pytest

from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.frame import STAGING_BYTES, FrameReader
from slackwater.kafka.wire.primitives import Buffer


def frames_of(sizes: list[int]) -> list[bytes]:
    return [n.to_bytes(4, "big") + random.Random(n).randbytes(size - 4) for n, size in enumerate(sizes)]


def feed(reader: FrameReader, data: bytes, cut: random.Random) -> None:
    view = memoryview(data)
    while view:
        room = reader.buffer()
        assert len(room) > 0
        size = min(len(room), len(view), cut.choice([1, 3, 8, 1000, 70_000, 1 << 20]))
        room[:size] = view[:size]
        view = view[size:]
        reader.advance(size)


@pytest.mark.parametrize("seed", range(20))
def test_frames_survive_any_cut(seed: int) -> None:
    rng = random.Random(seed)
    near = [STAGING_BYTES + delta for delta in (-5, -4, -3, 0, 1)]
    sizes = [rng.choice([4, 5, 60, 3000, *near, 300_000]) for _ in range(12)]
    sent = frames_of(sizes)
    headers: list[int] = []
    got: list[Buffer] = []
    reader = FrameReader(lambda number, _: headers.append(number), got.append)
    feed(reader, b"".join(len(frame).to_bytes(4, "big") + frame for frame in sent), rng)
    assert [bytes(frame) for frame in got] == sent
    assert list(dict.fromkeys(headers)) == list(range(len(sent)))
    assert not reader.partial


def test_a_large_frame_is_not_copied_again() -> None:
    got: list[object] = []
    reader = FrameReader(lambda *_: None, got.append)
    feed(reader, (500_000).to_bytes(4, "big") + bytes(400_000), random.Random(1))
    assert reader.partial
    room = reader.buffer()
    assert len(room) == 100_000
    room[:] = bytes(100_000)
    reader.advance(100_000)
    assert got == [bytes(500_000)]
    assert room.obj is got[0]


@pytest.mark.parametrize("size", [-1, 0, 3, -0x48545450])
def test_an_impossible_length_is_refused(size: int) -> None:
    reader = FrameReader(lambda *_: None, lambda _: None)
    with pytest.raises(DecodeError):
        feed(reader, size.to_bytes(4, "big", signed=True) + bytes(8), random.Random(1))


def test_a_refused_header_makes_no_room() -> None:
    def refuse(correlation_id: int, size: int) -> None:
        raise DecodeError(f"not {correlation_id} of {size}")

    reader = FrameReader(refuse, lambda _: None)
    with pytest.raises(DecodeError, match=f"not 77 of {1 << 29}"):
        feed(reader, (1 << 29).to_bytes(4, "big") + (77).to_bytes(4, "big"), random.Random(1))
    assert len(reader.buffer()) <= STAGING_BYTES
