"""Times as Kubernetes objects hold them."""

from __future__ import annotations

from datetime import UTC, datetime


def time_ms(text: object) -> int | None:
    """A Kubernetes time (RFC 3339) in ms since 1970; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return None


def to_text(ms: int) -> str:
    """A time, in ms since 1970, as Kubernetes writes it: in UTC and whole seconds."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
