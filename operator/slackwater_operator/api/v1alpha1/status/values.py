"""Values of statuses: those that anybody may have written are read, and figures are rounded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """An object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list; none for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def text(value: object) -> str:
    """A text; "" for anything else."""
    return value if isinstance(value, str) else ""


def number(value: object, least: float = -math.inf) -> float | None:
    """A finite number of at least `least`; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if value >= least else None


def whole(value: object, least: float = -math.inf) -> int | None:
    """A number of at least `least` without its fraction; None for anything else."""
    if type(value) is int:  # as nearly all are
        return value if value >= least else None
    known = number(value, least)
    return None if known is None else int(known)


def two_digits(value: float) -> float:
    """A figure rounded to its first two digits, so that it changes rarely: 4137 becomes 4100."""
    if not value or not math.isfinite(value):
        return value
    rounded = round(value, 1 - math.floor(math.log10(abs(value))))
    return int(rounded) if rounded >= 10 else rounded
