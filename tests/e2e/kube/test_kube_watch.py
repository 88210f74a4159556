"""The Store holds what a real API server has, through changes, outages and restarts of its watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.kubernetes.watch import SecretVersions, Watches
from tests.e2e.conftest import Command
from tests.e2e.kube.kube_objects import config_map, connected, group
from tests.support.controlplane import ControlPlane, path_of
from tests.support.proxies import ApiProxy
from tests.support.waiting import HANG_S, wait_until_async

pytestmark = pytest.mark.controlplane

CRDS = Path(__file__).parents[3] / "crds"


@pytest.fixture(scope="module", autouse=True)
def crds(control_plane: ControlPlane) -> None:
    control_plane.define()


@asynccontextmanager
async def watching(kube: Kube, *namespaces: str) -> AsyncIterator[Store]:
    """A Store that has listed all."""
    store = Store()
    watches = Watches(kube, store, namespaces=namespaces)
    task = asyncio.create_task(watches.run())
    try:
        async with asyncio.timeout(HANG_S):
            await store.wait_synced()
        assert watches.silent_s() < 10
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(objects: list[dict[str, Any]]) -> list[str]:
    return [str(document["metadata"]["name"]) for document in objects]


async def test_a_synced_store_has_existing_objects_and_later_changes(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Key(namespace, "flights")
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        await kube.apply(group(namespace))
        await kube.apply(config_map(namespace, "before", of="flights", big="x" * 1000))
        await kube.apply(config_map(namespace, "foreign"))
        async with watching(kube) as store:
            assert key in store.groups()
            held = store.group(key)
            assert held is not None
            assert "managedFields" not in held["metadata"]
            assert names(store.configmaps(key)) == ["before"]
            assert "data" not in store.configmaps(key)[0]

            keys: list[Key] = []
            store.on_change(keys.append)
            await kube.apply(group(namespace, topics=["other"]))
            await wait_until_async(lambda: _topics(store, key) == ["other"], "the change")
            assert {key for key in keys if key.namespace == namespace} == {key}

            await kube.apply(config_map(namespace, "after", of="flights"))
            await wait_until_async(lambda: names(store.configmaps(key)) == ["after", "before"], "the new one")
            await kube.delete("v1", "ConfigMap", namespace, "before")
            await wait_until_async(lambda: names(store.configmaps(key)) == ["after"], "the deletion")
            await kube.apply(config_map(namespace, "after", of="another"))
            await wait_until_async(
                lambda: names(store.configmaps(Key(namespace, "another"))) == ["after"], "the change of label"
            )
            assert store.configmaps(key) == []
            await kube.apply(config_map(namespace, "after"))
            await wait_until_async(lambda: not store.configmaps(Key(namespace, "another")), "the label's end")


def _topics(store: Store, key: Key) -> Any:
    held = store.group(key)
    return held["spec"]["topics"] if held else None


async def test_the_watch_does_not_undo_a_write_that_the_store_has(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Key(namespace, "flights")
    async with connected(monkeypatch, control_plane.kubeconfig) as kube, watching(kube, namespace) as store:
        topics: list[Any] = []
        store.on_change(lambda changed: topics.append(_topics(store, changed)))
        for number in range(20):
            store.put(await kube.apply(group(namespace, topics=[f"t{number}"])))
            assert _topics(store, key) == [f"t{number}"]
        await wait_until_async(lambda: topics[-1] == ["t19"], "the last")
        assert topics == [[f"t{number}"] for number in range(20)]


async def test_the_store_holds_only_the_named_namespaces(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control_plane.namespace() as other:
        async with connected(monkeypatch, control_plane.kubeconfig) as kube:
            await kube.apply(group(namespace))
            await kube.apply(group(other))
            async with watching(kube, namespace) as store:
                assert store.groups() == [Key(namespace, "flights")]
                await kube.apply(group(other, "more"))
                await kube.apply(group(namespace, "more"))
                await wait_until_async(lambda: Key(namespace, "more") in store.groups(), "the second group")
                assert {key.namespace for key in store.groups()} == {namespace}


@pytest.mark.long
async def test_a_deletion_during_a_gap_in_the_watch_is_noticed(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The API server restarts while the operator is cut off, so the watches must list again."""
    key = Key(namespace, "flights")
    host, port = control_plane.host_port
    with ApiProxy(f"{host}:{port}") as proxy:
        config = proxy.kubeconfig(control_plane.kubeconfig, tmp_path)
        async with connected(monkeypatch, config, request_timeout_s=10.0) as kube:
            await kube.apply(group(namespace))
            for name in ("goes", "stays"):
                await kube.apply(config_map(namespace, name, of="flights"))
            async with watching(kube, namespace) as store:
                assert names(store.configmaps(key)) == ["goes", "stays"]
                relisted: list[Key] = []
                proxy.cut()
                control_plane.api.delete(path_of("v1", "configmaps", namespace, "goes"))
                control_plane.api.create(
                    path_of("v1", "configmaps", namespace), config_map(namespace, "comes", of="flights")
                )
                control_plane.stop_apiserver()
                control_plane.start_apiserver()
                store.on_change(relisted.append)
                assert names(store.configmaps(key)) == ["goes", "stays"]
                proxy.open()
                await wait_until_async(lambda: names(store.configmaps(key)) == ["comes", "stays"], "both")


async def test_an_api_server_that_hangs_and_comes_back_is_watched_again(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = Key(namespace, "flights")
    host, port = control_plane.host_port
    with ApiProxy(f"{host}:{port}") as proxy:
        config = proxy.kubeconfig(control_plane.kubeconfig, tmp_path)
        async with connected(monkeypatch, config) as kube, watching(kube, namespace) as store:
            proxy.hang()
            control_plane.api.create(
                path_of("slackwater.dev/v1alpha1", "consumergroups", namespace), group(namespace)
            )
            await asyncio.to_thread(proxy.cut)
            proxy.open()
            await wait_until_async(lambda: store.groups() == [key], "the group")


@pytest.mark.long
async def test_the_watch_waits_for_the_crd(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, kubectl: Command
) -> None:
    kubectl("delete", "-f", str(CRDS))
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        async with asyncio.timeout(HANG_S):
            while await kube.served("slackwater.dev/v1alpha1", "ConsumerGroup", fresh=True):
                await asyncio.sleep(0.05)
        store = Store()
        task = asyncio.create_task(Watches(kube, store, namespaces=(namespace,)).run())
        try:
            await asyncio.sleep(1)
            assert not store.synced
            control_plane.define()
            await kube.apply(group(namespace))
            await wait_until_async(
                lambda: store.synced and store.groups() == [Key(namespace, "flights")], "it"
            )
            kubectl("delete", "-f", str(CRDS))
            await wait_until_async(lambda: store.groups() == [], "the deletion of all groups")
            control_plane.define()
            await kube.apply(group(namespace, "again"))
            await wait_until_async(lambda: store.groups() == [Key(namespace, "again")], "a group after that")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_store_follows_the_versions_of_requested_secrets(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right to get Secrets is enough."""
    store = Store()
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    config = control_plane.kubeconfig_for(namespace, "reader", rules=rules)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kafka", "namespace": namespace}}
    async with connected(monkeypatch, config) as kube:
        task = asyncio.create_task(SecretVersions(kube, store, round_s=0.5).run())
        try:
            assert store.secret_version(namespace, "kafka") is None
            await wait_until_async(
                lambda: store.secret_version(namespace, "kafka") == "", "that there is none"
            )
            made = control_plane.api.create(path_of("v1", "secrets", namespace), secret)
            version = made["metadata"]["resourceVersion"]
            await wait_until_async(lambda: store.secret_version(namespace, "kafka") == version, "its version")
            changed = control_plane.api.patch(
                path_of("v1", "secrets", namespace, "kafka"), {"stringData": {"password": "new"}}
            )["metadata"]["resourceVersion"]
            await wait_until_async(
                lambda: store.secret_version(namespace, "kafka") == changed, "the new version"
            )
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
