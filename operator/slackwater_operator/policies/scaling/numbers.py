"""Numbers as a status has them, which anybody may have written, and as reasons show them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """An object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def number(value: object) -> float | None:
    """A number of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if value >= 0 else None


def whole(value: object) -> int | None:
    """A number of at least 0 without its fraction; None for anything else."""
    known = number(value)
    return None if known is None else int(known)


def two_digits(value: float) -> float:
    """A figure rounded to its first two digits, so that it changes rarely: 4137 becomes 4100."""
    if not value or not math.isfinite(value):
        return value
    rounded = round(value, 1 - math.floor(math.log10(abs(value))))
    return int(rounded) if rounded >= 10 else rounded


def duration(ms: int) -> str:
    """A duration in words: 90 s, 5 min, 2 h."""
    for unit, name in ((3_600_000, "h"), (60_000, "min")):
        if ms >= unit and ms % unit == 0:
            return f"{ms // unit} {name}"
    return f"{ms / 1000:.0f} s"
