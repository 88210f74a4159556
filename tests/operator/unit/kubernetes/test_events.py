"""Events with virtual time: what is posted, how often, and what happens when it can't be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater_operator.kubernetes.errors import KubeConflict, KubeError, KubeForbidden, KubeUnavailable
from slackwater_operator.kubernetes.events import Events
from tests.support.virtual_time import run_virtually

Object = dict[str, Any]
GROUP = {
    "apiVersion": "slackwater.dev/v1alpha1",
    "kind": "ConsumerGroup",
    "metadata": {"name": "flights", "namespace": "ns", "uid": "u-1"},
}


class FakeApi:
    """Events by name; `error` is raised by every request."""

    def __init__(self) -> None:
        self.stored: dict[str, Object] = {}
        self.requests: list[str] = []
        self.error: KubeError | None = None

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        self._count("get")
        return self.stored.get(name)

    async def create(self, manifest: Object) -> Object:
        self._count("create")
        name = manifest["metadata"]["name"]
        if name in self.stored:
            raise KubeConflict(409, "AlreadyExists", "exists")
        self.stored[name] = manifest
        return manifest

    async def patch(self, api_version: str, kind: str, namespace: str, name: str, body: Object) -> Object:
        self._count("patch")
        if name not in self.stored:
            raise KubeError(404, "NotFound", "gone")
        self.stored[name] = {**self.stored[name], **body}
        return self.stored[name]

    def _count(self, what: str) -> None:
        self.requests.append(what)
        if self.error is not None:
            raise self.error

    @property
    def only(self) -> Object:
        [event] = self.stored.values()
        return event


def made(api: FakeApi) -> Events:
    return Events(api, instance="op-1", wall_ms=lambda: 1_700_000_000_000)


def test_an_event_has_all_fields() -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        events.post(GROUP, "ScaledUp", "from 3 to 5", action="Scale")
        assert api.requests == []
        await events.flush()
        fields = {name: api.only[name] for name in ("reason", "note", "action", "type", "eventTime")}
        assert fields == {
            "reason": "ScaledUp",
            "note": "from 3 to 5",
            "action": "Scale",
            "type": "Normal",
            "eventTime": "2023-11-14T22:13:20.000000Z",
        }
        assert api.only["regarding"]["uid"] == "u-1"
        assert api.only["metadata"]["namespace"] == "ns"
        assert "series" not in api.only

    run_virtually(story())


def test_the_same_again_is_counted_and_posted_once_a_minute() -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        running = asyncio.create_task(events.run())
        for _ in range(600):  # ten minutes, one a second
            events.post(GROUP, "Held", "lag is not known")
            await asyncio.sleep(1)
        assert len(api.stored) == 1
        assert 9 <= api.requests.count("patch") <= 11
        assert api.requests.count("create") == 1
        await asyncio.sleep(61)
        assert api.only["series"]["count"] == 600
        running.cancel()

    run_virtually(story())


def test_a_different_message_reason_kind_or_group_makes_a_new_event() -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        other = {**GROUP, "metadata": {**GROUP["metadata"], "uid": "u-2"}}  # type: ignore[dict-item]
        events.post(GROUP, "A", "one")
        events.post(GROUP, "A", "two")
        events.post(GROUP, "B", "one")
        events.post(GROUP, "A", "one", kind="Warning")
        events.post(other, "A", "one")
        await events.flush()
        assert len(api.stored) == 5

    run_virtually(story())


def test_after_a_restart_the_count_goes_on() -> None:
    async def story() -> None:
        api = FakeApi()
        for expected in (None, 2, 3):
            events = made(api)
            events.post(GROUP, "ScaledUp", "from 3 to 5")
            await events.flush()
            assert (api.only.get("series") or {}).get("count") == expected

    run_virtually(story())


def test_an_event_that_the_api_server_has_deleted_is_posted_again() -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        events.post(GROUP, "A", "one")
        await events.flush()
        api.stored.clear()
        await asyncio.sleep(61)
        events.post(GROUP, "A", "one")
        await events.flush()
        assert "series" not in api.only

    run_virtually(story())


def test_nothing_is_lost_while_the_api_server_is_away() -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        running = asyncio.create_task(events.run())
        api.error = KubeUnavailable(0, "Unreachable", "refused")
        events.post(GROUP, "A", "one")
        await asyncio.sleep(65)
        assert 5 <= len(api.requests) <= 8  # every ten seconds
        api.error = None
        await asyncio.sleep(15)
        assert api.only["note"] == "one"
        running.cancel()

    run_virtually(story())


def test_without_the_right_it_is_left_out_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        api.error = KubeForbidden(403, "Forbidden", "events is forbidden")
        events.post(GROUP, "A", "one")
        await events.flush()
        assert "events is forbidden" in caplog.text
        api.error = None
        events.post(GROUP, "B", "two")
        await events.flush()
        assert api.only["reason"] == "B"

    run_virtually(story())


def test_a_group_that_never_says_the_same_is_cut_off() -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        running = asyncio.create_task(events.run())
        for number in range(100):
            events.post(GROUP, "A", f"lag is {number}")
        await asyncio.sleep(1)
        assert len(api.stored) == 25
        await asyncio.sleep(30)
        events.post(GROUP, "A", "half a minute later")
        events.post(GROUP, "A", "and another")
        await asyncio.sleep(1)
        assert len(api.stored) == 26
        running.cancel()

    run_virtually(story())


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_a_long_message_is_cut_at_1024_bytes(letter: str) -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        events.post(GROUP, "A", letter * 2000)
        await events.flush()
        note = api.only["note"]
        assert 1018 <= len(note.encode()) <= 1024
        assert note.endswith("\u2026")

    run_virtually(story())


def test_events_that_are_not_repeated_are_forgotten() -> None:
    async def story() -> None:
        api = FakeApi()
        events = made(api)
        events.post(GROUP, "A", "one")
        await events.flush()
        await asyncio.sleep(3700)
        await events.flush()
        assert events._said == {}
        assert events._buckets == {}

    run_virtually(story())
