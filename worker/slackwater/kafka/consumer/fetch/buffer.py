"""Fetched records that the application has not polled yet.

The loop puts undecoded bytes in, the application's thread decodes and takes. Both sides hold the
lock only for moments; decoding is outside of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from slackwater.kafka.consumer.metrics.fetch import FetchMetrics, FetchTally
from slackwater.kafka.errors import CorruptRecordError
from slackwater.kafka.protocol.subscription import FetchState, PartitionState, Subscription
from slackwater.kafka.records import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    RecordColumns,
    RecordError,
    concat,
    decode,
    iter_batches,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.primitives import Buffer

_NOTHING = (0, 0)
_END = itemgetter(0)
_DECODED_ON_LOOP_BYTES = 32 * 1024
"""So much is decoded in at most a few milliseconds where it is not compressed."""


@dataclass(slots=True, eq=False)
class Chunk:
    """One partition's bytes of one fetch, and how much of it has been handed over.

    ``end_offset`` is where the fetcher goes on, by the batches' headers. ``aborted``: producer ids and first
    offsets of the aborted transactions that reach into it; ``None``: all records count. ``epochs``: the
    leader epochs of its batches, each with the offset that it goes up to.
    """

    tp: TopicPartition
    data: Buffer
    fetch_offset: int
    end_offset: int
    version: int
    aborted: list[tuple[int, int]] | None = None
    epochs: list[tuple[int, int]] = field(default_factory=list)
    tally: FetchTally | None = None
    """For the metrics: what else the answer brought."""
    columns: RecordColumns | None = None
    failure: RecordError | None = None
    """Why the records cannot be decoded."""
    decoded_bytes: int = 0
    """The size of what its records are in."""
    taken: int = 0
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = len(self.data)

    @property
    def is_decoded(self) -> bool:
        """Whether its records are here, or the reason why they cannot be."""
        return self.columns is not None or self.failure is not None

    @property
    def rows_left(self) -> int:
        """How many decoded records have not been handed over."""
        return len(self.columns) - self.taken if self.columns is not None else 0

    def epoch_before(self, position: int) -> int:
        """The leader epoch of the record before ``position``; -1 for message sets older than epochs."""
        if not self.epochs:
            return -1
        index = bisect_left(self.epochs, position, key=_END)
        return self.epochs[min(index, len(self.epochs) - 1)][1]

    def epochs_between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Those of the records between two positions."""
        first = bisect_right(self.epochs, start, key=_END)
        return self.epochs[first : bisect_left(self.epochs, stop, key=_END) + 1]


def _is_compressed(data: Buffer) -> bool:
    """Whether some batch is compressed, or may be: the headers of older formats do not tell."""
    try:
        return any(header.compression or header.is_old_format for header in iter_batches(data))
    except RecordError:
        return False


def _unreadable(chunk: Chunk, exc: RecordError) -> CorruptRecordError:
    behind = max(exc.last_offset, chunk.fetch_offset) + 1
    error = CorruptRecordError(
        f"{chunk.tp} at offset {chunk.fetch_offset}: {exc} (offsets {exc.offset} to {exc.last_offset}). "
        f"To go on behind it, seek to offset {behind}"
    )
    error.topic_partition, error.position, error.reason = chunk.tp, chunk.fetch_offset, str(exc)
    error.offset, error.last_offset, error.next_offset = exc.offset, exc.last_offset, behind
    error.batch = bytes(memoryview(chunk.data)[slice(*exc.span)])
    return error


class FetchBuffer:
    """Chunks in the order they came; a partition's chunks stay in order."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        check_crcs: bool,
        on_room: Callable[[], None],
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        metrics: FetchMetrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._subscription = subscription
        self._check_crcs = check_crcs
        self._max_decompressed_bytes = max_decompressed_bytes
        self._on_room = on_room
        self._lock = threading.Lock()
        self._chunks: deque[Chunk] = deque()
        self._held: dict[TopicPartition, tuple[int, int]] = {}
        """Chunks and their bytes."""
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: Chunk) -> None:
        """Takes a chunk from the fetcher."""
        with self._lock:
            self._chunks.append(chunk)
            self._count(chunk, 1)

    def held_bytes(self, tp: TopicPartition) -> int:
        """How much waits for this partition, what is being handed over included."""
        return self._held.get(tp, _NOTHING)[1]

    def held_chunks(self, tp: TopicPartition) -> int:
        """In how many pieces that is."""
        return self._held.get(tp, _NOTHING)[0]

    def has_ready(self) -> bool:
        """Whether :meth:`collect` might give something."""
        with self._lock:
            return any(not self._is_withheld(chunk) for chunk in self._chunks)

    def _is_paused(self, chunk: Chunk) -> bool:
        state = self._subscription.current(chunk.tp, chunk.version)
        return state is not None and state.paused

    def _is_withheld(self, chunk: Chunk) -> bool:
        """Whether it is kept and not handed over: the partition is paused, or not assigned yet."""
        state = self._subscription.current(chunk.tp, chunk.version)
        return state is not None and (state.paused or self._subscription.is_ahead(state))

    def _count(self, chunk: Chunk, sign: int) -> None:
        """``sign``: 1 when it comes, -1 when it goes."""
        self.total_bytes += sign * chunk.size_bytes
        chunks, size_bytes = self._held.get(chunk.tp, _NOTHING)
        self._held[chunk.tp] = (chunks + sign, size_bytes + sign * chunk.size_bytes)

    def _is_current(self, chunk: Chunk) -> bool:
        state = self._subscription.current(chunk.tp, chunk.version)
        return state is not None and state.state is FetchState.FETCHING

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._chunks.clear()
            self._held.clear()
            self.total_bytes = 0

    def drop_stale(self) -> None:
        """Drops what belongs to partitions that were taken away or have jumped."""
        with self._lock:
            dropped = self._drop(lambda chunk: not self._is_current(chunk))
        if dropped:
            self._on_room()

    def _drop(self, is_gone: Callable[[Chunk], bool]) -> bool:
        """With the lock: drops chunks in one pass, since there may be very many; whether it was any."""
        kept: deque[Chunk] = deque()
        for chunk in self._chunks:
            if is_gone(chunk):
                self._count(chunk, -1)
                self._tell_finished(chunk)
            else:
                kept.append(chunk)
        dropped = len(kept) < len(self._chunks)
        self._chunks = kept
        return dropped

    def skip_to(self, offsets: Mapping[PartitionState, int]) -> None:
        """Moves partitions that are fetched ahead on to offsets, which are not below their positions, and
        drops what lies before. With the leader epoch of the record before it, where that was fetched."""
        if not offsets:
            return
        epochs = {state: state.leader_epoch if state.position == at else -1 for state, at in offsets.items()}

        def is_gone(chunk: Chunk) -> bool:
            state = self._subscription.current(chunk.tp, chunk.version)
            if state is None or state not in offsets or chunk.fetch_offset >= offsets[state]:
                return False
            offset = offsets[state]
            if offset <= chunk.end_offset:
                epochs[state] = chunk.epoch_before(offset)
            # Of what is kept the batches are walked from the first all the same, so that transactions which
            # were aborted before the offset are seen to end.
            chunk.fetch_offset = offset
            return chunk.end_offset <= offset

        with self._lock:
            dropped = self._drop(is_gone)
            for state, offset in offsets.items():
                state.position, state.leader_epoch = offset, epochs[state]
        if dropped:
            self._on_room()

    def drop_paused(self, enough_bytes: int) -> set[TopicPartition]:
        """Drops what paused partitions hold, the youngest first, until no more than ``enough_bytes`` are held
        in all. They are fetched again once they are resumed. Gives the partitions."""
        dropped: set[TopicPartition] = set()
        with self._lock:
            left = self.total_bytes
            for chunk in reversed(self._chunks):
                if left > enough_bytes and chunk.tp not in dropped and self._is_paused(chunk):
                    dropped.add(chunk.tp)
                    left -= self.held_bytes(chunk.tp)
            for tp in dropped:
                self._subscription.fetch_again(self._subscription.partitions[tp])
        if dropped:
            self.drop_stale()
        return dropped

    def needs_thread(self, max_records: int) -> bool:
        """Whether :meth:`collect` would decode so much that it would hold an event loop: then
        :meth:`decode_ahead` is to be called before, on another thread."""
        rows = room = 0
        for chunk in self._ready():
            if rows >= max_records:
                return False
            if not chunk.is_decoded:
                room += chunk.size_bytes
                if room > _DECODED_ON_LOOP_BYTES or _is_compressed(chunk.data):
                    return True
            rows += chunk.rows_left
        return False

    def decode_ahead(self, max_records: int) -> None:
        """Decodes what the next :meth:`collect` of so many records needs, and hands nothing over. From any
        thread, but not from two at a time."""
        rows = size = 0
        for chunk in self._ready():
            if rows >= max_records or size >= self._max_decompressed_bytes:
                return
            self._decode(chunk)
            rows, size = rows + chunk.rows_left, size + chunk.decoded_bytes

    def _ready(self) -> list[Chunk]:
        with self._lock:
            chunks = list(self._chunks)
        return [chunk for chunk in chunks if not self._is_withheld(chunk) and self._is_current(chunk)]

    def collect(self, max_records: int) -> dict[TopicPartition, RecordColumns]:
        """Up to ``max_records``, moving the positions of their partitions on. For one thread at a time.

        Of many partitions it is less where what they decompress to is more than the limit of one. What is
        paused, or fetched ahead of an assignment, is kept. A batch that cannot be read raises
        :class:`CorruptRecordError`, once what stands before it was given.
        """
        out: dict[TopicPartition, list[RecordColumns]] = {}
        left, size = max_records, 0
        finished = False
        for chunk in list(self._chunks):
            if left <= 0 or (out and size >= self._max_decompressed_bytes):
                break
            if self._is_withheld(chunk):
                continue
            if not self._is_current(chunk):
                finished |= self._finish(chunk)
                continue
            try:
                columns = self._decoded(chunk)
            except CorruptRecordError:
                if out:
                    break
                raise
            taken = self._take(chunk, columns, left) if columns is not None else None
            if taken is None:
                finished |= self._finish(chunk)
                continue
            rows, done = taken
            finished |= done and self._finish(chunk)
            if len(rows):
                out.setdefault(chunk.tp, []).append(rows)
                left, size = left - len(rows), size + chunk.decoded_bytes
        if finished:
            self._on_room()
        return {tp: concat(parts) for tp, parts in out.items()}

    def _decoded(self, chunk: Chunk) -> RecordColumns | None:
        """The records; ``None`` where a batch that was skipped cannot be read: what follows is fetched anew,
        since what that batch says of transactions is not known."""
        self._decode(chunk)
        exc = chunk.failure
        if exc is not None:
            if exc.span[1] and exc.last_offset < chunk.fetch_offset:
                self._fetch_again(chunk)
                return None
            raise _unreadable(chunk, exc) from exc
        return chunk.columns

    def _decode(self, chunk: Chunk) -> None:
        """Fills in the columns or the failure, unless one of them is there."""
        if chunk.is_decoded:
            return
        try:
            chunk.columns = decode(
                chunk.data,
                fetch_offset=chunk.fetch_offset,
                check_crc=self._check_crcs,
                max_decompressed_bytes=self._max_decompressed_bytes,
                aborted=chunk.aborted,
            )
            chunk.decoded_bytes = chunk.columns.payload_bytes
        except RecordError as exc:
            chunk.failure = exc

    def _fetch_again(self, chunk: Chunk) -> None:
        with self._lock:
            state = self._subscription.partitions.get(chunk.tp)
            if state is not None and state.version == chunk.version:
                self._subscription.fetch_again(state)

    def _take(self, chunk: Chunk, columns: RecordColumns, left: int) -> tuple[RecordColumns, bool] | None:
        """The next rows, and whether they are the last; ``None`` when the partition has jumped meanwhile."""
        end = min(len(columns), chunk.taken + left)
        done = end == len(columns)
        rows = columns if chunk.taken == 0 and done else columns.slice(chunk.taken, end)
        with self._lock:
            state = self._subscription.partitions.get(chunk.tp)
            if state is None or state.version != chunk.version:
                return None
            chunk.taken = end
            position = columns.next_offset if done else rows.next_offset
            if state.position is None or position > state.position:
                state.leader_epoch = chunk.epoch_before(position)
            state.epochs.extend(chunk.epochs_between(state.epochs.end, position), position)
            state.position = position
            if self._metrics is not None:
                self._metrics.moved(state)
            if done and columns.next_offset < chunk.end_offset:
                # Part of it cannot be read: what was fetched behind it must not be handed over before it.
                self._subscription.fetch_again(state)
        return rows, done

    def _finish(self, chunk: Chunk) -> bool:
        with self._lock:
            try:
                self._chunks.remove(chunk)
            except ValueError:
                return False
            self._count(chunk, -1)
            self._tell_finished(chunk)
            return True

    def _tell_finished(self, chunk: Chunk) -> None:
        if self._metrics is not None:
            self._metrics.finished(chunk.tally, chunk.tp.topic, chunk.size_bytes, chunk.taken)
