"""Errors of stored records."""

from __future__ import annotations

from typing import Any

from slackwater.kafka.errors import reduce_error


class RecordError(Exception):
    """Records that cannot be read or written."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_error(self)


class CorruptRecordError(RecordError):
    """A batch whose bytes are not what they should be.

    ``offset`` is its base offset, -1 if unknown; ``last_offset`` that of its last record as far as its header
    can be believed: who wants to read on begins behind that.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"corrupt record batch at offset {offset}: {reason}")
        self.offset = self.last_offset = offset
        self.reason = reason


class UnsupportedRecordFormatError(RecordError):
    """A batch of a format (magic) or codec that is not supported here."""
