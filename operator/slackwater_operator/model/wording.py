"""Lists in messages."""

from __future__ import annotations

from collections.abc import Sequence


def enumerated(names: Sequence[str], most: int) -> str:
    """The first `most` names, and how many more there are: `a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
