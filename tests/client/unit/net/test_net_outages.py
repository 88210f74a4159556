"""Equal log lines of an outage are said once, then counted, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from slackwater.kafka.net.outages import Outages
from tests.support.virtual_time import virtually

log = logging.getLogger("slackwater.kafka.test")


@virtually
async def test_a_failure_is_said_at_once_then_counted_and_its_end_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outages = Outages()
    for second in range(60):
        for cause in ("refused", "no route") if second < 2 else ("refused",):
            outages.failed(log, "the thing", f"failed: {cause}", logging.WARNING)
        await asyncio.sleep(1)
    outages.worked(log, "the thing")
    outages.worked(log, "the thing")
    assert not outages
    assert [record.getMessage() for record in caplog.records] == [
        "failed: refused",
        "failed: no route",
        "failed: refused (11 times in 10 s)",
        "failed: refused (21 times in 20 s)",
        "failed: refused (41 times in 40 s)",
        "the thing works again, after 62 failures in 60 s",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@virtually
async def test_a_single_failure_has_no_end_and_one_that_comes_back_late_is_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outages = Outages()
    for _ in range(2):
        outages.failed(log, "the thing", "failed in 3 ms", logging.WARNING, cause="failed")
        await asyncio.sleep(700)
    outages.worked(log, "the thing")
    assert [record.getMessage() for record in caplog.records] == ["failed in 3 ms"] * 2
