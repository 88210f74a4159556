"""The demo's folder: made anew for each run, and never anybody else's."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import IO

_MARKER = ".made-by-slackwater-demo"


class WorkplaceError(Exception):
    """The folder cannot be used: one line that says why and what to do."""


class Workplace:
    """``folder`` with nothing in it but a lock; held until :meth:`release`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.output = folder / "flights"
        self.report = folder / "report.json"
        self._lock: IO[bytes] | None = None

    def prepare(self) -> None:
        """Empties the folder.

        Raises:
            WorkplaceError: it holds something that no demo made, another demo runs in it, or it cannot
                be written.
        """
        try:
            if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / _MARKER).exists():
                raise WorkplaceError(
                    f"{self.folder} holds something that no demo made; move it away, or run this elsewhere"
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / _MARKER).open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._empty()
        except BlockingIOError:
            raise WorkplaceError(
                f"another demo runs in {self.folder}; wait for it, or run this one in another folder"
            ) from None
        except OSError as exc:
            raise WorkplaceError(f"{exc.filename or self.folder}: {exc.strerror}") from None

    def release(self) -> None:
        """Lets another demo have the folder; what was written stays."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _empty(self) -> None:
        for entry in self.folder.iterdir():
            if entry.name == _MARKER:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
