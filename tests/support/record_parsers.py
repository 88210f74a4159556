"""Puts one of the two record parsers in the place where the package looks for it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from slackwater.kafka.records import (
    _implementation,
    _parser,
    _parser_py,
    batch,
    builder,
    columns,
    legacy,
    opening,
    transactions,
)

PARSERS: dict[str, Any] = {"compiled": _parser, "pure": _parser_py}
_USERS: tuple[ModuleType, ...] = (_implementation, batch, builder, columns, legacy, opening, transactions)
_NAMES = (
    "ColumnBuffers", "ConsumerRecord", "RecordEncoder", "gather", "make_records", "parse_batches",
    "parse_messages", "parse_records", "scan_batches", "scan_messages",
)  # fmt: skip


def use_parser(name: str) -> Any:
    """From now on ``decode`` and ``BatchBuilder`` use this parser, ``compiled`` or ``pure``; returns it."""
    parser = PARSERS[name]
    used = set()
    for module in _USERS:
        for attribute in _NAMES:
            if hasattr(module, attribute):
                setattr(module, attribute, getattr(parser, attribute))
                used.add(attribute)
    if used != set(_NAMES):
        raise RuntimeError(f"nobody uses {set(_NAMES) - used}")
    return parser
