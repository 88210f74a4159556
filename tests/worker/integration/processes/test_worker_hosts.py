"""Workers in interpreters and on event loops that are not the usual ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workers.delivery_site import DeliverySite

UVLOOP = "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n"
BY_RECORD = """
import asyncio, os

async def transform(record):
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    assert loop == os.environ["EXPECTED_LOOP"], loop
    position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    return {**position, "text": record.value.decode()}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONOPTIMIZE": "1"},
        {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"},
        {"EXPECTED_LOOP": "uvloop", "PYTHONWARNINGS": "error::ResourceWarning"},
    ],
    ids=["optimized", "development mode", "uvloop"],
)
def test_a_worker_runs(site: DeliverySite, tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(UVLOOP if "EXPECTED_LOOP" in environment else "")
    environment = {"EXPECTED_LOOP": "asyncio", "PYTHONPATH": str(tmp_path), **environment}
    site.write_handler("by_record", BY_RECORD)
    site.produce(200)
    worker = site.worker(engine="python", handler="by_record:transform", environment=environment)
    site.until_done()
    assert worker.ask("GET", "/readyz")
    assert worker.ask("GET", "/metrics")
    assert worker.terminate() == 0
    site.check()
    assert "Warning" not in worker.stderr
