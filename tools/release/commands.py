"""Runs other programs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.release.project import ROOT, ReleaseProblem

TIMEOUT_S = 900.0
_SHOWN = 3000
"""How many of the last characters of a failed command's output an error has."""


def run(command: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """What the command printed, on both streams.

    Raises:
        ReleaseProblem: it failed; the message has its output.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=None if env is None else dict(env), stdin=subprocess.DEVNULL, timeout=TIMEOUT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ReleaseProblem(f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout[-_SHOWN:]}")
    return done.stdout
