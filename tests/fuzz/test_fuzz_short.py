"""A short run of every fuzzer (``python -m tests.fuzz`` is the long one), and that they find something."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from random import Random

import pytest

from tests.fuzz import engine
from tests.fuzz.engine import Counts, Input, run
from tests.support.waiting import HANG_S


@pytest.mark.parts("parser")
@pytest.mark.parametrize("inputs", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_short_run_of_all_fuzzers(inputs: int) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seed", "4", "--inputs", str(inputs)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert f"{inputs} inputs, seed 4, no failure" in completed.stdout
    for line in completed.stdout.splitlines()[:-1]:
        assert " 0 read" not in line


class Bad:
    """Reads numbers, and goes wrong at one of them in the way it is told."""

    name = "bad"

    def __init__(self, how: str) -> None:
        self.how = how

    def make(self, rng: Random) -> Input:
        return Input(rng.randbytes(2), "number")

    def check(self, given: Input) -> bool:
        if struct.unpack(">H", given.data)[0] % 64:
            return True
        match self.how:
            case "raises":
                raise KeyError("oops")
            case "grows":
                return bool(bytearray(1 << 40))
            case "hangs":
                while True:
                    pass
            case "crashes":
                os.kill(os.getpid(), signal.SIGKILL)
        return True

    def memory_bytes(self, given: Input) -> int:
        return 10_000


@pytest.mark.parametrize(
    ("how", "expected"),
    [("raises", "KeyError"), ("grows", "MemoryError"), ("hangs", "CPU time"), ("crashes", "SIGKILL")],
)
def test_a_failure_is_told_with_the_input_that_makes_it_again(
    how: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "HANG_CPU_S", 0.2)
    failure = run(Bad(how), 3, 0, 2000)
    assert isinstance(failure, str)
    assert expected in failure
    number = int(failure.split("--start ")[1].split()[0])
    assert struct.unpack(">H", engine.input_number(Bad(how), 3, number).data)[0] % 64 == 0
    assert engine.input_number(Bad(how), 3, number).data.hex() in failure
    before = run(Bad(how), 3, 0, number)
    assert isinstance(before, Counts)
    assert before.inputs == number


class Greedy(Bad):
    """Takes more memory than it says."""

    def check(self, given: Input) -> bool:
        return bool(bytearray(100_000))


def test_memory_beyond_what_an_input_allows_is_told() -> None:
    failure = run(Greedy(""), 3, 0, 2000)
    assert isinstance(failure, str)
    assert "10000 are allowed" in failure


def test_the_same_seed_gives_the_same_inputs() -> None:
    from tests.fuzz.__main__ import SHARES

    for kind in SHARES:
        fuzzer, same_fuzzer = kind(), kind()
        first = [engine.input_number(fuzzer, 8, number) for number in range(200)]
        assert first == [engine.input_number(same_fuzzer, 8, number) for number in range(200)]
        assert first != [engine.input_number(same_fuzzer, 9, number) for number in range(200)]
