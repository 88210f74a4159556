"""Slackwater. A handler may import the names below; the other packages have pages of their own in docs/."""

from __future__ import annotations

from slackwater.handler import Batch, OffsetRange, Retry
from slackwater.version import VERSION

__version__ = VERSION

__all__ = ["Batch", "OffsetRange", "Retry", "__version__"]
