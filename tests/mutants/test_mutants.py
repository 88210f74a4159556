"""The unit tests notice each seeded fault (``python -m tests.mutants``), and the table of faults is right."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.faults import AREAS, FAULTS

LEAST_BY_AREA = 8
LEAST = 60


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_each_seeded_fault_is_caught() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(FAULTS)} of {len(FAULTS)} faults caught" in done.stdout


def test_the_table_fits_the_repository() -> None:
    assert len(FAULTS) >= LEAST
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert not {fault.name for fault in FAULTS} & AREAS.keys()
    assert all(len(faults) >= LEAST_BY_AREA for faults in AREAS.values())
    for fault in FAULTS:
        assert fault.applied_to((ROOT / fault.file).read_text()) != (ROOT / fault.file).read_text()
        assert fault.caught_by
        for test in fault.caught_by:
            assert (ROOT / test.split("::")[0]).is_file(), f"{fault.name}: {test} does not exist"
