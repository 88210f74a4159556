"""CPU time and memory of the worker's processes: of made-up files of Linux, and of this process."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slackwater.runtime.telemetry import processes

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def process(root: Path, pid: int, parent: int, name: str, *, ticks: int = 0, pages: int = 0) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    # pid (comm) state ppid pgrp session tty tpgid flags 4*faults utime stime ... vsize rss
    before = ["S", parent, 1, 1, 0, -1, 0, 0, 0, 0, 0, ticks, ticks, 0, 0, 20, 0, 1, 0, 77, 1 << 30, pages]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, before))} 0 0\n")


def hsperfdata(counters: Mapping[str, int], order: str = "<") -> bytes:
    """As the JVM writes it (perfMemory.hpp): a prologue, then an entry for each counter."""
    entries = b""
    for name, value in {"java.property.java.vm.name": None, **counters}.items():
        text = name.encode() + b"\0"
        text += b"\0" * (-(20 + len(text)) % 8)
        if value is None:
            kind, vector, data = b"B", 8, b"OpenJDK\0"
        else:
            kind, vector, data = b"J", 0, struct.pack(f"{order}q", value)
        length = 20 + len(text) + len(data)
        entries += struct.pack(f"{order}iii", length, 20, vector) + kind + b"\0\1\1"
        entries += struct.pack(f"{order}i", 20 + len(text)) + text + data
    head = struct.pack(">I", 0xCAFEC0C0) + bytes([order == "<", 2, 0, 1])
    head += struct.pack(f"{order}iiqii", 32 + len(entries), 0, 0, 32, len(counters) + 1)
    return head + entries


COUNTERS = {
    "sun.os.hrt.frequency": 1_000_000,
    "sun.gc.collector.0.time": 1_500_000,
    "sun.gc.collector.1.time": 500_000,
    "sun.gc.collector.0.invocations": 9,
    "sun.gc.generation.0.capacity": 100,
    "sun.gc.generation.0.space.0.used": 30,
    "sun.gc.generation.0.space.0.capacity": 90,
    "sun.gc.generation.1.capacity": 400,
    "sun.gc.generation.1.space.0.used": 200,
    "sun.gc.metaspace.used": 7,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    own = os.getpid()
    process(tmp_path, 1, 0, "init", ticks=900, pages=900)
    process(tmp_path, own, 1, "python) (3", ticks=50, pages=10)
    process(tmp_path, own + 1, own, "java", ticks=70, pages=40)
    process(tmp_path, own + 2, own + 1, "python3", ticks=5, pages=3)
    process(tmp_path, own + 3, own + 2, "python3", ticks=5, pages=4)
    process(tmp_path, own + 4, 1, "java", ticks=800, pages=800)
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / str(own + 5)).mkdir()  # it has ended meanwhile
    return tmp_path


def test_the_workers_processes_are_told_from_all_others(root: Path) -> None:
    usage = processes.usage(root)
    assert usage["process_cpu_seconds"] == {("worker",): 100 / TICK, ("jvm",): 140 / TICK}
    assert usage["process_resident_memory_bytes"] == {
        ("worker",): 10 * PAGE, ("jvm",): 40 * PAGE, ("children",): 7 * PAGE,
    }  # fmt: skip
    assert usage["jvm_heap_bytes"] == usage["jvm_gc_seconds"] == usage["memory_limit_bytes"] == {}


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_heap_is_read_from_the_jvms_file(root: Path, order: str) -> None:
    folder = root / "tmp" / "hsperfdata_worker"
    folder.mkdir(parents=True)
    (folder / str(os.getpid() + 1)).write_bytes(hsperfdata(COUNTERS, order))
    (folder / str(os.getpid() + 4)).write_bytes(hsperfdata({"sun.gc.generation.0.capacity": 9999}))
    usage = processes.usage(root)
    assert usage["jvm_heap_bytes"] == {("used",): 230.0, ("committed",): 500.0}
    assert usage["jvm_gc_seconds"] == {(): 2.0}


@pytest.mark.parametrize("length", [0, 3, 20, 31, 60, 200])
def test_a_file_that_is_not_whole_is_left_out(root: Path, length: int) -> None:
    folder = root / "tmp" / "hsperfdata_worker"
    folder.mkdir(parents=True)
    (folder / str(os.getpid() + 1)).write_bytes(hsperfdata(COUNTERS)[:length])
    usage = processes.usage(root)
    assert usage["jvm_heap_bytes"] == {}
    assert ("jvm",) in usage["process_resident_memory_bytes"]


def test_a_file_of_zeros_does_not_hold_a_scrape_up(root: Path) -> None:
    folder = root / "tmp" / "hsperfdata_worker"
    folder.mkdir(parents=True)
    made = bytearray(hsperfdata(COUNTERS))
    made[32:] = b"\0" * len(made[32:])
    (folder / str(os.getpid() + 1)).write_bytes(bytes(made))
    assert processes.usage(root)["jvm_heap_bytes"] == {}


def test_a_pipe_in_the_place_of_the_file_does_not_hold_a_scrape_up(root: Path) -> None:
    folder = root / "tmp" / "hsperfdata_worker"
    folder.mkdir(parents=True)
    os.mkfifo(folder / str(os.getpid() + 1))
    assert processes.usage(root)["jvm_heap_bytes"] == {}


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("memory.max", "1073741824\n", 1 << 30),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "536870912\n", 1 << 29),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
    ],
)
def test_the_containers_limit(root: Path, name: str, text: str, limit: int | None) -> None:
    file = root / "sys" / "fs" / "cgroup" / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert processes.usage(root)["memory_limit_bytes"] == ({} if limit is None else {(): limit})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process_is_measured() -> None:
    before = processes.usage()
    kept = bytearray(os.urandom(64 << 20))  # written to, so that it is resident
    after = processes.usage()
    worker = ("worker",)
    grown = after["process_resident_memory_bytes"][worker] - before["process_resident_memory_bytes"][worker]
    assert grown > len(kept) / 2
    times = os.times()
    assert 0 < after["process_cpu_seconds"][worker] <= times.user + times.system + 2 / TICK


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert not any(processes.usage(tmp_path).values())
