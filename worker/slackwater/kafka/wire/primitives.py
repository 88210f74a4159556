"""Primitive types of the Kafka protocol: a bounds-checked reader and a gathering writer.

Source of every layout: the Kafka protocol guide, "Protocol Primitive Types" (KIP-482 for the
compact forms). The reader never trusts a length: a length beyond the frame raises
:class:`~slackwater.kafka.wire.errors.DecodeError`, and so no input can make it allocate more
than the frame it came in.
"""

from __future__ import annotations

import struct
from uuid import UUID

from slackwater.kafka.wire.errors import DecodeError, EncodeError

Buffer = bytes | bytearray | memoryview

ZERO_UUID = UUID(int=0)

_BOOL = struct.Struct(">?")
_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

_MAX_STRING_BYTES = 0x7FFF
_SHARE_FROM_BYTES = 4096
"""Buffers of at least this size are handed on as they are, without a copy into the frame."""


class Reader:
    """Reads primitives from one frame, front to back.

    ``data`` is any buffer. All reads raise :class:`DecodeError` where the frame ends too early.
    ``records`` fields come back as a memoryview into ``data``; everything else is copied out.
    """

    __slots__ = ("_end", "_view", "pos")

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)
        self._end = len(self._view)
        self.pos = 0

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return self._end - self.pos

    def _fixed(self, layout: struct.Struct) -> int:
        pos = self.pos
        if pos + layout.size > self._end:
            raise DecodeError(f"frame ends at byte {self._end}, wanted {layout.size} more at byte {pos}")
        self.pos = pos + layout.size
        value: int = layout.unpack_from(self._view, pos)[0]
        return value

    def several(self, layout: struct.Struct) -> tuple[int, ...]:
        """Integers that follow each other, by one call: what a struct of thousands is made of."""
        pos = self.pos
        if pos + layout.size > self._end:
            raise DecodeError(f"frame ends at byte {self._end}, wanted {layout.size} more at byte {pos}")
        self.pos = pos + layout.size
        return layout.unpack_from(self._view, pos)

    def boolean(self) -> bool:
        return self._fixed(_INT8) != 0

    def int8(self) -> int:
        return self._fixed(_INT8)

    def int16(self) -> int:
        return self._fixed(_INT16)

    def int32(self) -> int:
        return self._fixed(_INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.raw(16)))

    def uvarint(self) -> int:
        """An unsigned variable-length integer of at most five bytes."""
        if self.pos < self._end:  # nearly all are of one byte
            first: int = self._view[self.pos]
            if first < 0x80:
                self.pos += 1
                return first
        value = 0
        for shift in range(0, 35, 7):
            byte = self._fixed(_INT8) & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise DecodeError(f"variable-length integer at byte {self.pos} does not fit 32 bits")

    def raw(self, size: int) -> memoryview:
        """The next ``size`` bytes, not copied."""
        pos = self.pos
        if size < 0 or pos + size > self._end:
            raise DecodeError(f"length {size} at byte {pos} is outside the frame of {self._end} bytes")
        self.pos = pos + size
        return self._view[pos : self.pos]

    def text(self, size: int) -> str:
        """``size`` bytes of UTF-8."""
        try:
            return str(self.raw(size), "utf-8")
        except UnicodeDecodeError as exc:
            raise DecodeError(f"string at byte {self.pos - size} is not UTF-8: {exc.reason}") from exc

    def count(self, size: int) -> int:
        """Checks an array's length: no element takes less than one byte."""
        if size > self.remaining:
            raise DecodeError(f"array of {size} at byte {self.pos} in a frame of {self._end} bytes")
        return size

    def skip_tagged_fields(self) -> None:
        """Passes over tagged fields that this side does not know (KIP-482)."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self.raw(self.uvarint())


class Writer:
    """Collects one frame. Large buffers are kept by reference, so they must not change."""

    __slots__ = ("_parts", "_tail")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._tail = bytearray()

    def _fixed(self, layout: struct.Struct, value: int) -> None:
        try:
            self._tail += layout.pack(value)
        except struct.error as exc:
            raise EncodeError(f"{value!r} does not fit: {exc}") from exc

    def several(self, layout: struct.Struct, values: tuple[int, ...]) -> None:
        """Integers that follow each other. Raises :class:`struct.error` where one does not fit."""
        self._tail += layout.pack(*values)

    def boolean(self, value: bool) -> None:
        self._tail.append(1 if value else 0)

    def int8(self, value: int) -> None:
        self._fixed(_INT8, value)

    def int16(self, value: int) -> None:
        self._fixed(_INT16, value)

    def int32(self, value: int) -> None:
        self._fixed(_INT32, value)

    def int64(self, value: int) -> None:
        self._fixed(_INT64, value)

    def uuid(self, value: UUID) -> None:
        self._tail += value.bytes

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self._tail.append((value & 0x7F) | 0x80)
            value >>= 7
        self._tail.append(value)

    def raw(self, value: Buffer) -> None:
        if len(value) < _SHARE_FROM_BYTES:
            self._tail += value
            return
        if self._tail:
            self._parts.append(self._tail)
            self._tail = bytearray()
        self._parts.append(value)

    def text(self, value: str, *, compact: bool) -> None:
        data = value.encode("utf-8")
        if compact:
            self.uvarint(len(data) + 1)
        elif len(data) > _MAX_STRING_BYTES:
            raise EncodeError(f"string of {len(data)} bytes; the protocol allows {_MAX_STRING_BYTES}")
        else:
            self.int16(len(data))
        self._tail += data

    def parts(self) -> list[Buffer]:
        """The frame as a list of buffers, for a gathering write."""
        return [*self._parts, self._tail] if self._tail else list(self._parts)

    def getvalue(self) -> bytes:
        """The frame as one bytes object."""
        return b"".join(self.parts())
