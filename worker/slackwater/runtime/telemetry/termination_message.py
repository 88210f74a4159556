"""The last word of a container: what Kubernetes shows as its terminated message."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

DEFAULT_PATH = Path("/dev/termination-log")
"""Kubernetes' default terminationMessagePath; there only in a container of a pod."""
PATH_VARIABLE = "SLACKWATER_TERMINATION_LOG"
MOST_BYTES = 4096
"""Kubernetes cuts a message there."""


def note(message: str, environment: Mapping[str, str]) -> None:
    """Writes why the process ends: to the path in SLACKWATER_TERMINATION_LOG, else to
    /dev/termination-log where that is. That it cannot be written is no reason to fail.
    """
    named = environment.get(PATH_VARIABLE, "")
    path = Path(named) if named else DEFAULT_PATH
    if not named and not path.exists():
        return
    with contextlib.suppress(OSError):
        path.write_bytes(message.encode()[:MOST_BYTES])
