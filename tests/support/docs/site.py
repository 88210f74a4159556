"""The documentation's site, as `make docs` builds it."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

from tests.support.docs.blocks import ROOT


class SiteUnavailable(RuntimeError):
    """The tools of the site cannot be installed here; the message says why."""


def tools() -> Path:
    """The Python that has mkdocs, installed by the Makefile. Safe from many processes.

    Raises :class:`SiteUnavailable`.
    """
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / "docs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "--silent", ".cache/docs/.made"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    if made.returncode:
        raise SiteUnavailable(f"make .cache/docs/.made failed:\n{made.stderr[-3000:]}")
    return folder / "docs" / "bin" / "python"


def build(folder: Path) -> None:
    """Builds the site into ``folder``. Raises AssertionError with what mkdocs warns of."""
    command = [str(tools()), "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
