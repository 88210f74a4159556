"""Record batches and message sets of every codec, in both parsers."""

from __future__ import annotations

import functools
from random import Random
from typing import Any
from unittest.mock import patch

from slackwater.kafka import records
from slackwater.kafka.records import _parser_py, columns
from slackwater.kafka.records.compression import CODECS, compress
from tests.fuzz.engine import Broken, Input
from tests.fuzz.mutate import mutated
from tests.support.records.parsing import (
    ABORT,
    COMMIT,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batch,
    message,
    use_parser,
    with_right_checksums,
    wrapper,
)

_ROOM_BYTES = 24 << 20
"""What the codecs need for themselves, whatever the limit: two windows of 8 MiB, and steps."""
_ROW_BYTES = 700
"""A row of at least seven bytes takes 40 as columns, and becomes a record object with key and value."""
_OLD = ("gzip", "snappy", "lz4")


def _bodies() -> list[tuple[bytes, int]]:
    """Records as they stand in a batch, and how many."""
    rng = Random(1)
    made = []
    for count in (1, 2, 5, 12):
        for size in (0, 3, 60):
            encoder = _parser_py.RecordEncoder()
            for n in range(count):
                headers = [("h" * (n % 3), None if n % 2 else b"v")] * (n % 4)
                key = None if n % 3 == 2 else rng.randbytes(n % 5)
                value = None if size == 0 and n % 2 else bytes(size)
                encoder.append(rng.randrange(-500, 500), n * (1 + size % 2), key, value, headers)
            made.append((encoder.getvalue(), count))
    return made


def _sets(magic: int) -> list[bytes]:
    return [
        b"".join(message(n, magic, b"v" * (n % 9), key=None if n % 2 else b"k") for n in range(count))
        for count in (1, 2, 6)
    ]


@functools.cache
def bodies() -> list[tuple[bytes, int]]:
    return _bodies()


@functools.cache
def good() -> list[bytes]:
    """Valid batches and message sets of every kind."""
    made: list[bytes] = []
    for body, count in bodies():
        for codec in CODECS.values():
            attributes = codec | Random(len(made)).choice([0, LOG_APPEND_TIME, TRANSACTIONAL])
            producer = len(made) % 3 - 1
            made.append(
                batch(
                    compress(codec, body), count, attributes=attributes, producer_id=producer, base_offset=3
                )
            )
    for key in (ABORT, COMMIT):
        encoder = _parser_py.RecordEncoder()
        encoder.append(0, 0, key, bytes(6), [])
        attributes = CONTROL | TRANSACTIONAL
        made.append(batch(encoder.getvalue(), 1, attributes=attributes, producer_id=1, base_offset=9))
    for magic in (0, 1):
        for content in _sets(magic):
            made.append(content)
            made += [wrapper(20, magic, codec, content) for codec in _OLD]
    return made


def _inside_out(rng: Random) -> bytes:
    """Something damaged inside, packed as if nothing were wrong."""
    codec = rng.choice(list(CODECS))
    if rng.random() < 0.7:
        body, count = rng.choice(bodies())
        damaged = mutated(rng, body, [body])
        count = count if rng.random() < 0.8 else rng.choice([0, 1, count + 1, 1 << 30])
        return batch(
            compress(CODECS[codec], damaged), count, attributes=CODECS[codec], base_offset=rng.randrange(9)
        )
    magic = rng.randrange(2)
    content = mutated(rng, rng.choice(_SETS[magic]), good())
    if rng.random() < 0.5:
        content = with_right_checksums(content)
    return wrapper(rng.choice([0, 3, 20]), magic, codec, content) if codec != "none" else content


_SETS = (_sets(0), _sets(1))


_TOGETHER = (1, 1, 1, 1, 1, 1, 2, 2, 3, 5)


class Records:
    """decode() and all that can be asked of its rows, by the compiled parser."""

    name = "records"

    def make(self, rng: Random) -> Input:
        parts = []
        for _ in range(rng.choice(_TOGETHER)):
            if rng.random() < 0.35:
                parts.append(_inside_out(rng))
                continue
            stored = good()
            whole = stored[int(rng.random() * len(stored))]
            damaged = whole if rng.random() < 0.2 else mutated(rng, whole, stored)
            parts.append(damaged if rng.random() < 0.1 else with_right_checksums(damaged))
        aborted = [(rng.randrange(3), rng.randrange(12)) for _ in range(rng.randrange(3))]
        options = (
            int(rng.random() * 12),
            rng.choice([1 << 20, 1 << 20, 100]),
            aborted if rng.random() < 0.5 else None,
        )
        return Input(b"".join(parts), "fetch", options)

    def check(self, given: Input) -> bool:
        return bool(outcome(given)[0] == "read")

    def memory_bytes(self, given: Input) -> int:
        limit: int = given.options[1]
        return _ROOM_BYTES + 2 * limit + _ROW_BYTES * len(given.data)


class Twins(Records):
    """The same by both parsers, and batch by batch where they read several at once: all must agree."""

    name = "twins"

    def check(self, given: Input) -> bool:
        compiled = outcome(given)
        use_parser("pure")
        try:
            pure = outcome(given)
        finally:
            use_parser("compiled")
        if compiled != pure:
            raise Broken(f"the parsers differ:\n{compiled}\n{pure}")
        with patch.object(columns, "open_run", lambda *_, **__: None):
            single = outcome(given)
        if not _same_records(compiled, single):
            raise Broken(f"one by one it is not the same:\n{compiled}\n{single}")
        return bool(compiled[0] == "read")


def _same_records(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """The columns may come in other pieces."""
    return first[:4] == second[:4] and first[5:] == second[5:]


def outcome(given: Input) -> tuple[Any, ...]:
    """All that can be seen of what ``decode`` makes of an input."""
    fetch_offset, limit, aborted = given.options
    try:
        decoded = records.decode(
            given.data, fetch_offset=fetch_offset, max_decompressed_bytes=limit, aborted=aborted
        )
    except records.RecordError as exc:
        return "refused", type(exc).__name__, getattr(exc, "offset", None)
    if not fetch_offset <= decoded.next_offset < 1 << 63:
        raise Broken(f"from {fetch_offset} it goes to {decoded.next_offset}")
    rows = [
        (r.offset, r.timestamp, r.timestamp_type, r.leader_epoch, r.key, r.value, r.headers)
        for r in decoded.records("t", 0)
    ]
    if len(rows) != len(decoded) or any(row[0] < fetch_offset for row in rows):
        raise Broken("rows that were not asked for")
    pieces = [decoded.binary_column(name) for name in ("key", "value")]
    middle = decoded.slice(1, 3)
    return "read", decoded.next_offset, decoded.first_offset, rows, pieces, middle.next_offset, len(middle)
