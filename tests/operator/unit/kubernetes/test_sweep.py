"""What the sweep takes to be gone, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeUnavailable, from_answer
from slackwater_operator.kubernetes.store import GROUP_LABEL, Key, Store, Unread
from slackwater_operator.kubernetes.sweep import ASK_AGAIN_S, SWEEP_EVERY_S, Sweep
from tests.support.virtual_time import run_virtually

Object = dict[str, Any]
FLIGHTS = Key("ns", "flights")


def pod(name: str, version: int, *, uid: str = "u", of: str = "flights") -> Object:
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": {GROUP_LABEL: of} if of else {}},
    }


class FakeKube:
    """What the API server has; `meanwhile` happens after it has made its list."""

    def __init__(self, *objects: Object) -> None:
        self.objects = list(objects)
        self.meanwhile: Callable[[], None] = lambda: None
        self.away = False
        self.refused: dict[tuple[str, str], int] = {}
        """(verb, kind) -> the status of the answer."""
        self.got: list[str] = []

    async def list(
        self, api_version: str, kind: str, namespace: str | None, selector: str, *, metadata_only: bool
    ) -> list[Object]:
        assert metadata_only
        self._answer("list", kind)
        objects = [obj for obj in self.objects if obj["kind"] == kind and obj["metadata"]["labels"]]
        self.meanwhile()
        return objects

    async def may(self, verb: str, api_version: str, kind: str, namespace: str | None) -> bool:
        return (verb, kind) not in self.refused

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        self._answer("get", kind)
        self.got.append(name)
        return next((obj for obj in self.objects if obj["metadata"]["name"] == name), None)

    def _answer(self, verb: str, kind: str) -> None:
        if self.away:
            raise KubeUnavailable(0, "Unreachable", "refused")
        if status := self.refused.get((verb, kind)):
            raise from_answer(status, {"reason": REASONS[status]}, f"{verb} {kind}")


REASONS = {403: "Forbidden", 500: "InternalError"}


def sweep(kube: FakeKube, store: Store, **how: Any) -> Sweep:
    return Sweep(cast(Kube, kube), store, "ns", **how)


@contextlib.asynccontextmanager
async def running(sweeps: Sweep) -> AsyncIterator[None]:
    task = asyncio.create_task(sweeps.run())
    try:
        yield
    finally:
        task.cancel()


def held(*objects: Object) -> Store:
    store = Store()
    for obj in objects:
        store.put(obj)
    return store


def versions(store: Store) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in store.pods(FLIGHTS)}


async def test_deleted_objects_are_dropped_and_the_others_are_not_requested() -> None:
    store = held(pod("a", 1), pod("b", 1))
    kube = FakeKube(pod("b", 1))
    await sweep(kube, store).once("Pod")
    assert versions(store) == {"b": "1"}
    assert kube.got == ["a"]


async def test_objects_created_during_the_list_stay() -> None:
    store = held(pod("a", 1))
    kube = FakeKube(pod("a", 1))

    def comes() -> None:
        kube.objects.append(pod("new", 5))
        store.put(pod("new", 5))

    kube.meanwhile = comes
    await sweep(kube, store).once("Pod")
    assert versions(store) == {"a": "1", "new": "5"}


async def test_a_new_object_replaces_a_deleted_one_of_its_name() -> None:
    store = held(pod("a", 1, uid="old"))
    await sweep(FakeKube(pod("a", 9, uid="new")), store).once("Pod")
    assert store.held_one("Pod", "ns", "a") == ("new", "9")


async def test_an_object_without_the_label_is_no_longer_the_groups() -> None:
    store = held(pod("a", 1))
    await sweep(FakeKube(pod("a", 2, of="")), store).once("Pod")
    assert store.pods(FLIGHTS) == []


async def test_an_api_server_that_is_away_makes_nothing_vanish() -> None:
    store = held(pod("a", 1))
    kube = FakeKube()
    kube.away = True
    with pytest.raises(KubeUnavailable):
        await sweep(kube, store).once("Pod")
    assert versions(store) == {"a": "1"}


async def test_objects_that_a_watch_missed_for_a_whole_round_are_fetched() -> None:
    missed: list[bool] = []
    store = held(pod("a", 1))
    kube = FakeKube(pod("a", 7), pod("b", 3))
    sweeps = sweep(kube, store, on_stale=lambda: missed.append(True))
    await sweeps.once("Pod")
    assert versions(store) == {"a": "1"}  # the watch may only be slow
    await sweeps.once("Pod")
    assert versions(store) == {"a": "7", "b": "3"}
    assert missed


async def test_a_watch_that_is_only_slow_is_left_alone() -> None:
    store = held(pod("a", 1))
    kube = FakeKube(pod("a", 7))
    sweeps = sweep(kube, store)
    await sweeps.once("Pod")
    store.put(pod("a", 7))
    await sweeps.once("Pod")
    assert kube.got == []


def test_a_namespace_is_read_when_all_that_was_there_has_come_and_not_before() -> None:
    async def story() -> None:
        store = Store()
        async with running(sweep(FakeKube(pod("a", 2), pod("b", 1)), store)):
            await asyncio.sleep(0.1)
            store.put(pod("b", 1))
            store.put(pod("a", 1))  # from before the list
            await asyncio.sleep(5)
            assert store.unread("ns") is not None
            store.put(pod("a", 2))
            await asyncio.sleep(0.1)
            assert store.unread("ns") is None

    run_virtually(story())


def test_missing_objects_are_fetched_and_deleted_ones_are_not_waited_for() -> None:
    async def story() -> None:
        store, kube = Store(), FakeKube(pod("a", 1), pod("b", 1))
        async with running(sweep(kube, store)):
            await asyncio.sleep(1)
            del kube.objects[1]
            await asyncio.sleep(25)
            assert store.unread("ns") is None
            assert versions(store) == {"a": "1"}

    run_virtually(story())


def test_a_watch_that_lists_anew_has_its_kind_compared_a_second_later() -> None:
    async def story() -> None:
        store, kube = Store(), FakeKube(pod("a", 1), pod("b", 1))
        sweeps = sweep(kube, store)
        async with running(sweeps):
            await asyncio.sleep(0.1)
            store.put(pod("a", 1))
            store.put(pod("b", 1))
            await asyncio.sleep(0.1)
            del kube.objects[0]
            sweeps.listed_anew("Pod")
            await asyncio.sleep(1.5)
            assert versions(store) == {"b": "1"}
            kube.away = True
            sweeps.listed_anew("Pod")
            await asyncio.sleep(2)
            kube.away = False
            kube.objects.clear()
            await asyncio.sleep(2)  # tried again without being told
            assert versions(store) == {}

    run_virtually(story())


# --- what cannot be read


def accessed(unread: Unread | None) -> tuple[int, str, str] | None:
    return (unread.status, unread.reason, unread.access) if unread is not None else None


@pytest.mark.parametrize(
    ("refused", "expected", "readable"),
    [
        pytest.param({("list", "Pod"): 403}, (403, "Forbidden", "list pods"), False, id="list"),
        pytest.param({("watch", "Pod"): 403}, (403, "Forbidden", "watch pods"), False, id="watch"),
        pytest.param({("get", "Pod"): 403}, (403, "Forbidden", "get pods"), True, id="get"),
        pytest.param({("list", "Pod"): 500}, (500, "InternalError", "list pods"), False, id="not served"),
        pytest.param(
            {(verb, kind): 403 for verb in ("list", "watch") for kind in ("Pod", "Job")},
            (403, "Forbidden", "list/watch pods, jobs.batch"),
            False,
            id="two kinds",
        ),
    ],
)
def test_a_kind_that_is_refused_makes_its_namespace_unread(
    refused: dict[tuple[str, str], int], expected: tuple[int, str, str], readable: bool
) -> None:
    async def story() -> None:
        store, kube = Store(), FakeKube(pod("a", 1))
        kube.refused = refused
        sweeps = sweep(kube, store)
        async with running(sweeps):
            await asyncio.sleep(50)
            assert sweeps.tried.is_set()
            assert accessed(store.unread("ns")) == expected
            assert ("Pod" in sweeps.readable) == readable
            assert "ConsumerGroup" in sweeps.readable
            assert store.unread("other") is None
            kube.refused = {}
            await asyncio.sleep(60 + 20 + 1)
            assert store.unread("ns") is None
            assert versions(store) == {"a": "1"}

    run_virtually(story())


def test_a_right_that_is_lost_is_noticed_and_what_vanished_meanwhile_is_dropped_when_it_is_back() -> None:
    async def story() -> None:
        store, kube = held(pod("a", 1), pod("b", 1)), FakeKube(pod("a", 1), pod("b", 1))
        async with running(sweep(kube, store)):
            await asyncio.sleep(1)
            assert store.unread("ns") is None
            kube.refused = {("list", "Pod"): 403}
            await asyncio.sleep(SWEEP_EVERY_S + 2)
            assert accessed(store.unread("ns")) == (403, "Forbidden", "list pods")
            assert versions(store) == {"a": "1", "b": "1"}
            del kube.objects[0]
            kube.refused = {}
            await asyncio.sleep(60)
            assert store.unread("ns") is None
            assert versions(store) == {"b": "1"}

    run_virtually(story())


def test_a_right_that_is_granted_is_noticed_within_seconds() -> None:
    async def story() -> None:
        store, kube = held(pod("a", 1)), FakeKube(pod("a", 1))
        kube.refused = {("list", "Pod"): 403}
        async with running(sweep(kube, store)):
            await asyncio.sleep(570)  # the next try is half a minute away
            kube.refused = {}
            await asyncio.sleep(ASK_AGAIN_S + 1)
            assert store.unread("ns") is None

    run_virtually(story())


def test_one_refusal_alone_is_no_news() -> None:
    async def story() -> None:
        news: list[Unread | None] = []
        store, kube = held(pod("a", 1)), FakeKube(pod("a", 1))
        kube.refused = {("list", "Pod"): 403}
        sweeps = sweep(kube, store, on_unread=news.append)
        async with running(sweeps):
            await asyncio.sleep(0.5)
            assert store.unread("ns") is not None
            kube.refused = {}
            await asyncio.sleep(2)
            assert store.unread("ns") is None
            kube.refused = {("list", "Pod"): 403}
            sweeps.listed_anew("Pod")
            await asyncio.sleep(1.5)
            kube.refused = {}
            await asyncio.sleep(5)
            assert store.unread("ns") is None
        assert news == []

    run_virtually(story())


def test_a_refusal_and_its_end_are_told_once() -> None:
    async def story() -> None:
        news: list[Unread | None] = []
        store, kube = held(pod("a", 1)), FakeKube(pod("a", 1))
        kube.refused = {("list", "Pod"): 403}
        async with running(sweep(kube, store, on_unread=news.append)):
            await asyncio.sleep(300)
            kube.refused = {}
            await asyncio.sleep(300)
        assert [accessed(unread) for unread in news] == [(403, "Forbidden", "list pods"), None]

    run_virtually(story())
