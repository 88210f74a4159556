"""The parser and the encoder of records in plain Python: the fallback where nothing could be compiled,
and the oracle that the compiled twin, ``_parser.pyx``, is tested against. Both offer the same names.

Layout of a record (KIP-98): its length, attributes, timestamp delta, offset delta, key, value,
headers; all numbers but the attributes are zigzag varints, and a length of -1 stands for null.
"""

from __future__ import annotations

import copyreg
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

_MIN_RECORD_BYTES = 7


class ColumnBuffers:
    """Room for ``capacity`` records: one array a column. Positions are bytes in a record's payload."""

    __slots__ = (
        "header_count", "header_start", "key_size", "key_start",
        "offset", "timestamp", "value_size", "value_start",
    )  # fmt: skip

    def __init__(self, capacity: int) -> None:
        self.offset = array("q", bytes(8 * capacity))
        self.timestamp = array("q", bytes(8 * capacity))
        self.key_start = array("i", bytes(4 * capacity))
        self.key_size = array("i", bytes(4 * capacity))
        self.value_start = array("i", bytes(4 * capacity))
        self.value_size = array("i", bytes(4 * capacity))
        self.header_start = array("i", bytes(4 * capacity))
        self.header_count = array("i", bytes(4 * capacity))


def _varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint of at most ten bytes, and where it ends."""
    raw = shift = 0
    while True:
        if position >= end:
            raise ValueError("a record is cut off")
        if shift > 63:
            raise ValueError("a number has more than ten bytes")
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    raw &= 0xFFFFFFFFFFFFFFFF
    value = (raw >> 1) ^ -(raw & 1)
    return value, position


def _sized(data: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """A length and the bytes behind it: start, size (-1: null), where it ends."""
    size, position = _varint(data, position, end)
    if size < -1 or size > end - position:
        raise ValueError(f"a field of {size} bytes does not fit its record")
    return position, size, position + max(size, 0)


def parse_records(
    payload: Buffer,
    position: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp_ms: int,
    append_time_ms: int | None,
    fetch_offset: int,
    into: ColumnBuffers,
    row: int,
) -> int:
    """Reads ``count`` records into ``into`` from ``row`` on and returns the next free row.

    Records below ``fetch_offset`` are left out. ``append_time_ms`` overrides their timestamps.
    Raises ValueError where the bytes are not ``count`` records that end at ``end``.
    """
    for _ in range(count):
        size, position = _varint(payload, position, end)
        if size < _MIN_RECORD_BYTES - 1 or size > end - position:
            raise ValueError(f"a record of {size} bytes does not fit its batch")
        stop = position + size
        ts_delta, position = _varint(payload, position + 1, stop)
        offset_delta, position = _varint(payload, position, stop)
        key_start, key_size, position = _sized(payload, position, stop)
        value_start, value_size, position = _sized(payload, position, stop)
        headers, header_start = _varint(payload, position, stop)
        position = _skip_headers(payload, header_start, stop, headers)
        if position != stop:
            raise ValueError(f"a record has {stop - position} bytes left over")
        if not 0 <= offset_delta <= 0x7FFFFFFF:
            raise ValueError(f"an offset delta of {offset_delta}")
        offset = _wrap(base_offset + offset_delta)
        if offset < fetch_offset:
            continue
        into.offset[row] = offset
        into.timestamp[row] = (
            _wrap(base_timestamp_ms + ts_delta) if append_time_ms is None else append_time_ms
        )
        into.key_start[row], into.key_size[row] = key_start, key_size
        into.value_start[row], into.value_size[row] = value_start, value_size
        into.header_start[row], into.header_count[row] = header_start, headers
        row += 1
    if position != end:
        raise ValueError(f"{end - position} bytes left over behind the last record")
    return row


def _wrap(value: int) -> int:
    """A sum as 64-bit arithmetic gives it: garbage in a timestamp is no reason to fail."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _skip_headers(payload: Buffer, position: int, stop: int, count: int) -> int:
    if count < 0 or count > stop - position:
        raise ValueError(f"{count} headers in a record")
    for _ in range(count):
        _, key_size, position = _sized(payload, position, stop)
        if key_size < 0:
            raise ValueError("a header without a key")
        _, _, position = _sized(payload, position, stop)
    return position


#       base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp,
#       max timestamp, producer id, producer epoch, base sequence, record count
_BATCH = struct.Struct(">qiibIhiqqqhii")
_BATCH_CRC_START = 21
_CONTROL = 0x20
_TRANSACTIONAL = 0x10
_LOG_APPEND_TIME = 0x08
_MAX_OFFSET = (1 << 63) - 1


def scan_batches(
    data: Buffer, position: int, end: int, plain: bool, transactional: bool, check_crc: bool
) -> tuple[int, int, int, int, int]:
    """The extent of whole batches of one kind from ``position`` on (magic 2).

    One kind: the same leader epoch; if ``plain``, also the same timestamp type, no compression, no
    transaction markers, right checksums (``check_crc``), room for their records, and not ``transactional``
    unless that is allowed. Returns how many batches and records there are, where they stop, and the position
    in the log behind them with their leader epoch. What is wrong with the next one is for others to say.
    """
    batches = count = epoch = kind = 0
    next_offset = -1
    while position + _BATCH.size <= end:
        base, length, of_epoch, magic, crc, attributes, delta, _, _, _, _, _, records = _BATCH.unpack_from(
            data, position
        )
        stop = position + _LOG_OVERHEAD_BYTES + length
        if magic != 2 or length < _BATCH.size - _LOG_OVERHEAD_BYTES or stop > end:
            break
        if records < 0 or delta < 0 or base + delta >= _MAX_OFFSET:
            break
        if batches and (of_epoch != epoch or (plain and attributes & _LOG_APPEND_TIME != kind)):
            break
        if plain:
            if attributes & (_CODEC_MASK | _CONTROL) or (attributes & _TRANSACTIONAL and not transactional):
                break
            if records * _MIN_RECORD_BYTES > stop - position - _BATCH.size:
                break
            if check_crc and crc32c(memoryview(data)[position + _BATCH_CRC_START : stop]) != crc:
                break
        epoch, kind = of_epoch, attributes & _LOG_APPEND_TIME
        batches, count = batches + 1, count + records
        next_offset = max(next_offset, base + delta + 1)
        position = stop
    return batches, count, position, next_offset, epoch


def parse_batches(
    payload: Buffer, position: int, end: int, fetch_offset: int, into: ColumnBuffers, row: int
) -> int:
    """Reads the plain batches that :func:`scan_batches` found; returns the next free row.

    Records below ``fetch_offset`` are left out. Raises ValueError where a batch is not what it says.
    """
    while position < end:
        if end - position < _BATCH.size:
            raise ValueError("a batch is cut off")
        base, length, _, _, _, attributes, delta, base_ms, max_ms, _, _, _, count = _BATCH.unpack_from(
            payload, position
        )
        stop = position + _LOG_OVERHEAD_BYTES + length
        if stop > end or stop < position + _BATCH.size or count < 0:
            raise ValueError("a batch is cut off")
        if count and base + delta >= fetch_offset:
            row = parse_records(
                payload, position + _BATCH.size, stop, count, base, base_ms,
                max_ms if attributes & _LOG_APPEND_TIME else None, fetch_offset, into, row,
            )  # fmt: skip
        position = stop
    return row


#        offset, size, crc, magic, attributes; magic 1 has a timestamp behind them
_MESSAGE = struct.Struct(">qiIbB")
_TIMESTAMP = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_LOG_OVERHEAD_BYTES = 12
_MAGIC_POSITION = 16
_CODEC_MASK = 0x07
_MIN_MESSAGE_BYTES = (14, 22)
"""By magic: what ``size`` counts in a message without key and value."""


def scan_messages(
    payload: Buffer, position: int, end: int, mask: int, check_crc: bool
) -> tuple[int, int, int, str]:
    """The extent of uncompressed messages of one kind from ``position`` on (magic 0 and 1).

    One kind: the same magic, and the same attributes under ``mask``. Returns how many there are, where they
    stop, the last one's offset, and why they stop there: "" for the end, an incomplete message or one
    of another kind, else what is wrong with the next one.
    """
    count, last_offset = 0, -1
    kind: tuple[int, int] | None = None
    while position + _MAGIC_POSITION + 2 <= end:
        offset, size, crc, magic, attributes = _MESSAGE.unpack_from(payload, position)
        if size > end - position - _LOG_OVERHEAD_BYTES and size > 0:
            break
        if not 0 <= magic <= 1 or attributes & _CODEC_MASK or kind not in (None, (magic, attributes & mask)):
            break
        kind = magic, attributes & mask
        stop = position + _LOG_OVERHEAD_BYTES + size
        if size < _MIN_MESSAGE_BYTES[magic]:
            return count, position, last_offset, "a message is too small"
        if not _fields_fit(payload, position + _MAGIC_POSITION + 2 + 8 * magic, stop):
            return count, position, last_offset, "a message's key and value do not fit it"
        if check_crc and zlib.crc32(memoryview(payload)[position + _MAGIC_POSITION : stop]) != crc:
            return count, position, last_offset, "its checksum does not match its content"
        count, position, last_offset = count + 1, stop, offset
    return count, position, last_offset, ""


def _fields_fit(payload: Buffer, position: int, stop: int) -> bool:
    """Whether a key and a value, each behind its length (-1: null), take all that is left of a message."""
    for _ in range(2):
        if stop - position < _INT32.size:
            return False
        size = _INT32.unpack_from(payload, position)[0]
        position += _INT32.size
        if size < -1 or size > stop - position:
            return False
        position += max(size, 0)
    return position == stop


def parse_messages(
    payload: Buffer,
    position: int,
    end: int,
    count: int,
    base_offset: int,
    append_time_ms: int | None,
    fetch_offset: int,
    into: ColumnBuffers,
    row: int,
) -> int:
    """Reads ``count`` messages that :func:`scan_messages` found into ``into``; returns the next free row.

    ``base_offset`` is added to their offsets. Messages below ``fetch_offset`` are left out.
    ``append_time_ms`` overrides the timestamps of magic 1; magic 0 has none (-1).
    Raises ValueError where there are not that many messages before ``end``.
    """
    for _ in range(count):
        if end - position < _MAGIC_POSITION + 2:
            raise ValueError("a message is cut off")
        offset, size, _, magic, _ = _MESSAGE.unpack_from(payload, position)
        stop = position + _LOG_OVERHEAD_BYTES + size
        at = position + _MAGIC_POSITION + 2 + 8 * magic
        if not 0 <= magic <= 1 or size < _MIN_MESSAGE_BYTES[magic] or stop > end:
            raise ValueError("a message is cut off")
        if not _fields_fit(payload, at, stop):
            raise ValueError("a message's key and value do not fit it")
        offset = _wrap(base_offset + offset)
        if offset >= fetch_offset:
            into.offset[row] = offset
            into.timestamp[row] = _message_time(payload, position, magic, append_time_ms)
            key_size = _INT32.unpack_from(payload, at)[0]
            into.key_start[row], into.key_size[row] = at + 4, key_size
            at += 4 + max(key_size, 0)
            into.value_start[row], into.value_size[row] = at + 4, _INT32.unpack_from(payload, at)[0]
            into.header_start[row] = into.header_count[row] = 0
            row += 1
        position = stop
    return row


def _message_time(payload: Buffer, position: int, magic: int, append_time_ms: int | None) -> int:
    if magic == 0:
        return -1
    if append_time_ms is not None:
        return append_time_ms
    time_ms: int = _TIMESTAMP.unpack_from(payload, position + _MAGIC_POSITION + 2)[0]
    return time_ms


def read_headers(payload: Buffer, position: int, count: int) -> list[tuple[str, bytes | None]]:
    """The headers at ``position``.

    Raises ValueError where they do not fit ``payload``: columns that :func:`parse_records` did not write may
    hold any numbers.
    """
    headers: list[tuple[str, bytes | None]] = []
    end = len(payload)
    if count == 0:
        return headers
    if not 0 <= position < end:
        raise ValueError("a record is cut off")
    if not 0 < count <= end - position:
        raise ValueError(f"{count} headers in a record")
    for _ in range(count):
        key_start, key_size, position = _sized(payload, position, end)
        if key_size < 0:
            raise ValueError("a header without a key")
        value_start, value_size, position = _sized(payload, position, end)
        key = str(payload[key_start : key_start + key_size], "utf-8", "replace")
        value = None if value_size < 0 else bytes(payload[value_start : value_start + value_size])
        headers.append((key, value))
    return headers


def end_of_headers(payload: Buffer, position: int, count: int) -> int:
    """Where the headers at ``position`` end. Raises ValueError where they do not fit ``payload``."""
    if not 0 <= position <= len(payload):
        raise ValueError("a record is cut off")
    return _skip_headers(payload, position, len(payload), count)


def gather(
    payload: Buffer, starts: array[int], sizes: array[int], first: int, last: int
) -> tuple[bytes, bytes, bytes | None]:
    """A column's rows ``first`` to ``last`` for Arrow: int32 offsets, bytes, validity (None: no null)."""
    offsets = array("i", [0])
    parts = []
    validity = bytearray((last - first + 7) // 8)
    total = nulls = 0
    for row in range(first, last):
        size = sizes[row]
        if size >= 0:
            total += size
            parts.append(payload[starts[row] : starts[row] + size])
            validity[(row - first) >> 3] |= 1 << ((row - first) & 7)
        else:
            nulls += 1
        if total > 0x7FFFFFFF:
            raise OverflowError("more than 2 GiB in one column")
        offsets.append(total)
    return offsets.tobytes(), b"".join(parts), bytes(validity) if nulls else None


class RecordEncoder:
    """Appends records to one buffer, as the body of a batch."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def append(
        self,
        timestamp_delta: int,
        offset_delta: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        body = bytearray(b"\x00")
        _put(body, timestamp_delta)
        _put(body, offset_delta)
        _put_sized(body, key)
        _put_sized(body, value)
        _put(body, len(headers))
        for name, content in headers:
            _put_sized(body, name.encode())
            _put_sized(body, content)
        _put(self._out, len(body))
        self._out += body

    def __len__(self) -> int:
        return len(self._out)

    def getvalue(self) -> bytes:
        return bytes(self._out)

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'RecordEncoder' object")


def _put(out: bytearray, value: int) -> None:
    raw = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    while raw >= 0x80:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def _put_sized(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        _put(out, len(value))
        out += value


_UNREAD: Any = object()

FIELD_NAMES = (
    "topic", "partition", "leader_epoch", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
    "checksum", "serialized_key_size", "serialized_value_size", "serialized_header_size",
)  # fmt: skip
"""The attributes of a record, in the order of kafka-python's ``ConsumerRecord``."""
_COMPUTED = ("checksum", "serialized_header_size")
_STORED = tuple(name for name in FIELD_NAMES if name not in _COMPUTED)


class ConsumerRecord:
    """One record, with kafka-python's attribute names. Key, value and headers are copied out when asked for.

    ``timestamp`` is in ms since the epoch (-1: none), ``timestamp_type`` 0 the producer's time, 1 the
    broker's, -1 none (magic 0 has no times). The checksum that older formats had is None.

    A record can be made with the arguments below, copied, pickled and compared: two records are equal if all
    their fields are. As with kafka-python's, ``_replace(**changes)`` gives a changed copy, ``_asdict()`` the
    fields by name, ``_fields`` their names. A copy keeps nothing of the fetched bytes in memory.
    """

    __slots__ = (
        "_headers", "_key", "_key_size", "_key_start", "_payload", "_header_count", "_header_start",
        "_value", "_value_size", "_value_start",
        "leader_epoch", "offset", "partition", "timestamp", "timestamp_type", "topic",
    )  # fmt: skip

    _fields = FIELD_NAMES
    _key_size: int
    _value_size: int

    def __init__(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: Any,
        value: Any,
        headers: Iterable[tuple[str, bytes | None]] = (),
        *,
        serialized_key_size: int = -1,
        serialized_value_size: int = -1,
    ) -> None:
        self._set(
            (topic, partition, leader_epoch, offset, timestamp, timestamp_type, key, value, list(headers),
             serialized_key_size, serialized_value_size)
        )  # fmt: skip

    def _set(self, fields: tuple[Any, ...]) -> None:
        (
            self.topic, self.partition, self.leader_epoch, self.offset, self.timestamp, self.timestamp_type,
            self._key, self._value, self._headers, self._key_size, self._value_size,
        ) = fields  # fmt: skip

    def _view(self, payload: Buffer, columns: ColumnBuffers, row: int) -> None:
        """Takes a row's numbers; its key, value and headers stay in ``payload`` until they are asked for."""
        self.offset = columns.offset[row]
        self.timestamp = columns.timestamp[row]
        self._payload = payload
        self._key_start, self._key_size = columns.key_start[row], columns.key_size[row]
        self._value_start, self._value_size = columns.value_start[row], columns.value_size[row]
        self._header_start, self._header_count = columns.header_start[row], columns.header_count[row]
        self._key = self._value = self._headers = _UNREAD

    @property
    def key(self) -> Any:
        if self._key is _UNREAD:
            self._key = self._bytes(self._key_start, self._key_size)
        return self._key

    @key.setter
    def key(self, value: Any) -> None:
        self._key = value

    @property
    def value(self) -> Any:
        if self._value is _UNREAD:
            self._value = self._bytes(self._value_start, self._value_size)
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        if self._headers is _UNREAD:
            self._headers = read_headers(self._payload, self._header_start, self._header_count)
        return self._headers  # type: ignore[no-any-return]

    @property
    def serialized_key_size(self) -> int:
        return self._key_size

    @property
    def serialized_value_size(self) -> int:
        return self._value_size

    @property
    def serialized_header_size(self) -> int:
        return sum(len(name.encode()) + len(value or b"") for name, value in self.headers) or -1

    @property
    def checksum(self) -> None:
        return None

    def _bytes(self, start: int, size: int) -> bytes | None:
        if size < 0:
            return None
        if start < 0 or start + size > len(self._payload):
            raise ValueError("a field outside of its payload")
        return bytes(self._payload[start : start + size])

    def __repr__(self) -> str:
        return describe_record(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return record_fields(self) == record_fields(other)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_record(self, ConsumerRecord)

    def __setstate__(self, state: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        fields, attributes = state
        self._set(fields)
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self, **changes: Any) -> ConsumerRecord:
        changed: ConsumerRecord = replace_record(self, changes)
        return changed


def describe_record(record: Any) -> str:
    """The ``repr`` of a record."""
    return (
        f"ConsumerRecord(topic={record.topic!r}, partition={record.partition}, offset={record.offset}, "
        f"timestamp={record.timestamp}, key={record.key!r}, value={record.value!r}, "
        f"headers={record.headers!r})"
    )


def record_fields(record: Any) -> tuple[Any, ...]:
    """All fields of a record, for a copy."""
    return tuple([getattr(record, name) for name in _STORED])


class _RecordInUse:
    """Makes the empty record that an unpickled one is filled into; ``_implementation`` sets it."""

    maker: Callable[[], Any]


_record_in_use = _RecordInUse()


def pickle_by(maker: Callable[[], Any]) -> None:
    """Has records pickled with ``maker``, a function of a module: it makes an empty record of the parser that
    is in use where it is called."""
    _record_in_use.maker = maker


def reduce_record(record: Any, base: type) -> tuple[Any, ...]:
    """A record for ``copy`` and ``pickle``: its fields, and the attributes that a subclass of ``base`` adds.

    What was pickled by one parser can be read where the other is in use: the fields are the same, and the
    class is that of the reading process.
    """
    state = object.__getstate__(record) if type(record) is not base else None
    parts = state if isinstance(state, tuple) else (state,)
    inherited = getattr(base, "__slots__", ())
    attributes = {
        name: value for part in parts if part for name, value in part.items() if name not in inherited
    }
    made = (record_fields(record), attributes)
    if type(record) is base:
        return _record_in_use.maker, (), made
    return copyreg.__newobj__, (type(record),), made  # type: ignore[attr-defined]


def replace_record(record: Any, changes: dict[str, Any]) -> Any:
    """A copy of ``record`` in which ``changes`` stand in place of its own fields.

    Raises ValueError for a name that is no field (as kafka-python's record), or that follows from others.
    """
    unknown = [name for name in changes if name not in _STORED]
    if unknown:
        raise ValueError(f"fields of a record that cannot be replaced: {unknown}; these can: {list(_STORED)}")
    made, arguments, (fields, attributes) = record.__reduce__()
    changed = made(*arguments)
    values = dict(zip(_STORED, fields, strict=True)) | changes
    changed.__setstate__((tuple(values.values()), attributes))
    return changed


def make_records(
    topic: str,
    partition: int,
    leader_epoch: int,
    timestamp_type: int,
    payload: Buffer,
    columns: ColumnBuffers,
    first: int,
    last: int,
) -> list[ConsumerRecord]:
    """Rows ``first`` to ``last`` as records."""
    made = []
    for row in range(first, last):
        record = ConsumerRecord.__new__(ConsumerRecord)
        record.topic = topic
        record.partition = partition
        record.leader_epoch = leader_epoch
        record.timestamp_type = timestamp_type
        record._view(payload, columns, row)
        made.append(record)
    return made
