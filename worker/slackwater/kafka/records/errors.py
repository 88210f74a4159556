"""Errors of stored records."""

from __future__ import annotations

from typing import Any

from slackwater.kafka.errors import reduce_error


class RecordError(Exception):
    """Records that cannot be read or written.

    ``offset`` is the base offset of the batch, -1 if unknown; ``last_offset`` that of its last record as far
    as its header can be believed: who wants to read on begins behind that. ``span``: where its bytes begin
    and end in what was decoded; (0, 0) where it is not known how far it reaches.
    """

    offset = -1
    last_offset = -1
    span = (0, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_error(self)


class CorruptBatchError(RecordError):
    """A batch whose bytes are not what they should be."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"corrupt record batch at offset {offset}: {reason}")
        self.offset = self.last_offset = offset
        self.reason = reason


class UnsupportedRecordFormatError(RecordError):
    """A batch of a format (magic) or codec that is not supported here."""
