"""Which batches of a fetch belong to aborted transactions (KIP-98, ``read_committed``).

A FetchResponse (v4 on) names the aborted transactions that overlap its records, each by its producer and
first offset. A transaction ends at the producer's ABORT marker.
The rule is that of Java's ``CompletedFetch``.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable

from slackwater.kafka.records._implementation import ColumnBuffers, make_records, parse_records
from slackwater.kafka.records.batch import BatchHeader, Buffer, open_batch
from slackwater.kafka.records.errors import CorruptBatchError

_CONTROL_KEY = struct.Struct(">hh")
"""Version and type: what the key of a transaction marker begins with."""
_ABORT = 0


class AbortedTransactions:
    """Checks the batches of one partition's fetch in order. ``aborted``: (producer id, first offset)."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._coming = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._coming)
        self._open: set[int] = set()

    def reach(self, last_offset: int) -> None:
        """The log is read up to this offset: the transactions that began by then are open."""
        while self._coming and self._coming[0][0] <= last_offset:
            self._open.add(heapq.heappop(self._coming)[1])

    def drops(self, data: Buffer, header: BatchHeader, limit_bytes: int) -> bool:
        """Whether the records of this batch must be left out.

        ``limit_bytes`` limits a decompressed transaction marker. Raises :class:`CorruptBatchError` for a
        marker that cannot be read.
        """
        self.reach(header.last_offset)
        if header.producer_id < 0:
            return False
        if header.control:
            if header.producer_id in self._open and is_abort_marker(data, header, limit_bytes):
                self._open.remove(header.producer_id)
            return True
        return header.transactional and header.producer_id in self._open


def is_abort_marker(data: Buffer, header: BatchHeader, limit_bytes: int) -> bool:
    """Whether the first record of a control batch says ABORT; no record at all does not."""
    if not header.record_count:
        return False
    batch = open_batch(data, header, limit_bytes)
    columns = ColumnBuffers(header.record_count)
    try:
        parse_records(
            batch.payload, batch.start, batch.end, header.record_count,
            header.base_offset, 0, None, header.base_offset, columns, 0,
        )  # fmt: skip
    except ValueError as exc:
        raise CorruptBatchError(header.base_offset, str(exc)) from exc
    key = make_records("", 0, -1, 0, batch.payload, columns, 0, 1)[0].key
    if key is None or len(key) < _CONTROL_KEY.size:
        raise CorruptBatchError(header.base_offset, "a transaction marker says neither COMMIT nor ABORT")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatchError(header.base_offset, f"a transaction marker has version {version}")
    return bool(kind == _ABORT)
