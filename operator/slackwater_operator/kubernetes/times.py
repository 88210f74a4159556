"""Kubernetes' times: RFC 3339 in UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def micro_time(at_ms: int) -> str:
    """As meta/v1 MicroTime wants it, always with six digits: `2026-01-02T03:04:05.678000Z`."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
