"""The Events about objects that do not come up: read sparingly, remembered within limits."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from slackwater_operator.api.times import time_ms
from slackwater_operator.controller.session import Session, new_session
from slackwater_operator.controller.snapshots.object_events import EVENTS_KEPT, OBJECTS_KEPT, ObjectEvents
from slackwater_operator.kubernetes.errors import KubeError, KubeUnavailable, from_answer
from slackwater_operator.model.statefulsets import StatefulSetSnapshot
from tests.operator.unit.planner.simulation.simulated_cluster import BEGIN_MS, stamp

EVERY_MS = 5_000


class Api:
    """An API server that lists Events, or refuses to."""

    def __init__(self) -> None:
        self.error: KubeError | None = None
        self.events: list[dict[str, Any]] = []
        self.asked = 0

    async def list(self, *where: str, field_selector: str) -> list[dict[str, Any]]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.events


def event(number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"e{number}", "creationTimestamp": stamp(BEGIN_MS + number * 1_000)},
        "type": "Warning",
        "reason": "FailedCreate",
        "note": f"create Pod flights-0 in StatefulSet flights failed error: quota {number}",
    }


def forbidden(namespace: str = "default") -> KubeError:
    answer = {"reason": "Forbidden", "message": f'events.events.k8s.io is forbidden in "{namespace}"'}
    return from_answer(403, answer, "GET events")


def group(namespace: str = "default") -> Session:
    return new_session((namespace, "flights"), now_ms=0, window_ms=1, down_window_ms=1, settle_ms=1)


def lacking(*names: str) -> list[StatefulSetSnapshot]:
    """StatefulSets that lack their only pod."""
    return [
        StatefulSetSnapshot(name, "", "uid", 0, 1, 0, "", "", deleting=False, created_ms=0, manifest={})
        for name in names
    ]


async def look(events: ObjectEvents, session: Session, now_ms: int, *names: str) -> dict[str, str]:
    return await events.not_created(session, lacking(*(names or ("flights",))), (), now_ms=now_ms)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_events_that_may_not_be_listed_are_logged_once_with_the_grant_that_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api()
    events, session, other = ObjectEvents(api), group(), group()  # type: ignore[arg-type]
    api.error = forbidden()
    for turn in range(20):
        for each in (session, other):
            await look(events, each, BEGIN_MS + turn * EVERY_MS)
    assert api.asked > 20
    (logged,) = warnings(caplog)
    assert "the verb list on events in events.k8s.io" in logged
    assert "namespace default" in logged
    elsewhere = group("another")
    for turn in range(4):
        await look(events, elsewhere, BEGIN_MS + turn * EVERY_MS)
    assert len(warnings(caplog)) == 2, "each namespace has grants of its own"


async def test_the_error_is_logged_again_after_a_success_and_when_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api()
    events, session = ObjectEvents(api), group()  # type: ignore[arg-type]
    answers = [None, forbidden(), forbidden(), KubeUnavailable(503, "", "try again"), None, forbidden()]
    for turn, api.error in enumerate(answers):
        await look(events, session, BEGIN_MS + turn * EVERY_MS)
        await look(events, session, BEGIN_MS + turn * EVERY_MS + 4_000)
    assert [("verb list" in line, "try again" in line) for line in warnings(caplog)] == [
        (True, False),
        (False, True),
        (True, False),
    ]


async def test_remembered_events_are_bounded_and_expire() -> None:
    api = Api()
    api.events = [event(number) for number in range(3 * EVENTS_KEPT)]
    events, session = ObjectEvents(api), group()  # type: ignore[arg-type]
    many = [f"set-{number}" for number in range(2 * OBJECTS_KEPT)]
    await look(events, session, BEGIN_MS, *many)
    await look(events, session, BEGIN_MS + 4_000, *many)
    assert len(session.object_events) == OBJECTS_KEPT
    _, kept = session.object_events["StatefulSet", many[-1]]
    assert len(kept) == EVENTS_KEPT
    assert kept[-1].at_ms == time_ms(api.events[-1]["metadata"]["creationTimestamp"])
    await events.not_created(session, [], (), now_ms=BEGIN_MS + 4_000 + 60_001)
    assert not session.object_events
