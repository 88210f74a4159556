# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The parser and the encoder of records, compiled. ``_parser_py.py`` says what each name does; both are
tested against each other. Every length is checked against the record and every record against the
batch before a byte of it is read."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from slackwater.kafka.records._parser_py import ColumnBuffers, describe_record

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


def parse_records(const uint8_t[::1] payload, Py_ssize_t position, Py_ssize_t end, int64_t count, int64_t base_offset,
                  int64_t base_timestamp_ms, append_time_ms, int64_t fetch_offset, into, Py_ssize_t row):
    cdef int64_t[::1] offset = into.offset
    cdef int64_t[::1] timestamp = into.timestamp
    cdef int32_t[::1] key_start = into.key_start
    cdef int32_t[::1] key_size = into.key_size
    cdef int32_t[::1] value_start = into.value_start
    cdef int32_t[::1] value_size = into.value_size
    cdef int32_t[::1] header_start = into.header_start
    cdef int32_t[::1] header_count = into.header_count
    cdef bint appended = append_time_ms is not None
    cdef int64_t append_time = append_time_ms if appended else 0
    cdef Py_ssize_t capacity = offset.shape[0]
    cdef const uint8_t* data
    cdef Record record
    cdef int64_t i
    cdef int failed = FINE
    if position < 0 or end > payload.shape[0] or position > end:
        raise ValueError("the batch is outside its payload")
    if count < 0 or row < 0 or count > capacity - row:
        raise ValueError("more records than there is room for")
    if payload.shape[0] > 0x7FFFFFFF:
        raise ValueError("a payload of more than 2 GiB")
    if position == end:
        if count:
            raise ValueError(_REASONS[CUT_OFF])
        return row
    data = &payload[0]
    with nogil:
        for i in range(count):
            failed = read_record(data, &position, end, &record)
            if failed:
                break
            if base_offset + record.offset_delta < fetch_offset:
                continue
            offset[row] = base_offset + record.offset_delta
            timestamp[row] = append_time if appended else <int64_t>(<uint64_t>base_timestamp_ms + <uint64_t>record.ts_delta)
            key_start[row] = record.key_start
            key_size[row] = record.key_size
            value_start[row] = record.value_start
            value_size[row] = record.value_size
            header_start[row] = record.header_start
            header_count[row] = <int32_t>record.header_count
            row += 1
        if not failed and position != end:
            failed = TRAILING
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


cdef list read_headers(const uint8_t[::1] payload, Py_ssize_t position, int32_t count):
    cdef int32_t start = 0, size = 0, key_start = 0, key_size = 0
    cdef Py_ssize_t end = payload.shape[0]
    cdef int32_t i
    cdef list headers = []
    if count == 0:
        return headers
    cdef const uint8_t* data = &payload[0]
    for i in range(count):
        if read_sized(data, &position, end, &key_start, &key_size) or read_sized(data, &position, end, &start, &size):
            raise ValueError(_REASONS[FIELD_SIZE])
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
