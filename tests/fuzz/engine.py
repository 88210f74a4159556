"""Runs inputs against a target, and holds it to what it promises: no error but the one named, no hang, no
memory beyond what the input's own limits allow.

An input is a function of (seed, target, number), so a failure is told by these. The process that runs
them is watched by its parent, which tells the same of an input that ended it.
"""

from __future__ import annotations

import gc
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
import tracemalloc
import zlib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple, Protocol

HANG_CPU_S = 10.0
"""More than any input may take, by orders of magnitude."""
ADDRESS_SPACE_ROOM_BYTES = 192 << 20
"""What all inputs together may add to the process: a decompressed fetch, and what the codecs need."""
MEMORY_SAMPLE = 53
"""Every so many inputs one is watched by tracemalloc, which is slow."""
_PROGRESS = struct.Struct("=qqqq")


class Input(NamedTuple):
    """Bytes, what they are meant to be, and what else the reader is called with."""

    data: bytes
    kind: Any
    options: Any = None


class Target(Protocol):
    """Something that reads bytes."""

    name: str

    def make(self, rng: Random) -> Input:
        """An input."""

    def check(self, given: Input) -> bool:
        """Whether it was read (False: refused as it should be). Any exception is a failure."""

    def memory_bytes(self, given: Input) -> int:
        """The most that reading it may take."""


class Broken(AssertionError):
    """A rule that does not hold for an input."""


@dataclass(frozen=True)
class Counts:
    """What became of the inputs of one target."""

    inputs: int
    read: int
    seconds: float

    def __str__(self) -> str:
        rate = self.inputs / max(self.seconds, 1e-9)
        return f"{self.inputs} inputs, {self.read} read, {self.inputs - self.read} refused, {rate:.0f}/s"


def input_number(target: Target, seed: int, number: int) -> Input:
    """The input of that number."""
    return target.make(Random((seed << 72) | (zlib.crc32(target.name.encode()) << 40) | number))


def describe(target: Target, seed: int, number: int) -> str:
    """An input as a report: how to run it alone, and its bytes."""
    given = input_number(target, seed, number)
    return (
        f"again: python -m tests.fuzz --seed {seed} --target {target.name} --start {number} --inputs 1\n"
        f"kind: {given.kind!r}\noptions: {given.options!r}\nbytes ({len(given.data)}): {given.data.hex()}"
    )


def run(target: Target, seed: int, start: int, inputs: int) -> Counts | str:
    """Runs the inputs in a process of their own; what broke, as text, or the counts."""
    shared = mmap.mmap(-1, _PROGRESS.size)
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        failure = "the process could not begin"
        try:
            failure = _work(target, seed, start, inputs, shared)
        except BaseException:
            failure = traceback.format_exc()
        finally:
            os.write(write_end, failure.encode()[:60_000])
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        failure = stream.read()
    _, status = os.waitpid(child, 0)
    number, done, read, millis = _PROGRESS.unpack_from(shared)
    if os.WIFSIGNALED(status):
        failure = f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    if failure:
        return f"{target.name}: {failure}\n{describe(target, seed, number)}"
    return Counts(done, read, millis / 1000)


def _work(target: Target, seed: int, start: int, inputs: int, shared: mmap.mmap) -> str:
    """What broke, or ""."""
    input_number(target, seed, start)  # what a target makes once belongs to no input
    gc.freeze()  # a collection would copy all pages of the process that was forked
    _limit_memory()
    _Watch(shared)
    began, read = time.monotonic(), 0
    pack, number = _PROGRESS.pack_into, start
    for number in range(start, start + inputs):
        pack(shared, 0, number, number - start, read, int((time.monotonic() - began) * 1000))
        try:
            if number % MEMORY_SAMPLE == start % MEMORY_SAMPLE:
                read += _check_memory(target, input_number(target, seed, number))
            else:
                read += target.check(input_number(target, seed, number))
        except BaseException:
            return traceback.format_exc(limit=-8)
    pack(shared, 0, number, inputs, read, int((time.monotonic() - began) * 1000))
    return ""


def _check_memory(target: Target, given: Input) -> bool:
    tracemalloc.start()
    try:
        read = target.check(given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    allowed = target.memory_bytes(given)
    if peak > allowed:
        raise Broken(f"{len(given.data)} bytes took {peak} bytes of memory; {allowed} are allowed")
    return read


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE_ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _Watch:
    """Ends an input that is still running after :data:`HANG_CPU_S` of CPU time."""

    def __init__(self, shared: mmap.mmap) -> None:
        self._shared = shared
        self._last = -1
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, HANG_CPU_S, HANG_CPU_S)

    def _look(self, signum: int, frame: FrameType | None) -> None:
        number: int = _PROGRESS.unpack_from(self._shared)[0]
        if number == self._last:
            raise Broken(f"one input took more than {HANG_CPU_S} s of CPU time")
        self._last = number
