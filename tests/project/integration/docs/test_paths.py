"""docs/design/README.md says how many files a batch and a spec pass: those whose functions are called."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection
from pathlib import Path
from types import FrameType

import pytest

from tests.operator.integration.local.fake_run import Make, make
from tests.support.devbroker import DevBroker
from tests.support.waiting import HANG_S
from tests.support.workers.group_site import GroupSite

ROOT = Path(__file__).parents[4]
PROFILED = ROOT / "tests" / "support" / "workers" / "profiled"
BATCHES = 10
HANDLER = """
def transform(records):
    for record in records:
        yield {"topic": record.topic, "partition": record.partition, "offset": record.offset}
"""
__all__ = ["make"]
pytestmark = pytest.mark.verify


def check(path: str, files: Collection[str]) -> None:
    """Compares the number with the page's, which may count up to four more that run now and then."""
    page = (ROOT / "docs" / "design" / "README.md").read_text(encoding="utf-8")
    quoted = re.search(rf"\*\*{path}\*\* passes (\d+) files", page)
    assert quoted is not None
    assert len(files) <= int(quoted[1]) < len(files) + 5, sorted(files)


def test_the_files_that_a_batch_passes(devbroker: DevBroker, tmp_path: Path) -> None:
    log = tmp_path / "files.jsonl"
    with GroupSite(devbroker.bootstrap, tmp_path, handler=HANDLER, partitions=1) as site:
        worker = site.start_worker("w-0", site.config(), PYTHONPATH=str(PROFILED), PROFILED=str(log))
        for _ in range(BATCHES):
            site.write([(0, b"x")])
            site.until_committed(why=site.why)
        assert worker.terminate() == 0
    batches = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(batches) == BATCHES
    check("A record batch from the socket to the commit", min(batches, key=len))


async def test_the_files_that_a_spec_passes(make: Make) -> None:
    files: set[str] = set()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        _, found, name = frame.f_code.co_filename.rpartition("/slackwater_operator/")
        if found and not name.startswith("local/"):
            files.add(name)

    fakes = await make(1)
    await fakes.run.wait_until_stable(HANG_S)
    try:
        sys.setprofile(profile)
        await fakes.run.rolling_restart()
    finally:
        sys.setprofile(None)
    check("A spec from the resource to its new pod", files)
