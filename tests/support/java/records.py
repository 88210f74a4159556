"""Apache Kafka's own reading and writing of records, as a process to ask: the oracle for ours.

``java/JavaRecords.java`` answers one request at a time: batches and message sets are written by Java's
``MemoryRecordsBuilder``, and read by ``CompletedFetch``, which is what Java's consumer reads a fetch with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.java.programs import JavaOracle

Headers = list[tuple[str, bytes | None]]
Written = tuple[int, int, bytes | None, bytes | None, Headers]
"""What a record is written from: offset, timestamp in ms, key, value, headers."""
Seen = tuple[int, int, int, bytes | None, bytes | None, Headers, int]
"""What is read: offset, timestamp in ms, timestamp type, key, value, headers, leader epoch."""


@dataclass(frozen=True)
class Read:
    """What Java's consumer would give, where it would go on, and what it would raise ("": nothing)."""

    records: list[Seen]
    next_offset: int
    error: str


class JavaRecords(JavaOracle):
    """Writes batches and message sets, and reads them."""

    def __init__(self) -> None:
        super().__init__("JavaRecords")

    def write(
        self,
        records: Sequence[Written],
        *,
        magic: int,
        codec: str = "none",
        base_offset: int | None = None,
        append_time_ms: int | None = None,
        producer_id: int = -1,
        transactional: bool = False,
        epoch: int = -1,
    ) -> bytes:
        """A batch (magic 2) or message set (0, 1) of ``records``. Raises ValueError if Java refuses."""
        answer = self.ask(
            {
                "do": "write",
                "magic": magic,
                "codec": codec,
                "base_offset": records[0][0] if base_offset is None else base_offset,
                "append_time": append_time_ms,
                "producer_id": producer_id,
                "transactional": transactional,
                "epoch": epoch,
                "records": [
                    [
                        offset,
                        time_ms,
                        _hex(key),
                        _hex(value),
                        [[name, _hex(content)] for name, content in headers],
                    ]
                    for offset, time_ms, key, value, headers in records
                ],
            }
        )
        if "error" in answer:
            raise ValueError(answer["error"])
        return bytes.fromhex(answer["data"])

    def marker(self, kind: str, *, base_offset: int, producer_id: int) -> bytes:
        """A transaction marker, ``COMMIT`` or ``ABORT``."""
        answer = self.ask(
            {"do": "write", "marker": kind, "base_offset": base_offset, "producer_id": producer_id}
        )
        return bytes.fromhex(answer["data"])

    def read(
        self, data: bytes, *, fetch_offset: int, aborted: Sequence[tuple[int, int]] | None = None
    ) -> Read:
        """What Java's consumer makes of one partition's bytes; read_committed if ``aborted`` is not None."""
        answer = self.ask(
            {"do": "read", "data": data.hex(), "fetch_offset": fetch_offset, "aborted": aborted}
        )
        rows: list[Seen] = [
            (
                offset, time_ms, kind, _bytes(key), _bytes(value),
                [(name, _bytes(content)) for name, content in headers], epoch,
            )
            for offset, time_ms, kind, key, value, headers, epoch in answer.get("records", [])
        ]  # fmt: skip
        return Read(rows, answer.get("next_offset", fetch_offset), answer.get("error", ""))


def _hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()


def _bytes(content: str | None) -> bytes | None:
    return None if content is None else bytes.fromhex(content)
