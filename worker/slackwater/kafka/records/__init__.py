"""Record batches: encode, decode, columns, compression, checksums."""

from __future__ import annotations

from typing import Any

from slackwater.kafka.records._implementation import COMPILED, ConsumerRecord
from slackwater.kafka.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Extent,
    iter_batches,
    measure,
    measure_within,
    set_append_time,
    set_base_offset,
    verify_crc,
)
from slackwater.kafka.records.builder import BatchBuilder, record_size, stamp_crc
from slackwater.kafka.records.columns import DEFAULT_MAX_DECOMPRESSED_BYTES, RecordColumns, concat, decode
from slackwater.kafka.records.errors import CorruptBatchError, RecordError, UnsupportedRecordFormatError

__all__ = [
    "COMPILED",
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "HEADER_BYTES",
    "BatchBuilder",
    "BatchHeader",
    "ConsumerRecord",
    "CorruptBatchError",
    "Extent",
    "RecordColumns",
    "RecordError",
    "UnsupportedRecordFormatError",
    "concat",
    "decode",
    "iter_batches",
    "measure",
    "measure_within",
    "record_size",
    "set_append_time",
    "set_base_offset",
    "stamp_crc",
    "verify_crc",
]


def __getattr__(name: str) -> Any:
    # pyarrow takes half a second to import, so its part is loaded by who asks for it.
    if name == "ARROW_SCHEMA":
        from slackwater.kafka.records.arrow import ARROW_SCHEMA

        return ARROW_SCHEMA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
