"""Files as they appear in the sink's folder, by Linux' inotify: nothing depends on what a consumer says."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.rollouts.measure import Published
from tests.support.site.sink import first_offsets

IN_MOVED_TO, IN_Q_OVERFLOW = 0x80, 0x4000
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES = 1 << 20


class SinkWatch:
    """Notes each file that is renamed into ``folder`` (made here), from a thread, while it is entered."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._found: list[tuple[float, str]] = []
        """When which file appeared."""
        self._failure: str = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sink watch", daemon=True)
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = libc.inotify_init1(os.O_CLOEXEC)
        if self._inotify < 0 or libc.inotify_add_watch(self._inotify, bytes(folder), IN_MOVED_TO) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot watch {folder}: {os.strerror(number)}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        os.close(self._inotify)

    def published(self) -> list[Published]:
        """What has appeared so far, from each file the partitions in it. Raises RuntimeError where events
        were lost."""
        if self._failure:
            raise RuntimeError(self._failure)
        return [
            Published(at_ms, partition, first)
            for at_ms, name in list(self._found)
            for partition, first in first_offsets(self._folder / name).items()
        ]

    def _run(self) -> None:
        while not self._ending.is_set():
            if select.select([self._inotify], [], [], 0.1)[0]:
                for mask, name in events_of(os.read(self._inotify, _READ_BYTES)):
                    self._take(mask, name)

    def _take(self, mask: int, name: str) -> None:
        if mask & IN_Q_OVERFLOW:
            self._failure = f"too many files at once appeared in {self._folder}: the measurement is not whole"
        elif name.endswith(".parquet") and not name.startswith("."):
            self._found.append((self._when_ms(name), name))

    def _when_ms(self, name: str) -> float:
        """When it was renamed: this thread may come late, the file system knows it (to a tick of 4 ms)."""
        try:
            return (self._folder / name).stat().st_ctime_ns / 1e6
        except FileNotFoundError:
            return time.time_ns() / 1e6


def events_of(data: bytes) -> list[tuple[int, str]]:
    """(mask, name) of each event that inotify(7) gave."""
    events, at = [], 0
    while at < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        events.append((mask, data[at : at + length].rstrip(b"\0").decode()))
        at += length
    return events
