"""CPU time and memory of the worker's processes, and its JVM's heap, read from files at each scrape.

Nothing is asked of the JVM: it keeps its counters in a file (``hsperfdata``) that other processes may read,
as jstat does. What a platform or a container lacks is left out.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

Series = dict[tuple[str, ...], float]

WORKER, JVM, CHILDREN = "worker", "jvm", "children"
"""This process; the JVMs below it; all other processes below it, such as PySpark's Python workers."""
_UNLIMITED = 1 << 60
"""From here on a limit of memory means none (cgroups of version 1)."""
_MAGIC = 0xCAFEC0C0
_LARGEST = 1 << 20
"""A JVM's file has 32 kB, unless -XX:PerfDataMemorySize says otherwise."""


def usage(root: Path = Path("/")) -> dict[str, Series]:
    """The samples by metric, each by its labels. ``root``: where ``proc``, ``sys`` and ``tmp`` are."""
    samples: dict[str, Series] = {
        "process_cpu_seconds": {},
        "process_resident_memory_bytes": {},
        "memory_limit_bytes": {},
        "jvm_heap_bytes": {},
        "jvm_gc_seconds": {},
    }
    for process in _family(root / "proc"):
        if process.kind != CHILDREN:  # they come and go, and a counter must not go down
            _add(samples["process_cpu_seconds"], (process.kind,), process.cpu_s)
        _add(samples["process_resident_memory_bytes"], (process.kind,), process.resident_bytes)
        if process.kind == JVM:
            _add_jvm(samples, root, process.pid)
    limit = _memory_limit(root / "sys" / "fs" / "cgroup")
    if limit is not None:
        samples["memory_limit_bytes"][()] = limit
    return samples


def _add(series: Series, labels: tuple[str, ...], value: float) -> None:
    series[labels] = series.get(labels, 0.0) + value


class _Process:
    """A process as ``/proc`` shows it. Raises OSError or ValueError where it has ended."""

    def __init__(self, folder: Path) -> None:
        name, _, rest = (folder / "stat").read_text().rpartition(")")
        fields = rest.split()  # from the state on, field 3 of proc(5)
        self.pid, self.parent = int(folder.name), int(fields[1])
        self.kind = JVM if name.partition("(")[2] == "java" else CHILDREN
        self.cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.resident_bytes = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def _family(proc: Path) -> Iterator[_Process]:
    """This process and those below it."""
    processes: dict[int, _Process] = {}
    for folder in _numbered(proc):
        try:
            processes[int(folder.name)] = _Process(folder)
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    own = os.getpid()
    for pid, process in processes.items():
        ancestor: _Process | None = process
        while ancestor is not None and ancestor.pid != own:
            ancestor = processes.get(ancestor.parent)
        if ancestor is not None:
            process.kind = WORKER if pid == own else process.kind
            yield process


def _numbered(proc: Path) -> list[Path]:
    try:
        return [folder for folder in proc.iterdir() if folder.name.isdigit()]
    except OSError:
        return []  # not Linux


def _memory_limit(cgroup: Path) -> int | None:
    """The container's limit; None where there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = int((cgroup / name).read_text())
        except (OSError, ValueError):
            continue
        return limit if limit < _UNLIMITED else None
    return None


def _add_jvm(samples: dict[str, Series], root: Path, pid: int) -> None:
    try:
        counters = _counters(_perf_data(root / "tmp", pid))
    except (OSError, ValueError, struct.error):
        return  # it is just being written, or was made by a JVM of another kind
    heap, ticks = samples["jvm_heap_bytes"], counters.get("sun.os.hrt.frequency", 0)
    for name, value in counters.items():
        parts = name.split(".")
        if parts[:3] == ["sun", "gc", "generation"]:
            if parts[4:5] == ["space"] and parts[-1] == "used":
                _add(heap, ("used",), value)
            elif parts[4:] == ["capacity"]:
                _add(heap, ("committed",), value)
        elif parts[:3] == ["sun", "gc", "collector"] and parts[-1] == "time" and ticks:
            _add(samples["jvm_gc_seconds"], (), value / ticks)


def _perf_data(folder: Path, pid: int) -> bytes:
    """The JVM's file. Raises FileNotFoundError."""
    for file in folder.glob(f"hsperfdata_*/{pid}"):
        info = file.lstat()
        # Others may write into this folder: a pipe of theirs must not hold the scrape up.
        if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_size <= _LARGEST:
            return file.read_bytes()
    raise FileNotFoundError(pid)


def _counters(data: bytes) -> Mapping[str, int]:
    """The whole numbers of a ``hsperfdata`` file by name. Raises ValueError or struct.error if it is none."""
    (magic,) = struct.unpack_from(">I", data)
    if magic != _MAGIC or data[5] != 2 or not data[7]:
        raise ValueError("no hsperfdata of version 2, or not written yet")
    order = "<" if data[4] else ">"
    at, count = struct.unpack_from(f"{order}ii", data, 24)
    counters = {}
    for _ in range(count):
        length, name_at, vector = struct.unpack_from(f"{order}iii", data, at)
        (value_at,) = struct.unpack_from(f"{order}i", data, at + 16)
        if length <= 0:
            raise ValueError("an entry without a length")
        if data[at + 12 : at + 13] == b"J" and vector == 0:
            name = data[at + name_at : data.index(b"\0", at + name_at)].decode()
            (counters[name],) = struct.unpack_from(f"{order}q", data, at + value_at)
        at += length
    return counters
