"""Random records, and random logs of transactions, for tests of the record formats."""

from __future__ import annotations

import random
from dataclasses import dataclass

from slackwater.kafka.records import RecordColumns
from tests.support.java.records import JavaRecords, Seen, Written

CODECS_OF_MAGIC = {
    0: ("none", "gzip", "snappy", "lz4"),
    1: ("none", "gzip", "snappy", "lz4"),
    2: ("none", "gzip", "snappy", "lz4", "zstd"),
}


def written(rng: random.Random, count: int, *, base: int, magic: int, gaps: bool = True) -> list[Written]:
    """Records with null and empty keys and values, and with gaps between offsets, as compaction leaves."""
    made: list[Written] = []
    offset = base
    for _ in range(count):
        headers = []
        if magic == 2:
            headers = [
                (rng.choice(["", "a", "grün"]), rng.choice([None, b"", rng.randbytes(9)]))
                for _ in range(rng.choice([0, 0, 1, 3]))
            ]
        size = rng.choice([0, 1, 7, 64, 127, 128, 300, 9000])
        made.append(
            (
                offset,
                rng.choice([0, 1_400_000_000_000, 1_400_000_000_000 + rng.randrange(-99_999, 1 << 40)]),
                rng.choice([None, b"", rng.randbytes(5)]),
                rng.choice([None, rng.randbytes(size), bytes(size)]),
                headers,
            )
        )
        offset += rng.choice([1, 1, 1, 2, 130]) if gaps else 1
    return made


def decoded_rows(columns: RecordColumns) -> list[Seen]:
    """The rows as :class:`JavaRecords` gives them."""
    return [
        (r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers, r.leader_epoch)
        for r in columns.records("t", 0)
    ]


@dataclass(frozen=True)
class TransactionLog:
    """A log's bytes by batch, and its aborted transactions: producer, first offset, offset of the marker."""

    batches: list[tuple[int, bytes]]
    aborted: list[tuple[int, int, int]]

    def fetch(self, fetch_offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        """What a broker answers: bytes from the batch with ``fetch_offset`` on, aborted transactions."""
        data = b"".join(batch for last_offset, batch in self.batches if last_offset >= fetch_offset)
        return data, [(pid, first) for pid, first, end in self.aborted if end >= fetch_offset]


def transaction_log(java: JavaRecords, rng: random.Random, steps: int) -> TransactionLog:
    """Several producers' batches side by side, in transactions, ended one way or the other, and outside."""
    batches: list[tuple[int, bytes]] = []
    aborted: list[tuple[int, int, int]] = []
    begun: dict[int, int] = {}
    offset = 0
    for _ in range(steps):
        pid = rng.randrange(7, 10)
        if pid in begun and rng.random() < 0.35:
            kind = rng.choice(["COMMIT", "ABORT"])
            batches.append((offset, java.marker(kind, base_offset=offset, producer_id=pid)))
            first = begun.pop(pid)
            if kind == "ABORT":
                aborted.append((pid, first, offset))
            offset += 1
            continue
        transactional = pid in begun or rng.random() < 0.6
        records = written(rng, rng.randrange(1, 4), base=offset, magic=2)
        if transactional:
            begun.setdefault(pid, offset)
        data = java.write(
            records,
            magic=2,
            codec=rng.choice(CODECS_OF_MAGIC[2]),
            producer_id=pid,
            transactional=transactional,
        )
        offset = records[-1][0] + 1
        batches.append((offset - 1, data))
    return TransactionLog(batches, aborted)
