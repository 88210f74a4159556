"""Decoding fetched batches in memory: ours as columns, Arrow and records, against aiokafka and kafka-python.

Prints millions of records a second on one thread, checksums verified, as the median of five rounds in
which every decoder reads the same bytes in turn, and each as a multiple of aiokafka's.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record.memory_records import MemoryRecords as PyRecords

from benchmarks import without_arguments
from slackwater.kafka import records
from slackwater.kafka.records import BatchBuilder

_ROUNDS = 5
_BATCH_BYTES = 1 << 20
_BATCHES = 4
LOADS = [(codec, _BATCH_BYTES) for codec in ("none", "lz4", "zstd", "gzip")] + [("none", 200)]
"""Codecs, and the size of batches; in the last a batch holds one record, as where producers do not wait."""


def fetch(value_bytes: int, codec: str, batch_bytes: int) -> tuple[bytes, int]:
    """Batches of records whose values look like text, and how many records they hold."""
    rng = random.Random(value_bytes)
    words = [rng.randbytes(4).hex().encode() for _ in range(200)]
    parts, count = [], 0
    for _ in range(_BATCHES * _BATCH_BYTES // batch_bytes):
        builder = BatchBuilder(codec, batch_bytes)
        while builder.append(1_400_000_000_000 + count, b"N14228", _text(rng, words, value_bytes)):
            count += 1
        parts.append(builder.build(base_offset=count - builder.count))
    return b"".join(parts), count


def _text(rng: random.Random, words: list[bytes], size: int) -> bytes:
    return b" ".join(rng.choices(words, k=size // 9 + 1))[:size]


def ours_columns(data: bytes) -> int:
    return len(records.decode(data, fetch_offset=0))


def ours_arrow(data: bytes) -> int:
    return int(records.decode(data, fetch_offset=0).to_arrow("t", 0).num_rows)


def ours_records(data: bytes) -> int:
    return sum(1 for r in records.decode(data, fetch_offset=0).records("t", 0) if r.value is not None)


def aiokafka(data: bytes) -> int:
    return _batches(AioRecords(data))


def kafka_python(data: bytes) -> int:
    return _batches(PyRecords(data))


def _batches(stored: AioRecords | PyRecords) -> int:
    count = 0
    while stored.has_next():
        batch = stored.next_batch()
        if not batch.validate_crc():
            raise RuntimeError("a peer finds our checksum wrong")
        count += sum(1 for record in batch if record.value is not None)
    return count


DECODERS: list[Callable[[bytes], int]] = [ours_columns, ours_arrow, ours_records, aiokafka, kafka_python]


def main() -> None:
    print("parser:", "compiled" if records.COMPILED else "pure Python")
    print(f"{'value, codec, batch':<24}" + "".join(f"{decoder.__name__:>20}" for decoder in DECODERS))
    for size in (100, 1000):
        for codec, batch_bytes in LOADS:
            data, count = fetch(size, codec, batch_bytes)
            rates: dict[str, list[float]] = {decoder.__name__: [] for decoder in DECODERS}
            for _ in range(_ROUNDS):
                for decoder in DECODERS:
                    started = time.perf_counter()
                    if decoder(data) != count:
                        raise RuntimeError(f"{decoder.__name__} did not read all {count} records")
                    rates[decoder.__name__].append(count / (time.perf_counter() - started) / 1e6)
            medians = {name: statistics.median(values) for name, values in rates.items()}
            cells = "".join(f"{m:>11.2f} ({m / medians['aiokafka']:>5.1f}x)" for m in medians.values())
            print(f"{size:>5} B, {codec:<5}{batch_bytes:>8} B  {cells}", flush=True)


if __name__ == "__main__":
    without_arguments(main, __doc__)
