"""What the sweep takes to be gone, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeUnavailable
from slackwater_operator.kubernetes.store import GROUP_LABEL, Key, Store
from slackwater_operator.kubernetes.sweep import Sweep
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
        self.got: list[str] = []

    async def list(
        self, api_version: str, kind: str, namespace: str | None, selector: str, *, metadata_only: bool
    ) -> list[Object]:
        assert metadata_only
        if self.away:
            raise KubeUnavailable(0, "Unreachable", "refused")
        objects = [obj for obj in self.objects if obj["kind"] == kind and obj["metadata"]["labels"]]
        self.meanwhile()
        return objects

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        self.got.append(name)
        return next((obj for obj in self.objects if obj["metadata"]["name"] == name), None)


def sweep(kube: FakeKube, store: Store, **how: Any) -> Sweep:
    return Sweep(cast(Kube, kube), store, (), **how)


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
    sweeps = sweep(kube, store, on_missed=lambda: missed.append(True))
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


def test_synced_when_all_that_was_there_has_come_and_not_before() -> None:
    async def story() -> None:
        store = Store()
        running = asyncio.create_task(sweep(FakeKube(pod("a", 1), pod("b", 1)), store).run())
        await asyncio.sleep(0.1)
        store.put(pod("a", 1))
        await asyncio.sleep(5)
        assert not store.synced
        store.put(pod("b", 1))
        await asyncio.wait_for(store.wait_synced(), 0.1)
        running.cancel()

    run_virtually(story())


def test_missing_objects_are_fetched_and_deleted_ones_are_not_waited_for() -> None:
    async def story() -> None:
        store, kube = Store(), FakeKube(pod("a", 1), pod("b", 1))
        running = asyncio.create_task(sweep(kube, store).run())
        await asyncio.sleep(1)
        del kube.objects[1]
        await asyncio.sleep(25)
        assert store.synced
        assert versions(store) == {"a": "1"}
        running.cancel()

    run_virtually(story())


def test_a_watch_that_lists_anew_has_its_kind_compared_a_second_later() -> None:
    async def story() -> None:
        store, kube = Store(), FakeKube(pod("a", 1), pod("b", 1))
        sweeps = sweep(kube, store)
        running = asyncio.create_task(sweeps.run())
        await asyncio.sleep(0.1)
        store.put(pod("a", 1))
        store.put(pod("b", 1))
        await asyncio.sleep(0.1)
        assert store.synced
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
        running.cancel()

    run_virtually(story())
