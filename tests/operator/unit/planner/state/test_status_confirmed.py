"""When a status is written: when it changes, and every few minutes to show that an operator is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.status.group_status import GroupStatus
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.planner.status import CONFIRM_EVERY_MS, to_write

NOW_MS = 1_795_000_000_000
NOW = "2026-11-18T11:06:40Z"
STATUS: dict[str, Any] = {"observedGeneration": 1, "lag": 7}
SNAPSHOT = GroupSnapshot(
    NOW_MS, "air", "flights", "uid", 1, GroupStatus(), status={**STATUS, "lastConfirmedTime": NOW}
)


@pytest.mark.parametrize(
    ("after_ms", "status", "written"),
    [
        (CONFIRM_EVERY_MS - 1, STATUS, False),
        (CONFIRM_EVERY_MS, STATUS, True),
        (-1, STATUS, True),  # the clock of another operator
        (0, {**STATUS, "lag": 8}, True),
    ],
)
def test_a_status_is_written_when_it_changes_and_to_confirm_it(
    after_ms: int, status: dict[str, Any], written: bool
) -> None:
    assert (to_write(replace(SNAPSHOT, now_ms=NOW_MS + after_ms), status) is not None) is written


def test_a_status_that_is_written_has_the_time() -> None:
    assert to_write(replace(SNAPSHOT, status={}), STATUS) == {**STATUS, "lastConfirmedTime": NOW}
