"""The objects of a run behave as those of an API server, as far as the controller can tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater_operator.kubernetes.errors import KubeConflict, KubeError
from slackwater_operator.kubernetes.store import GROUP_LABEL, Key, Store
from slackwater_operator.local.machine.objects import LocalObjects
from slackwater_operator.local.machine.workloads import Workloads

NOW_MS = 1_700_000_000_000


def made() -> LocalObjects:
    return LocalObjects(lambda: NOW_MS)


def manifest(kind: str = "ConfigMap", name: str = "c", **rest: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": ""}, **rest}


async def test_an_apply_that_changes_nothing_leaves_the_version() -> None:
    objects = made()
    first = await objects.apply(manifest(spec={"replicas": 1}))
    assert await objects.apply(manifest(spec={"replicas": 1})) == first
    second = await objects.apply(manifest(spec={"replicas": 2}))
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["metadata"]["generation"] == 2
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


async def test_an_apply_keeps_the_status_and_drops_omitted_fields() -> None:
    objects = made()
    live = await objects.apply(manifest(spec={"a": 1, "b": 2}))
    await objects.apply_status(manifest(status={"ready": 1}))
    after = await objects.apply(manifest(spec={"a": 1}))
    assert (after["spec"], after["status"]) == ({"a": 1}, {"ready": 1})
    assert live["spec"] == {"a": 1, "b": 2}, "what was given out is not changed"


async def test_a_status_applies_to_a_single_uid_and_makes_no_new_generation() -> None:
    objects = made()
    live = await objects.create(manifest(spec={}))
    await objects.apply_status(manifest(status={"a": 1}))
    again = await objects.get("v1", "ConfigMap", "", "c")
    assert again is not None
    assert again["metadata"]["generation"] == live["metadata"]["generation"]
    other = {"name": "c", "namespace": "", "uid": "another"}
    with pytest.raises(KubeConflict):
        await objects.apply_status({**manifest(status={}), "metadata": other})
    with pytest.raises(KubeError) as raised:
        await objects.apply_status(manifest(name="none", status={}))
    assert raised.value.status == 404


async def test_create_and_patch_conflict_as_on_a_server() -> None:
    objects = made()
    live = await objects.create(manifest(spec={"a": 1, "b": 2}))
    with pytest.raises(KubeConflict):
        await objects.create(manifest())
    metadata = {"resourceVersion": live["metadata"]["resourceVersion"]}
    patched = await objects.patch("v1", "ConfigMap", "", "c", {"metadata": metadata, "spec": {"b": None}})
    assert patched["spec"] == {"a": 1}
    with pytest.raises(KubeConflict):
        await objects.patch("v1", "ConfigMap", "", "c", {"metadata": metadata, "spec": {"b": 3}})


async def test_a_finalizer_delays_a_deletion_and_owned_objects_are_deleted_with_their_owner() -> None:
    objects = made()
    owner = await objects.create(manifest(name="owner"))
    await objects.patch("v1", "ConfigMap", "", "owner", {"metadata": {"finalizers": ["x/y"]}})
    owned = manifest(name="owned")
    owned["metadata"]["ownerReferences"] = [{"uid": owner["metadata"]["uid"], "controller": True}]
    await objects.create(owned)
    assert not await objects.delete("v1", "ConfigMap", "", "owner", uid="another")
    assert await objects.delete("v1", "ConfigMap", "", "owner")
    left = await objects.get("v1", "ConfigMap", "", "owner")
    assert left is not None
    assert left["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:20Z"
    await objects.patch("v1", "ConfigMap", "", "owner", {"metadata": {"finalizers": []}})
    assert list(objects.of_kind("ConfigMap")) == []
    assert not await objects.delete("v1", "ConfigMap", "", "owner")


async def test_the_store_is_fed_and_secrets_are_known_by_version() -> None:
    objects, store = made(), Store()
    objects.feed(store)
    pod = manifest("Pod", "p-0", spec={}, status={})
    pod["metadata"]["labels"] = {GROUP_LABEL: "p"}
    objects.put(pod)
    objects.put(manifest("Secret", "s", data={}))
    assert [pod["metadata"]["name"] for pod in store.pods(Key("", "p"))] == ["p-0"]
    assert store.secret_version("", "s") == "2"
    await objects.delete("v1", "Secret", "", "s")
    assert store.secret_version("", "s") == ""


def statefulset(replicas: int, start: int = 0, image: str = "a") -> dict[str, Any]:
    container = {"name": "worker", "image": image}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "ordinals": {"start": start}, "template": template}
    return {**manifest("StatefulSet", "s", spec=spec), "apiVersion": "apps/v1"}


def pods(objects: LocalObjects) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["controller-revision-hash"]
        for pod in objects.of_kind("Pod")
    }


async def test_a_statefulset_makes_and_ends_pods_and_keeps_those_of_a_former_template() -> None:
    objects = made()
    workloads = Workloads(objects, asyncio.get_running_loop)
    await objects.apply(statefulset(2, start=1))
    await asyncio.sleep(0)
    (first,) = set(pods(objects).values())
    assert set(pods(objects)) == {"s-1", "s-2"}
    await objects.apply(statefulset(1, start=1, image="b"))
    await asyncio.sleep(0)
    ending = objects.read("Pod", "", "s-2")
    assert ending is not None
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 30
    assert pods(objects)["s-1"] == first, "OnDelete: an applied template restarts nobody"
    live = objects.read("StatefulSet", "", "s")
    assert live is not None
    assert live["status"]["observedGeneration"] == 2
    assert live["status"]["updateRevision"] != first
    assert objects.read("ControllerRevision", "", first) is not None, "kept to go back to"
    for name in ("s-1", "s-2"):
        pod = objects.read("Pod", "", name)
        assert pod is not None
        objects.remove("Pod", "", name, pod["metadata"]["uid"])
    await asyncio.sleep(0)
    assert pods(objects) == {"s-1": live["status"]["updateRevision"]}
    workloads.close()


@pytest.mark.parametrize(("phase", "condition"), [("Succeeded", "Complete"), ("Failed", "Failed")])
async def test_a_job_tries_its_pod_once(phase: str, condition: str) -> None:
    objects = made()
    workloads = Workloads(objects, asyncio.get_running_loop)
    spec = {"template": statefulset(1)["spec"]["template"], "activeDeadlineSeconds": 60}
    await objects.apply({**manifest("Job", "j", spec=spec), "apiVersion": "batch/v1"})
    await asyncio.sleep(0)
    (pod,) = objects.of_kind("Pod")
    objects.set_status("Pod", "", pod["metadata"]["name"], pod["metadata"]["uid"], {"phase": phase})
    await asyncio.sleep(0)
    job = objects.read("Job", "", "j")
    assert job is not None
    assert job["status"]["conditions"][0]["type"] == condition
    assert len(list(objects.of_kind("Pod"))) == 1
    workloads.close()
