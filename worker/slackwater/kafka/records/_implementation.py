"""Chooses the parser: the compiled one if it was built, else the pure-Python one."""

from __future__ import annotations

import contextlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from slackwater.kafka.records import _parser_py

_chosen: ModuleType = _parser_py
if not os.environ.get("SLACKWATER_PURE_PYTHON"):
    with contextlib.suppress(ImportError):
        import slackwater.kafka.records._parser as _chosen
COMPILED = _chosen is not _parser_py

if TYPE_CHECKING:
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
else:
    ColumnBuffers = _chosen.ColumnBuffers
    ConsumerRecord = _chosen.ConsumerRecord
    RecordEncoder = _chosen.RecordEncoder
    gather = _chosen.gather
    make_records = _chosen.make_records
    parse_batches = _chosen.parse_batches
    parse_messages = _chosen.parse_messages
    parse_records = _chosen.parse_records
    scan_batches = _chosen.scan_batches
    scan_messages = _chosen.scan_messages

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


_parser_py.pickle_by(new_record)
