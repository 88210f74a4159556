"""Cuts a byte stream into response frames, with one copy at most for each byte.

Small frames are read together into a staging buffer and copied out. A frame that does not fit
the staging buffer gets a buffer of its own, which the socket then fills directly: a large fetch
response is written once by the kernel and afterwards only looked at.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.frame import frame_size
from slackwater.kafka.wire.primitives import Buffer

_CORRELATION_ID = struct.Struct(">i")
_PREFIX_BYTES = 8
"""The length and the correlation id: enough to say whether a frame is one that was asked for."""

_MAX_FRAME_BYTES = 0x7FFFFFFF
STAGING_BYTES = 64 * 1024

_UNFILLED = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)
"""``bytearray(size)`` writes zeros all over it first, which took as long as the copy out of the socket."""


class FrameReader:
    """Takes bytes in by :meth:`buffer` and :meth:`advance`, gives frames out.

    ``on_header(correlation_id, size)`` is called as soon as a frame's first eight bytes are there, before
    room is made for it, and may raise to refuse the frame; ``on_frame(payload)`` when it is whole
    (``payload`` is without the length, belongs to the receiver, and is not changed afterwards).
    """

    def __init__(
        self,
        on_header: Callable[[int, int], None],
        on_frame: Callable[[Buffer], None],
    ) -> None:
        self._on_header = on_header
        self._on_frame = on_frame
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0
        self._large: bytearray | None = None
        self._filled = 0

    @property
    def partial(self) -> bool:
        """Whether a frame has begun that is not whole yet."""
        return self._large is not None or self._staged > 0

    @property
    def begun(self) -> bytes:
        """The first bytes of a frame that has begun and whose length is not known yet."""
        return bytes(self._staging[: min(self._staged, _PREFIX_BYTES)]) if self._large is None else b""

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return self._staging[self._staged :]

    def advance(self, size: int) -> None:
        """Says that ``size`` bytes were put into :meth:`buffer`.

        Raises :class:`DecodeError` for a frame whose length is negative or too small for a response, and
        whatever the callbacks raise. After that the stream cannot be read on.
        """
        if self._large is None:
            self._staged += size
            self._cut()
            return
        self._filled += size
        if self._filled == len(self._large):
            payload, self._large = self._large, None
            self._on_frame(payload)

    def _cut(self) -> None:
        pos = 0
        while self._large is None and self._staged - pos >= _PREFIX_BYTES:
            body = pos + 4
            size = frame_size(self._staging[pos:body], _MAX_FRAME_BYTES)
            if size < _CORRELATION_ID.size:
                raise DecodeError(f"response frame of {size} bytes, too short for a correlation id")
            self._on_header(_CORRELATION_ID.unpack_from(self._staging, body)[0], size)
            if body + size <= self._staged:
                self._on_frame(bytes(self._staging[body : body + size]))
                pos = body + size
            elif size + 4 > STAGING_BYTES:
                self._begin_large(body, size)
                pos = self._staged
            else:
                break
        self._staging[: self._staged - pos] = self._staging[pos : self._staged]
        self._staged -= pos

    def _begin_large(self, start: int, size: int) -> None:
        self._large = _UNFILLED(None, size)
        self._filled = self._staged - start
        self._large[: self._filled] = self._staging[start : self._staged]
