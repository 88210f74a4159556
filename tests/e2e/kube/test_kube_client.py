"""`Kube` against a real API server: what each request gives, and how each ends when it can't."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.kubernetes import access
from slackwater_operator.kubernetes.access import Access
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import (
    KubeConfigError,
    KubeConflict,
    KubeForbidden,
    KubeInvalid,
    KubeUnavailable,
)
from tests.e2e.conftest import Command
from tests.e2e.kube.kube_objects import config_map, connected, group
from tests.support.controlplane import ControlPlane
from tests.support.proxies import ApiProxy

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module", autouse=True)
def crds(control_plane: ControlPlane) -> None:
    control_plane.define()


async def test_kube_gets_lists_and_deletes_objects(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        assert await kube.get("v1", "ConfigMap", namespace, "one") is None
        made = await kube.create(config_map(namespace, "one", of="flights", a="1"))
        with pytest.raises(KubeConflict) as twice:
            await kube.create(config_map(namespace, "one"))
        assert twice.value.reason == "AlreadyExists"
        await kube.create(config_map(namespace, "two"))
        stored = await kube.get("v1", "ConfigMap", namespace, "one")
        assert stored is not None
        assert stored["data"] == {"a": "1"}
        listed = await kube.list("v1", "ConfigMap", namespace, "slackwater.dev/group")
        assert [
            (document["kind"], document["apiVersion"], document["metadata"]["name"]) for document in listed
        ] == [("ConfigMap", "v1", "one")]
        [bare] = await kube.list("v1", "ConfigMap", namespace, "slackwater.dev/group", metadata_only=True)
        assert bare["metadata"]["uid"] == made["metadata"]["uid"]
        assert "data" not in bare
        assert await kube.delete("v1", "ConfigMap", namespace, "one", uid="another") is False
        assert await kube.delete("v1", "ConfigMap", namespace, "one", uid=made["metadata"]["uid"]) is True
        assert await kube.delete("v1", "ConfigMap", namespace, "one") is False


async def test_a_list_of_several_pages_is_complete(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater_operator.kubernetes.client.PAGE", 3)
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        names = [f"m{number}" for number in range(8)]
        await asyncio.gather(*(kube.create(config_map(namespace, name, of="g")) for name in names))
        config_maps = await kube.list("v1", "ConfigMap", namespace, "slackwater.dev/group=g")
        assert [document["metadata"]["name"] for document in config_maps] == names


async def test_apply_changes_what_differs_and_nothing_else(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, kubectl: Command
) -> None:
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        first = await kube.apply(config_map(namespace, "one", a="1", b="2"))
        again = await kube.apply(config_map(namespace, "one", a="1", b="2"))
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        kubectl("annotate", "configmap", "one", "-n", namespace, "mine=kept")
        tried = await kube.apply(config_map(namespace, "one", a="3"), dry_run=True)
        assert tried["data"] == {"a": "3"}
        stored = await kube.get("v1", "ConfigMap", namespace, "one")
        assert stored is not None
        assert stored["data"] == {"a": "1", "b": "2"}
        changed = await kube.apply(config_map(namespace, "one", a="3"))
        assert changed["data"] == {"a": "3"}
        assert changed["metadata"]["annotations"] == {"mine": "kept"}
        managers = {managed_field["manager"] for managed_field in changed["metadata"]["managedFields"]}
        assert "slackwater-operator" in managers


async def test_apply_without_force_names_the_conflicting_manager(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, kubectl: Command
) -> None:
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        await kube.apply(config_map(namespace, "one", a="1"))
        kubectl("patch", "configmap", "one", "-n", namespace, "-p", '{"data": {"a": "theirs"}}')
        with pytest.raises(KubeConflict, match="kubectl"):
            await kube.apply(config_map(namespace, "one", a="ours"), force=False)
        forced = await kube.apply(config_map(namespace, "one", a="ours"))
        assert forced["data"] == {"a": "ours"}


async def test_the_status_has_its_own_manager_and_leaves_the_spec(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        made = await kube.apply(group(namespace))
        body = {key: made[key] for key in ("apiVersion", "kind")}
        body |= {"metadata": {"name": "flights", "namespace": namespace}, "status": {"replicas": 3}}
        document = await kube.apply_status(body)
        assert document["status"]["replicas"] == 3
        assert document["spec"] == made["spec"]
        assert document["metadata"]["generation"] == made["metadata"]["generation"]
        consumer_group = await kube.get(made["apiVersion"], "ConsumerGroup", namespace, "flights")
        assert consumer_group is not None
        assert consumer_group["status"]["replicas"] == 3
        owners = {
            managed_field["manager"]: managed_field.get("subresource")
            for managed_field in consumer_group["metadata"]["managedFields"]
        }
        assert owners == {"slackwater-operator": None, "slackwater-operator-status": "status"}
        patched = await kube.patch(
            made["apiVersion"],
            "ConsumerGroup",
            namespace,
            "flights",
            {"status": {"members": 2}},
            subresource="status",
        )
        assert {"replicas": 3, "members": 2}.items() <= patched["status"].items()


async def test_each_refusal_raises_its_own_error(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        with pytest.raises(KubeInvalid, match=r"spec\.topics"):
            await kube.apply(group(namespace, topics=7))
        made = await kube.create(config_map(namespace, "one"))
        stale = {**made, "metadata": {**made["metadata"], "resourceVersion": "1"}}
        with pytest.raises(KubeConflict, match="modified"):
            await kube.replace(stale)
        assert await kube.served("slackwater.dev/v1alpha1", "ConsumerGroup")
        assert not await kube.served("monitoring.coreos.com/v1", "PodMonitor")
        assert not await kube.served("apps/v1", "NoSuchKind")
    nobody = control_plane.kubeconfig_for(namespace, "nobody")
    async with connected(monkeypatch, nobody) as kube:
        with pytest.raises(KubeForbidden, match=r"cannot get resource.*configmaps"):
            await kube.get("v1", "ConfigMap", namespace, "one")


async def test_an_api_server_that_hangs_or_is_gone_ends_every_request(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host, port = control_plane.host_port
    with ApiProxy(f"{host}:{port}") as proxy:
        config = proxy.kubeconfig(control_plane.kubeconfig, tmp_path)
        async with connected(monkeypatch, config, request_timeout_s=5.0) as kube:
            assert (await kube.version()).startswith("v1.")
            proxy.hang()
            at_s = time.monotonic()
            calls: list[Any] = [
                kube.get("v1", "ConfigMap", namespace, "one"),
                kube.list("v1", "ConfigMap", namespace),
                kube.apply(config_map(namespace, "one")),
                kube.delete("v1", "ConfigMap", namespace, "one"),
                kube.served("batch/v1", "Job"),
            ]
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, KubeUnavailable)
                assert result.reason == "Timeout"
                assert "within 5 s" in result.message
            assert time.monotonic() - at_s < 10.0, "side by side"
            proxy.cut()
            with pytest.raises(KubeUnavailable, match="cannot be reached"):
                await kube.get("v1", "ConfigMap", namespace, "one")
            proxy.open()
            assert await kube.get("v1", "ConfigMap", namespace, "one") is None


async def test_a_pods_token_is_read_again_when_it_is_replaced(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    host, port = control_plane.host_port
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    tokens = []
    for name in ("one", "two"):
        config = control_plane.kubeconfig_for(namespace, name, rules=rules)
        tokens.append(json.loads(config.read_text())["users"][0]["user"]["token"])
    (tmp_path / "token").write_text(tokens[0])
    (tmp_path / "ca.crt").write_bytes(control_plane.ca.read_bytes())
    (tmp_path / "namespace").write_text(namespace)
    kube = Kube(await Access.find())
    try:
        assert kube.access.namespace == namespace
        assert await kube.get("v1", "ConfigMap", namespace, "none") is None
        control_plane.kubectl("delete", "serviceaccount", "one", "-n", namespace)
        (tmp_path / "token").write_text(tokens[1])
        assert await kube.get("v1", "ConfigMap", namespace, "none") is None
        (tmp_path / "token").write_text("nonsense")
        await kube.access.renew()
        with pytest.raises(KubeForbidden):
            await kube.get("v1", "ConfigMap", namespace, "none")
    finally:
        await kube.close()


async def test_a_missing_or_bad_configuration_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, control_plane: ControlPlane
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(KubeConfigError, match="none does not exist"):
        await Kube.connect()
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    with pytest.raises(KubeConfigError, match=r"context nowhere cannot be used.*nowhere"):
        await Kube.connect(context="nowhere")
    (tmp_path / "bad").write_text("clusters: 7\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "bad"))
    with pytest.raises(KubeConfigError, match="cannot be used"):
        await Kube.connect()
