"""Records as they come from a broker, for tests of what becomes of them."""

from __future__ import annotations

from typing import Any

from slackwater.kafka.records import RecordColumns, _parser_py, decode
from slackwater.kafka.records.compression import compress
from tests.support.records.parsing import batch

HEADERS = [("h", b"1"), ("h", None), ("", b"")]
ROWS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"key", b"value" * 20, HEADERS),
    (None, None, []),
    (b"", b"\0\0inside\0", [("a", b"\0")]),
]


def fetched(rows: int = len(ROWS)) -> RecordColumns:
    """Rows of two batches, of which the second is compressed, as they come from a broker."""
    data = b""
    for base, codec in ((5, 0), (5 + rows, 1)):
        encoder = _parser_py.RecordEncoder()
        for delta in range(rows):
            encoder.append(delta, delta, *ROWS[delta % len(ROWS)])
        body = compress(codec, encoder.getvalue())
        data += batch(body, rows, attributes=codec, base_offset=base, base_ms=1000)
    return decode(memoryview(bytearray(data)), fetch_offset=5)


def contents(given: Any) -> tuple[Any, ...]:
    """All fields of a record."""
    return tuple(given._asdict().values())


EXPECTED = [
    ("t", 7, 3, 5 + n, 1000 + n % 3, 0, key, value, headers, None)
    for n, (key, value, headers) in enumerate(ROWS * 2)
]
"""The fields of each record of :func:`fetched`, in topic ``t``, partition 7."""
