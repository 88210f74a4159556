"""Record batches made by hand, for what a broker does with them."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.kafka.records import BatchBuilder


def make_batch(
    values: Sequence[bytes],
    *,
    timestamps_ms: Sequence[int] | None = None,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """One batch of these values, as a producer sends it; timestamps count from 1000 on if not given."""
    builder = BatchBuilder(compression, 100_000_000)
    for index, value in enumerate(values):
        timestamp_ms = 1000 + index if timestamps_ms is None else timestamps_ms[index]
        assert builder.append(timestamp_ms, None, value, [])
    return bytearray(
        builder.build(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    )
