"""The settings of a group for commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def group_settings(bootstrap: str, folder: Path) -> dict[str, Any]:
    """A worker's settings: the topic ``t``, the dead-letter topic ``letters``, a table below ``folder``."""
    return {
        "bootstrapServers": bootstrap,
        "groupId": "g",
        "topics": ["t"],
        "handler": "os:getcwd",
        "engine": "python",
        "sink": {"format": "parquet", "path": str(folder / "rows")},
        "deadLetterTopic": "letters",
    }
