"""Chooses the parser: the compiled one if it was built, else the pure-Python one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from slackwater.kafka.records._parser_py import pickle_by

if TYPE_CHECKING or os.environ.get("SLACKWATER_PURE_PYTHON"):
    from slackwater.kafka.records._parser_py import (
        ColumnBuffers,
        ConsumerRecord,
        RecordEncoder,
        gather,
        make_records,
        parse_batches,
        parse_messages,
        parse_records,
        scan_batches,
        scan_messages,
    )

    COMPILED = False
else:
    try:
        from slackwater.kafka.records._parser import (
            ColumnBuffers,
            ConsumerRecord,
            RecordEncoder,
            gather,
            make_records,
            parse_batches,
            parse_messages,
            parse_records,
            scan_batches,
            scan_messages,
        )

        COMPILED = True
    except ImportError:
        from slackwater.kafka.records._parser_py import (
            ColumnBuffers,
            ConsumerRecord,
            RecordEncoder,
            gather,
            make_records,
            parse_batches,
            parse_messages,
            parse_records,
            scan_batches,
            scan_messages,
        )

        COMPILED = False

__all__ = [
    "COMPILED",
    "ColumnBuffers",
    "ConsumerRecord",
    "RecordEncoder",
    "gather",
    "make_records",
    "new_record",
    "parse_batches",
    "parse_messages",
    "parse_records",
    "scan_batches",
    "scan_messages",
]


def new_record() -> ConsumerRecord:
    """An empty record of the parser in use, for ``copy`` and ``pickle`` to fill."""
    return ConsumerRecord.__new__(ConsumerRecord)


pickle_by(new_record)
