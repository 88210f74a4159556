"""Messages of every API and version, and the frames they come in."""

from __future__ import annotations

import functools
from random import Random
from typing import Any
from uuid import UUID

from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.frame import FrameReader
from slackwater.kafka.wire.primitives import ROOM_FACTOR, Reader
from slackwater.kafka.wire.schema import Message, Struct, Type
from tests.fuzz.engine import Broken, Input
from tests.fuzz.mutate import mutated
from tests.support.wire.definitions import declared, item_of, versions
from tests.support.wire.floods import floods

_SAMPLES = 6
_INTEGERS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_ROOM_BYTES = 64 * 1024
_TEXT_FACTOR = 4
"""What text may take for each of its bytes."""
_FLOOD_ELEMENTS = 400


class Wire:
    """decode() of every message: :class:`DecodeError`, or a value that reads the same when sent again."""

    name = "wire"

    def __init__(self) -> None:
        self._kinds = [(kind, version) for kind in declared() for version in versions(kind)]

    def make(self, rng: Random) -> Input:
        kind, version = self._kinds[int(rng.random() * len(self._kinds))]
        if rng.random() < 0.05:
            return Input(rng.randbytes(int(rng.random() * 200)), (kind.__name__, version), kind)
        other = self._kinds[int(rng.random() * len(self._kinds))]
        good = _flooding(kind, version) if rng.random() < 0.01 else samples(kind, version)
        base = good[int(rng.random() * len(good))] if good else b""
        return Input(mutated(rng, base, samples(*other)), (kind.__name__, version), kind)

    def check(self, given: Input) -> bool:
        kind, version = given.options, given.kind[1]
        try:
            value = _read(kind, version, given.data)
        except DecodeError:
            return False
        again = value.encode(version)
        if kind.decode(again, version).encode(version) != again:
            raise Broken("what was read is not what is read when it is sent")
        return True

    def memory_bytes(self, given: Input) -> int:
        """Two values and their bytes."""
        return 2 * (_ROOM_BYTES + (ROOM_FACTOR + _TEXT_FACTOR + 2) * len(given.data))


def _read(kind: type[Message], version: int, data: bytes) -> Message:
    """A message with no room but what its bytes give."""
    reader = Reader(data, ROOM_FACTOR * len(data) + _ROOM_BYTES // 2)
    value = kind.read_from(reader, version)
    if reader.remaining:
        raise DecodeError(f"{reader.remaining} bytes left over")
    return value


@functools.cache
def _flooding(kind: type[Message], version: int) -> list[bytes]:
    return [message.encode(version) for _, message in floods(kind, version, _FLOOD_ELEMENTS)]


_made: dict[tuple[str, int], list[bytes]] = {}


def samples(kind: type[Message], version: int) -> list[bytes]:
    """Some valid messages."""
    made = _made.get((kind.__name__, version))
    if made is None:
        rng = Random(f"{kind.__name__} {version}")
        made = [instance(rng, kind, version, kind).encode(version) for _ in range(_SAMPLES)]
        _made[kind.__name__, version] = made
    return made


def instance(rng: Random, kind: type[Struct], version: int, message: type[Message]) -> Any:
    """A struct as it can be sent at ``version``."""
    values = {}
    for field in kind._fields:
        if field.present(version) and (field.tag is None or version >= message.flexible):
            nullable = version >= field.nullable
            null = nullable and rng.random() < 0.2
            values[field.name] = None if null else _value(rng, field.type, version, message)
    return kind(**values)


def _value(rng: Random, type_: Type | type[Struct], version: int, message: type[Message]) -> Any:
    is_array, item = item_of(type_)
    if is_array:
        return [_value(rng, item, version, message) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    if isinstance(item, type):
        return instance(rng, item, version, message)
    if item.name in _INTEGERS:
        bits = _INTEGERS[item.name]
        signed = not item.name.startswith("u")
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return rng.choice([low, high, 0, rng.randint(low, high), rng.randrange(100)])
    made = {
        "boolean": lambda: rng.random() < 0.5,
        "uuid": lambda: UUID(int=rng.getrandbits(128)),
        "string": lambda: rng.choice(["", "a", "topic-ü", "n" * 130]),
        "bytes": lambda: rng.randbytes(rng.choice([0, 1, 20, 130])),
        "records": lambda: rng.randbytes(rng.choice([0, 1, 20, 5000])),
        "float64": rng.random,
    }
    return made[item.name]()


class Frames:
    """A stream of frames, cut anywhere, some with lengths that lie."""

    name = "frames"
    _LIMIT = 200_000

    def make(self, rng: Random) -> Input:
        parts = []
        for _ in range(1 + int(rng.random() * 4)):
            size = int(rng.choice([0, 1, 4, 60, 3000, 70_000]) * rng.random()) + 4
            body = rng.randbytes(8) * (size // 8 + 1)
            claimed = (
                size if rng.random() < 0.9 else rng.choice([-1, 0, 3, 4, size + 9, 1 << 30, self._LIMIT + 1])
            )
            parts.append(claimed.to_bytes(4, "big", signed=True) + body[:size])
        return Input(b"".join(parts), "stream", rng.getrandbits(32))

    def check(self, given: Input) -> bool:
        frames: list[bytes] = []
        rng, data, at = Random(given.options), memoryview(given.data), 0
        reader = FrameReader(self._check_size, lambda frame: frames.append(bytes(frame)))
        try:
            while at < len(data):
                room = reader.buffer()
                size = min(len(room), len(data) - at, 1 + int(rng.choice([3, 50, 70_000]) * rng.random()))
                room[:size] = data[at : at + size]
                at += size
                reader.advance(size)
        except DecodeError:
            return self._are_its_frames(frames, given.data) and False
        return self._are_its_frames(frames, given.data)

    def _check_size(self, correlation_id: int, size: int) -> None:
        if size > self._LIMIT:
            raise DecodeError(f"{size} bytes")

    @staticmethod
    def _are_its_frames(frames: list[bytes], data: bytes) -> bool:
        at = 0
        for frame in frames:
            size = int.from_bytes(data[at : at + 4], "big", signed=True)
            if data[at + 4 : at + 4 + size] != frame:
                raise Broken("a frame is not what was in the stream")
            at += 4 + size
        return True

    def memory_bytes(self, given: Input) -> int:
        return 2 * len(given.data) + self._LIMIT + 2 * _ROOM_BYTES
