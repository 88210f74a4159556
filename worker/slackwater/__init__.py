"""Slackwater. A handler may import the names below; the other packages have pages of their own in docs/."""

from __future__ import annotations

from slackwater.handler import Batch, OffsetRange, Retry

__all__ = ["Batch", "OffsetRange", "Retry"]
