# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False
"""The parser and the encoder of records, compiled. ``_parser_py.py`` says what each name does; both are
tested against each other. Every length is checked against the record and every record against the
batch before a byte of it is read.

``auto_pickle`` is off for every class: Cython takes a ``uint8_t*`` for a C string, so that a copy would point
into memory that is not its own. A class that can be copied says how."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from zlib import crc32

from crc32c import crc32c

from slackwater.kafka.records._parser_py import (
    FIELD_NAMES,
    ColumnBuffers,
    describe_record,
    record_fields,
    reduce_record,
    replace_record,
)

cdef enum:
    FINE = 0
    CUT_OFF = 1
    LONG_NUMBER = 2
    FIELD_SIZE = 3
    RECORD_SIZE = 4
    LEFT_OVER = 5
    OFFSET_DELTA = 6
    HEADER_COUNT = 7
    HEADER_KEY = 8
    TRAILING = 9

_REASONS = {
    CUT_OFF: "a record is cut off",
    LONG_NUMBER: "a number has more than ten bytes",
    FIELD_SIZE: "a field does not fit its record",
    RECORD_SIZE: "a record does not fit its batch",
    LEFT_OVER: "a record has bytes left over",
    OFFSET_DELTA: "an offset delta is out of range",
    HEADER_COUNT: "a record has an impossible number of headers",
    HEADER_KEY: "a header without a key",
    TRAILING: "there are bytes left over behind the last record",
}

cdef int MIN_RECORD_BYTES = 7


cdef inline int read_varint(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* value) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef Py_ssize_t at = position[0]
    cdef uint8_t byte
    while True:
        if at >= end:
            return CUT_OFF
        if shift > 63:
            return LONG_NUMBER
        byte = data[at]
        at += 1
        raw |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            break
        shift += 7
    value[0] = <int64_t>((raw >> 1) ^ (~(raw & 1) + 1))
    position[0] = at
    return FINE


cdef inline int read_sized(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end,
                           int32_t* start, int32_t* size) noexcept nogil:
    cdef int64_t length = 0
    cdef int failed = read_varint(data, position, end, &length)
    if failed:
        return failed
    if length < -1 or length > end - position[0]:
        return FIELD_SIZE
    start[0] = <int32_t>position[0]
    size[0] = <int32_t>length
    if length > 0:
        position[0] += length
    return FINE


cdef int skip_headers(const uint8_t* data, Py_ssize_t* position, Py_ssize_t stop, int64_t count) noexcept nogil:
    cdef int32_t start = 0, size = 0
    cdef int failed
    cdef int64_t i
    if count < 0 or count > stop - position[0]:
        return HEADER_COUNT
    for i in range(count):
        failed = read_sized(data, position, stop, &start, &size)
        if failed:
            return failed
        if size < 0:
            return HEADER_KEY
        failed = read_sized(data, position, stop, &start, &size)
        if failed:
            return failed
    return FINE


cdef struct Record:
    int64_t ts_delta
    int64_t offset_delta
    int32_t key_start
    int32_t key_size
    int32_t value_start
    int32_t value_size
    int32_t header_start
    int64_t header_count


cdef inline int read_record(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, Record* record) noexcept nogil:
    cdef int64_t size = 0
    cdef Py_ssize_t stop
    cdef int failed = read_varint(data, position, end, &size)
    if failed:
        return failed
    if size < MIN_RECORD_BYTES - 1 or size > end - position[0]:
        return RECORD_SIZE
    stop = position[0] + size
    position[0] += 1
    failed = read_varint(data, position, stop, &record.ts_delta)
    if failed:
        return failed
    failed = read_varint(data, position, stop, &record.offset_delta)
    if failed:
        return failed
    failed = read_sized(data, position, stop, &record.key_start, &record.key_size)
    if failed:
        return failed
    failed = read_sized(data, position, stop, &record.value_start, &record.value_size)
    if failed:
        return failed
    failed = read_varint(data, position, stop, &record.header_count)
    if failed:
        return failed
    record.header_start = <int32_t>position[0]
    failed = skip_headers(data, position, stop, record.header_count)
    if failed:
        return failed
    if position[0] != stop:
        return LEFT_OVER
    if record.offset_delta < 0 or record.offset_delta > 0x7FFFFFFF:
        return OFFSET_DELTA
    return FINE


cdef struct Columns:
    int64_t* offset
    int64_t* timestamp
    int32_t* key_start
    int32_t* key_size
    int32_t* value_start
    int32_t* value_size
    int32_t* header_start
    int32_t* header_count
    Py_ssize_t capacity


cdef int columns_of(into, Columns* columns) except -1:
    """Borrows the arrays' memory: the arrays must live on, and keep their size."""
    cdef int64_t[::1] wide = into.offset
    cdef int32_t[::1] narrow
    columns.capacity = wide.shape[0]
    if columns.capacity == 0:
        return 0
    columns.offset = &wide[0]
    wide = into.timestamp
    columns.timestamp = &wide[0]
    narrow = into.key_start
    columns.key_start = &narrow[0]
    narrow = into.key_size
    columns.key_size = &narrow[0]
    narrow = into.value_start
    columns.value_start = &narrow[0]
    narrow = into.value_size
    columns.value_size = &narrow[0]
    narrow = into.header_start
    columns.header_start = &narrow[0]
    narrow = into.header_count
    columns.header_count = &narrow[0]
    return 0


cdef enum:
    LOG_OVERHEAD_BYTES = 12
    MAGIC_POSITION = 16
    CODEC_MASK = 0x07

cdef int64_t MAX_OFFSET = 0x7FFFFFFFFFFFFFFF


cdef inline int32_t get_int32(const uint8_t* data) noexcept nogil:
    return <int32_t>((<uint32_t>data[0] << 24) | (<uint32_t>data[1] << 16) | (<uint32_t>data[2] << 8) | data[3])


cdef inline int64_t get_int64(const uint8_t* data) noexcept nogil:
    return <int64_t>((<uint64_t><uint32_t>get_int32(data) << 32) | <uint32_t>get_int32(data + 4))


cdef inline bint fields_fit(const uint8_t* data, Py_ssize_t position, Py_ssize_t stop) noexcept nogil:
    cdef int32_t size
    cdef int i
    for i in range(2):
        if stop - position < 4:
            return False
        size = get_int32(data + position)
        position += 4
        if size < -1 or size > stop - position:
            return False
        if size > 0:
            position += size
    return position == stop


def scan_messages(payload, Py_ssize_t position, Py_ssize_t end, int mask, bint check_crc):
    cdef const uint8_t[::1] view = payload
    cdef Py_ssize_t count = 0, stop
    cdef int64_t last_offset = -1
    cdef int32_t size
    cdef int magic, attributes, kind = -1
    cdef const uint8_t* data
    if position < 0 or end > view.shape[0]:
        raise ValueError("the messages are outside their payload")
    if position >= end:
        return 0, position, -1, ""
    data = &view[0]
    held = memoryview(payload)
    while position + MAGIC_POSITION + 2 <= end:
        size = get_int32(data + position + 8)
        magic = data[position + MAGIC_POSITION]
        attributes = data[position + MAGIC_POSITION + 1]
        if size > end - position - LOG_OVERHEAD_BYTES and size > 0:
            break
        if magic > 1 or attributes & CODEC_MASK or (kind >= 0 and kind != (magic << 8 | (attributes & mask))):
            break
        kind = magic << 8 | (attributes & mask)
        stop = position + LOG_OVERHEAD_BYTES + size
        if size < 14 + 8 * magic:
            return count, position, last_offset, "a message is too small"
        if not fields_fit(data, position + MAGIC_POSITION + 2 + 8 * magic, stop):
            return count, position, last_offset, "a message's key and value do not fit it"
        if check_crc and <uint32_t>crc32(held[position + MAGIC_POSITION : stop]) != <uint32_t>get_int32(data + position + 12):
            return count, position, last_offset, "its checksum does not match its content"
        last_offset = get_int64(data + position)
        count += 1
        position = stop
    return count, position, last_offset, ""


def parse_messages(const uint8_t[::1] payload, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, int64_t base_offset,
                   append_time_ms, int64_t fetch_offset, into, Py_ssize_t row):
    cdef Columns columns
    cdef bint appended = append_time_ms is not None
    cdef int64_t append_time = append_time_ms if appended else 0
    cdef const uint8_t* data
    cdef Py_ssize_t i, at, stop
    cdef int64_t offset
    cdef int32_t size
    cdef int magic
    columns_of(into, &columns)
    if position < 0 or end > payload.shape[0] or position > end:
        raise ValueError("the messages are outside their payload")
    if count < 0 or row < 0 or count > columns.capacity - row:
        raise ValueError("more messages than there is room for")
    if payload.shape[0] > 0x7FFFFFFF:
        raise ValueError("a payload of more than 2 GiB")
    if count == 0:
        return row
    data = &payload[0] if payload.shape[0] else NULL
    for i in range(count):
        if end - position < MAGIC_POSITION + 2:
            raise ValueError("a message is cut off")
        size = get_int32(data + position + 8)
        magic = data[position + MAGIC_POSITION]
        at = position + MAGIC_POSITION + 2 + 8 * magic
        if magic > 1 or size < 14 + 8 * magic or size > end - position - LOG_OVERHEAD_BYTES:
            raise ValueError("a message is cut off")
        stop = position + LOG_OVERHEAD_BYTES + size
        if not fields_fit(data, at, stop):
            raise ValueError("a message's key and value do not fit it")
        offset = <int64_t>(<uint64_t>base_offset + <uint64_t>get_int64(data + position))
        if offset >= fetch_offset:
            columns.offset[row] = offset
            if magic == 0:
                columns.timestamp[row] = -1
            else:
                columns.timestamp[row] = append_time if appended else get_int64(data + position + MAGIC_POSITION + 2)
            size = get_int32(data + at)
            columns.key_start[row] = <int32_t>(at + 4)
            columns.key_size[row] = size
            at += 4 + (size if size > 0 else 0)
            columns.value_start[row] = <int32_t>(at + 4)
            columns.value_size[row] = get_int32(data + at)
            columns.header_start[row] = 0
            columns.header_count[row] = 0
            row += 1
        position = stop
    return row


cdef int parse_run(const uint8_t* data, Py_ssize_t position, Py_ssize_t end, int64_t count, int64_t base_offset,
                   int64_t base_timestamp_ms, bint appended, int64_t append_time, int64_t fetch_offset,
                   Columns* into, Py_ssize_t* free_row) noexcept nogil:
    cdef Record record
    cdef int64_t i, at_offset
    cdef Py_ssize_t row = free_row[0]
    cdef int failed
    for i in range(count):
        failed = read_record(data, &position, end, &record)
        if failed:
            return failed
        at_offset = <int64_t>(<uint64_t>base_offset + <uint64_t>record.offset_delta)
        if at_offset < fetch_offset:
            continue
        into.offset[row] = at_offset
        into.timestamp[row] = append_time if appended else <int64_t>(<uint64_t>base_timestamp_ms + <uint64_t>record.ts_delta)
        into.key_start[row] = record.key_start
        into.key_size[row] = record.key_size
        into.value_start[row] = record.value_start
        into.value_size[row] = record.value_size
        into.header_start[row] = record.header_start
        into.header_count[row] = <int32_t>record.header_count
        row += 1
    if position != end:
        return TRAILING
    free_row[0] = row
    return FINE


def parse_records(const uint8_t[::1] payload, Py_ssize_t position, Py_ssize_t end, int64_t count, int64_t base_offset,
                  int64_t base_timestamp_ms, append_time_ms, int64_t fetch_offset, into, Py_ssize_t row):
    cdef Columns columns
    cdef bint appended = append_time_ms is not None
    cdef int64_t append_time = append_time_ms if appended else 0
    cdef const uint8_t* data
    cdef int failed = FINE
    columns_of(into, &columns)
    if position < 0 or end > payload.shape[0] or position > end:
        raise ValueError("the batch is outside its payload")
    if count < 0 or row < 0 or count > columns.capacity - row:
        raise ValueError("more records than there is room for")
    if payload.shape[0] > 0x7FFFFFFF:
        raise ValueError("a payload of more than 2 GiB")
    if position == end:
        if count:
            raise ValueError(_REASONS[CUT_OFF])
        return row
    data = &payload[0]
    with nogil:
        failed = parse_run(data, position, end, count, base_offset, base_timestamp_ms, appended, append_time,
                           fetch_offset, &columns, &row)
    if failed:
        raise ValueError(_REASONS[failed])
    return row


cdef enum:
    BATCH_BYTES = 61
    BATCH_CRC_POSITION = 17
    BATCH_CRC_START = 21
    CONTROL = 0x20
    TRANSACTIONAL = 0x10
    LOG_APPEND_TIME = 0x08


def scan_batches(payload, Py_ssize_t position, Py_ssize_t end, bint plain, bint transactional, bint check_crc):
    cdef const uint8_t[::1] view = payload
    cdef const uint8_t* data
    cdef int64_t batches = 0, count = 0, next_offset = -1, base
    cdef int32_t length, of_epoch, epoch = 0, delta, records
    cdef int attributes, kind = 0
    cdef Py_ssize_t stop
    if position < 0 or end > view.shape[0]:
        raise ValueError("the batches are outside their payload")
    if position >= end:
        return 0, 0, position, -1, 0
    data = &view[0]
    held = memoryview(payload) if check_crc else None
    while position + BATCH_BYTES <= end:
        base = get_int64(data + position)
        length = get_int32(data + position + 8)
        if data[position + MAGIC_POSITION] != 2 or length < BATCH_BYTES - LOG_OVERHEAD_BYTES or length > end - position - LOG_OVERHEAD_BYTES:
            break
        stop = position + LOG_OVERHEAD_BYTES + length
        of_epoch = get_int32(data + position + 12)
        attributes = data[position + 22]
        delta = get_int32(data + position + 23)
        records = get_int32(data + position + 57)
        if records < 0 or delta < 0 or base >= MAX_OFFSET - delta:
            break
        if batches and (of_epoch != epoch or (plain and attributes & LOG_APPEND_TIME != kind)):
            break
        if plain:
            if attributes & (CODEC_MASK | CONTROL) or (attributes & TRANSACTIONAL and not transactional):
                break
            if <int64_t>records * MIN_RECORD_BYTES > stop - position - BATCH_BYTES:
                break
            if check_crc and <uint32_t>crc32c(held[position + BATCH_CRC_START : stop]) != <uint32_t>get_int32(data + position + BATCH_CRC_POSITION):
                break
        epoch = of_epoch
        kind = attributes & LOG_APPEND_TIME
        batches += 1
        count += records
        next_offset = max(next_offset, base + delta + 1)
        position = stop
    return batches, count, position, next_offset, epoch


def parse_batches(const uint8_t[::1] payload, Py_ssize_t position, Py_ssize_t end, int64_t fetch_offset, into, Py_ssize_t row):
    cdef Columns columns
    cdef const uint8_t* data
    cdef int32_t length, delta, count
    cdef int64_t base
    cdef Py_ssize_t stop
    cdef int failed = FINE
    columns_of(into, &columns)
    if position < 0 or end > payload.shape[0] or position > end:
        raise ValueError("the batches are outside their payload")
    if row < 0 or payload.shape[0] > 0x7FFFFFFF:
        raise ValueError("a payload of more than 2 GiB")
    if position == end:
        return row
    data = &payload[0]
    with nogil:
        while position < end and not failed:
            if end - position < BATCH_BYTES:
                failed = CUT_OFF
                break
            base = get_int64(data + position)
            length = get_int32(data + position + 8)
            delta = get_int32(data + position + 23)
            count = get_int32(data + position + 57)
            if length < BATCH_BYTES - LOG_OVERHEAD_BYTES or length > end - position - LOG_OVERHEAD_BYTES or count < 0 or count > columns.capacity - row:
                failed = CUT_OFF
                break
            stop = position + LOG_OVERHEAD_BYTES + length
            if count and <int64_t>(<uint64_t>base + <uint64_t><int64_t>delta) >= fetch_offset:
                failed = parse_run(data, position + BATCH_BYTES, stop, count, base, get_int64(data + position + 27),
                                   data[position + 22] & LOG_APPEND_TIME, get_int64(data + position + 35),
                                   fetch_offset, &columns, &row)
            position = stop
    if failed:
        raise ValueError(_REASONS[failed])
    return row


def gather(const uint8_t[::1] payload, const int32_t[::1] starts, const int32_t[::1] sizes, Py_ssize_t first, Py_ssize_t last):
    cdef Py_ssize_t row, count = last - first
    cdef int64_t total = 0
    cdef Py_ssize_t nulls = 0
    if first < 0 or count < 0 or last > starts.shape[0] or last > sizes.shape[0]:
        raise ValueError("rows outside of the column")
    for row in range(first, last):
        if sizes[row] >= 0:
            if starts[row] < 0 or <int64_t>starts[row] + sizes[row] > payload.shape[0]:
                raise ValueError("a field outside of its payload")
            total += sizes[row]
        else:
            nulls += 1
    if total > 0x7FFFFFFF:
        raise OverflowError("more than 2 GiB in one column")
    offsets = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
    content = PyBytes_FromStringAndSize(NULL, total)
    validity = bytes((count + 7) // 8) if nulls else None
    cdef int32_t* out_offsets = <int32_t*>PyBytes_AS_STRING(offsets)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(content)
    cdef uint8_t* out_validity = <uint8_t*>PyBytes_AS_STRING(validity) if nulls else NULL
    cdef int32_t at = 0
    out_offsets[0] = 0
    if total == 0 and nulls == 0:
        for row in range(count):
            out_offsets[row + 1] = 0
        return offsets, content, validity
    cdef const uint8_t* data = &payload[0] if payload.shape[0] else NULL
    with nogil:
        for row in range(count):
            if sizes[first + row] >= 0:
                if sizes[first + row] > 0:
                    memcpy(out + at, data + starts[first + row], sizes[first + row])
                    at += sizes[first + row]
                if nulls:
                    out_validity[row >> 3] |= <uint8_t>(1 << (row & 7))
            out_offsets[row + 1] = at
    return offsets, content, validity


cdef class RecordEncoder:
    cdef uint8_t* _out
    cdef Py_ssize_t _size
    cdef Py_ssize_t _room

    def __dealloc__(self):
        free(self._out)

    cdef int _reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef uint8_t* grown
        if self._size + more > self._room:
            room = max(2 * self._room, self._size + more, 4096)
            grown = <uint8_t*>realloc(self._out, room)
            if grown == NULL:
                raise MemoryError()
            self._out = grown
            self._room = room
        return 0

    def append(self, int64_t timestamp_delta, int64_t offset_delta, bytes key, bytes value, list headers):
        cdef Py_ssize_t body = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
        cdef list encoded = []
        body += sized_size(key) + sized_size(value) + varint_size(len(headers))
        for name, content in headers:
            name_bytes = (<str>name).encode()
            body += sized_size(name_bytes) + sized_size(content)
            encoded.append((name_bytes, content))
        self._reserve(body + 10)
        self._put(body)
        self._out[self._size] = 0
        self._size += 1
        self._put(timestamp_delta)
        self._put(offset_delta)
        self._put_sized(key)
        self._put_sized(value)
        self._put(len(encoded))
        for name_bytes, content in encoded:
            self._put_sized(name_bytes)
            self._put_sized(content)

    cdef void _put(self, int64_t value) noexcept:
        cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
        while raw >= 0x80:
            self._out[self._size] = <uint8_t>(raw & 0x7F) | 0x80
            self._size += 1
            raw >>= 7
        self._out[self._size] = <uint8_t>raw
        self._size += 1

    cdef void _put_sized(self, bytes value) noexcept:
        cdef Py_ssize_t size
        if value is None:
            self._put(-1)
            return
        size = PyBytes_GET_SIZE(value)
        self._put(size)
        memcpy(self._out + self._size, PyBytes_AS_STRING(value), size)
        self._size += size

    def __len__(self):
        return self._size

    def getvalue(self):
        return PyBytes_FromStringAndSize(<char*>self._out, self._size)


cdef inline Py_ssize_t varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef Py_ssize_t size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline Py_ssize_t sized_size(bytes value):
    if value is None:
        return 1
    return varint_size(PyBytes_GET_SIZE(value)) + PyBytes_GET_SIZE(value)


cdef object UNREAD = object()


# Not tracked by the garbage collector: it would walk over every record of a poll, which took two thirds
# of the time. A cycle through a record would need a deserialised value that holds its own record.
@cython.no_gc
cdef class ConsumerRecord:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int leader_epoch
    cdef readonly int timestamp_type
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly int serialized_key_size
    cdef readonly int serialized_value_size
    cdef object _payload  # a memoryview: while it lives, the memory behind _data does
    cdef const uint8_t* _data
    cdef Py_ssize_t _payload_size
    cdef object _key
    cdef object _value
    cdef object _headers
    cdef int32_t _key_start
    cdef int32_t _value_start
    cdef int32_t _header_start
    cdef int32_t _header_count

    _fields = FIELD_NAMES

    def __init__(self, str topic not None, int partition, int leader_epoch, int64_t offset, int64_t timestamp,
                 int timestamp_type, key, value, headers=(), *, int serialized_key_size=-1,
                 int serialized_value_size=-1):
        self._set((topic, partition, leader_epoch, offset, timestamp, timestamp_type, key, value, list(headers),
                   serialized_key_size, serialized_value_size))

    cdef int _set(self, tuple fields) except -1:
        (self.topic, self.partition, self.leader_epoch, self.offset, self.timestamp, self.timestamp_type,
         self._key, self._value, self._headers, self.serialized_key_size, self.serialized_value_size) = fields
        return 0

    cdef object _bytes(self, int32_t start, int32_t size):
        if size < 0:
            return None
        if start < 0 or <int64_t>start + size > self._payload_size:
            raise ValueError("a field outside of its payload")
        return PyBytes_FromStringAndSize(<const char*>self._data + start, size)

    @property
    def key(self):
        if self._key is UNREAD:
            self._key = self._bytes(self._key_start, self.serialized_key_size)
        return self._key

    @key.setter
    def key(self, value):
        self._key = value

    @property
    def value(self):
        if self._value is UNREAD:
            self._value = self._bytes(self._value_start, self.serialized_value_size)
        return self._value

    @value.setter
    def value(self, value):
        self._value = value

    @property
    def headers(self):
        if self._headers is UNREAD:
            self._headers = read_headers(self._payload, self._header_start, self._header_count)
        return self._headers

    @property
    def serialized_header_size(self):
        return sum(len(name.encode()) + len(value or b"") for name, value in self.headers) or -1

    @property
    def checksum(self):
        return None

    def __repr__(self):
        return describe_record(self)

    def __eq__(self, other):
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return record_fields(self) == record_fields(other)

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self):
        return reduce_record(self, ConsumerRecord)

    def __setstate__(self, state):
        fields, attributes = state
        self._set(fields)
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _asdict(self):
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self, **changes):
        return replace_record(self, changes)


cdef list read_headers(const uint8_t[::1] payload, Py_ssize_t position, int32_t count):
    cdef int32_t start = 0, size = 0, key_start = 0, key_size = 0
    cdef Py_ssize_t end = payload.shape[0]
    cdef int32_t i
    cdef list headers = []
    if count == 0:
        return headers
    if position < 0 or position >= end:
        raise ValueError(_REASONS[CUT_OFF])
    if count < 0 or count > end - position:
        raise ValueError(_REASONS[HEADER_COUNT])
    cdef const uint8_t* data = &payload[0]
    for i in range(count):
        if read_sized(data, &position, end, &key_start, &key_size) or read_sized(data, &position, end, &start, &size):
            raise ValueError(_REASONS[FIELD_SIZE])
        if key_size < 0:
            raise ValueError(_REASONS[HEADER_KEY])
        name = PyUnicode_DecodeUTF8(<const char*>data + key_start, key_size, "replace")
        value = None if size < 0 else PyBytes_FromStringAndSize(<const char*>data + start, size)
        headers.append((name, value))
    return headers


def make_records(str topic, int partition, int leader_epoch, int timestamp_type, payload, columns,
                 Py_ssize_t first, Py_ssize_t last):
    cdef int64_t[::1] offset = columns.offset
    cdef int64_t[::1] timestamp = columns.timestamp
    cdef int32_t[::1] key_start = columns.key_start
    cdef int32_t[::1] key_size = columns.key_size
    cdef int32_t[::1] value_start = columns.value_start
    cdef int32_t[::1] value_size = columns.value_size
    cdef int32_t[::1] header_start = columns.header_start
    cdef int32_t[::1] header_count = columns.header_count
    cdef Py_ssize_t row
    cdef ConsumerRecord record
    cdef list records = []
    if first < 0 or last > offset.shape[0]:
        raise ValueError("rows outside of the columns")
    held = memoryview(payload)
    cdef const uint8_t[::1] view = held
    cdef const uint8_t* data = &view[0] if view.shape[0] else NULL
    for row in range(first, last):
        record = ConsumerRecord.__new__(ConsumerRecord)
        record.topic = topic
        record.partition = partition
        record.leader_epoch = leader_epoch
        record.timestamp_type = timestamp_type
        record.offset = offset[row]
        record.timestamp = timestamp[row]
        record._payload = held
        record._data = data
        record._payload_size = view.shape[0]
        record._key_start = key_start[row]
        record.serialized_key_size = key_size[row]
        record._value_start = value_start[row]
        record.serialized_value_size = value_size[row]
        record._header_start = header_start[row]
        record._header_count = header_count[row]
        record._key = UNREAD
        record._value = UNREAD
        record._headers = UNREAD
        records.append(record)
    return records
