"""Records that go to another process and back."""

from __future__ import annotations

import copy
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.support.records.fetched import ROWS, contents, fetched
from tests.support.records.parsing import USUAL, use_parser
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.usefixtures("parser")


_READER = """
import pickle, sys
from slackwater.kafka.records import COMPILED
records = pickle.load(sys.stdin.buffer)
print(COMPILED, [(r.offset, r.key, r.value, r.headers) for r in records])
"""


@pytest.mark.parametrize("pure", [pytest.param("", marks=pytest.mark.parts("parser")), "1"])
def test_a_process_with_another_parser_reads_it(pure: str) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", _READER], input=pickle.dumps(fetched().records("t", 7)), capture_output=True,
        check=True, env={**os.environ, "SLACKWATER_PURE_PYTHON": pure}, timeout=HANG_S,
    )  # fmt: skip
    expected = [(offset, *row) for offset, row in zip(range(5, 11), ROWS * 2, strict=True)]
    assert completed.stdout.decode().strip() == f"{not pure} {expected}"


def test_records_go_to_a_process_pool_and_back() -> None:
    made = fetched().records("t", 7)
    use_parser(USUAL)  # the parser of the pool's processes
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(operator.attrgetter("value"), made)) == [value for _, value, _ in ROWS * 2]
        back = list(pool.map(copy.copy, made))
    assert [contents(record) for record in back] == [contents(record) for record in made]
