"""A command's working folder: marked as the command's, and locked by one process at a time.

A marker says whose it is. The command that makes the folder, or finds it empty, writes the marker; without it
a folder that holds anything is somebody else's, and is refused.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

_MARKER = ".made-by-slackwater-"


class WorkFolderError(Exception):
    """The folder cannot be used. The message is one line: the folder, why, and what to do."""

    exit_code = 2


class WorkFolder:
    """The folder ``folder`` of the command ``slackwater COMMAND``."""

    def __init__(self, folder: Path, command: str, *, elsewhere: str) -> None:
        """Touches nothing yet.

        Args:
            folder: the folder, which need not exist.
            command: such as `local run`; another command's folder is refused.
            elsewhere: what a user does to work in another folder, for messages.
        """
        self.folder = folder
        self._command, self._elsewhere = f"slackwater {command}", elsewhere
        self._marker = folder / f"{_MARKER}{command.replace(' ', '-')}"
        self._lock_fd = -1

    @property
    def claimed(self) -> bool:
        """Whether this process has the folder."""
        return self._lock_fd >= 0

    def claim(self) -> None:
        """Creates the folder if it is missing, and locks it for this process. Removes nothing.

        Raises:
            WorkFolderError: it holds something and has no marker of this command, another process has it, or
                it cannot be written.
        """
        try:
            if self.folder.exists() and any(self.folder.iterdir()) and not self._is_marked():
                raise WorkFolderError(
                    f"{self.folder} holds files that `{self._command}` did not make, so it is left as it is; "
                    f"move them away, or {self._elsewhere}"
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            lock_fd = os.open(self._marker, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise self._failed(exc) from None
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(lock_fd)
            if not isinstance(exc, BlockingIOError):
                raise self._failed(exc) from None
            raise WorkFolderError(
                f"another `{self._command}` uses {self.folder}; wait until it has ended, or {self._elsewhere}"
            ) from None
        self._lock_fd = lock_fd

    def empty(self, keep: Collection[Path] = ()) -> None:
        """Removes everything in the folder but the marker and ``keep``. Links are removed, not followed.

        Raises:
            WorkFolderError: something cannot be removed.
        """
        assert self.claimed, "claim() comes first"
        try:
            for entry in self.folder.iterdir():
                if entry == self._marker or entry in keep:
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        except OSError as exc:
            raise self._failed(exc) from None

    def release(self) -> None:
        """Unlocks the folder for other processes. Files and marker stay."""
        if self.claimed:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _is_marked(self) -> bool:
        try:
            return stat.S_ISREG(self._marker.lstat().st_mode)
        except FileNotFoundError:
            return False

    def _failed(self, exc: OSError) -> WorkFolderError:
        return WorkFolderError(f"{exc.filename or self.folder}: {exc.strerror or exc}; {self._elsewhere}")
