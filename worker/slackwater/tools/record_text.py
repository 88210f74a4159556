"""Values of records and rows for a terminal and as JSON. What they hold comes from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

MOST_CELL = 40
"""Characters of a cell of a table."""


def printable(text: str) -> str:
    """``text`` in one line, without characters that would control a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def shortened(text: str, most: int = MOST_CELL) -> str:
    """``text``, cut to ``most`` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def text_or_hex(value: bytes | None) -> str | None:
    """UTF-8 text as it is, other bytes as ``0x`` and hex."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()


def iso_time(ms: int) -> str:
    """A time in ms since 1970 as ISO 8601, in UTC and to the second."""
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def plain(value: Any) -> Any:
    """``value`` of what JSON has: bytes by :func:`text_or_hex`, times in ISO 8601, others as their text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return text_or_hex(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def cell(value: Any, *, most: int | None = None) -> str:
    """``value`` for a table, in ``most`` characters (None: :data:`MOST_CELL`)."""
    shown = plain(value)
    return shortened(printable("null" if shown is None else str(shown)), most or MOST_CELL)


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], *, most: int | None = None) -> list[str]:
    """Lines of a table with columns as wide as their values. ``most``: as in :func:`cell`."""
    cells = [
        [printable(name) for name in names],
        *([cell(value, most=most) for value in row] for row in rows),
    ]
    widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
