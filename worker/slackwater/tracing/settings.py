"""Where a process sends its traces and metrics, and how many of them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class TraceSettings:
    """``endpoint``: the collector's URL without ``/v1/traces``; "": what the environment says.
    ``sample_ratio``: the share of traces that are recorded; None: what the environment says, or 0.01."""

    endpoint: str = ""
    sample_ratio: float | None = None


DEFAULT_INTERVAL_MS = 60_000


@dataclass(frozen=True)
class MetricSettings:
    """``endpoint``: the collector's URL without ``/v1/metrics``; "": what the environment says.
    ``interval_ms``: how often metrics are sent."""

    endpoint: str = ""
    interval_ms: int = DEFAULT_INTERVAL_MS


ENDPOINT = r"https?://[A-Za-z0-9._~\-\[\]:]+(/[A-Za-z0-9._~\-/]*)?"
"""The form of a collector's URL."""


def is_endpoint(url: str) -> bool:
    """Whether ``url`` is a collector's, or "" for that of the environment."""
    return not url or re.fullmatch(ENDPOINT, url) is not None


def signal_url(endpoint: str, path: str) -> str:
    """Where a signal goes: ``endpoint`` with ``path`` (``v1/traces``), unless it has it already."""
    base = endpoint.rstrip("/")
    return base if base.endswith(f"/{path}") else f"{base}/{path}"
