"""The Secret that replicas share, and the caBundle: one renewal for all, whoever makes it."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest

from slackwater_operator.admission.certificate_store import MISSING, CertificateStore
from slackwater_operator.admission.certificates import (
    AUTHORITY_MS,
    CERTIFICATE_MS,
    RENEW_AUTHORITY_MS,
    RENEW_CERTIFICATE_MS,
    Material,
)
from slackwater_operator.kubernetes.errors import KubeConflict

NAME, NAMESPACE = "sw-webhook", "sw"
NOW_MS = 1_800_000_000_000
Object = dict[str, Any]


class ApiServer:
    """A Secret and a ValidatingWebhookConfiguration; counts what is written."""

    def __init__(self) -> None:
        self.secret: Object | None = {"metadata": {"name": NAME, "resourceVersion": "1"}}
        self.configuration: Object | None = {
            "metadata": {"name": NAME, "resourceVersion": "1"},
            "webhooks": [{"name": "a.b.c", "failurePolicy": "Ignore", "clientConfig": {"service": {}}}],
        }
        self.writes: list[str] = []

    async def get(self, _: str, kind: str, namespace: str, name: str) -> Object | None:
        assert name == NAME
        assert namespace == (NAMESPACE if kind == "Secret" else "")
        return copy.deepcopy(self.secret if kind == "Secret" else self.configuration)

    async def replace(self, manifest: Object) -> Object:
        assert self.secret is not None
        if manifest["metadata"]["resourceVersion"] != self.secret["metadata"]["resourceVersion"]:
            raise KubeConflict(409, "Conflict", "the object has been modified")
        self.writes.append("Secret")
        self.secret = copy.deepcopy(manifest)
        self.secret["metadata"]["resourceVersion"] += "1"
        return self.secret

    async def apply(self, manifest: Object) -> Object:
        assert self.configuration is not None
        assert manifest["metadata"] == self.configuration["metadata"]
        (change,), (webhook,) = manifest["webhooks"], self.configuration["webhooks"]
        assert set(change) == {"name", "clientConfig"}
        assert change["name"] == webhook["name"]
        self.writes.append("caBundle")
        webhook["clientConfig"] |= change["clientConfig"]
        return self.configuration

    @property
    def trusted(self) -> bytes:
        assert self.configuration is not None
        return base64.b64decode(self.configuration["webhooks"][0]["clientConfig"]["caBundle"])


class Replica:
    """One replica's store; `used` is what it was handed."""

    def __init__(self, server: ApiServer) -> None:
        self.used: list[tuple[Material, int]] = []
        self.now_ms = NOW_MS
        kube: Any = server
        self.store = CertificateStore(
            kube,
            name=NAME,
            namespace=NAMESPACE,
            on_new=lambda material, ends_ms: self.used.append((material, ends_ms)),
            clock_ms=lambda: self.now_ms,
        )


async def test_the_first_replica_creates_the_certificate_for_all() -> None:
    server = ApiServer()
    first, second = Replica(server), Replica(server)
    for replica in (first, second, first, second):
        assert await replica.store.look() == ""
    assert server.writes == ["Secret", "caBundle"]
    assert first.used == second.used
    ((material, ends_ms),) = first.used
    assert ends_ms == NOW_MS + CERTIFICATE_MS
    assert server.trusted == material.authorities


async def test_the_slower_of_two_renewals_uses_the_certificate_of_the_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ApiServer()
    slow, fast = Replica(server), Replica(server)
    get, looked = server.get, False

    async def get_and_be_overtaken(api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        nonlocal looked
        result = await get(api_version, kind, namespace, name)
        if not looked:
            looked = True
            await fast.store.look()
        return result

    monkeypatch.setattr(server, "get", get_and_be_overtaken)
    assert await slow.store.look() == ""
    assert server.writes == ["Secret", "caBundle"]
    assert slow.used == fast.used


async def test_a_renewal_reaches_the_other_replica_without_a_restart() -> None:
    server = ApiServer()
    first, second = Replica(server), Replica(server)
    await first.store.look()
    await second.store.look()
    first.now_ms = NOW_MS + CERTIFICATE_MS - RENEW_CERTIFICATE_MS
    await first.store.look()
    await second.store.look()
    assert server.writes == ["Secret", "caBundle", "Secret"]
    assert first.used == second.used
    assert len(first.used) == 2


async def test_a_new_authority_is_trusted_before_it_signs() -> None:
    server = ApiServer()
    replica = Replica(server)
    await replica.store.look()
    (before, _) = replica.used[0]
    replica.now_ms = NOW_MS + AUTHORITY_MS - RENEW_AUTHORITY_MS
    await replica.store.look()
    assert server.trusted.endswith(before.authorities)
    assert server.trusted != before.authorities
    assert replica.used[-1][1] == replica.now_ms + CERTIFICATE_MS


async def test_a_bundle_that_somebody_removed_is_set_again() -> None:
    server = ApiServer()
    replica = Replica(server)
    await replica.store.look()
    trusted = server.trusted
    assert server.configuration is not None
    del server.configuration["webhooks"][0]["clientConfig"]["caBundle"]
    await replica.store.look()
    assert server.trusted == trusted
    assert len(replica.used) == 1


async def test_other_keys_of_the_secret_stay() -> None:
    server = ApiServer()
    assert server.secret is not None
    server.secret["data"] = {"note": "eA=="}
    await Replica(server).store.look()
    assert set(server.secret["data"]) == {"note", "ca.crt", "ca.key", "tls.crt", "tls.key"}


@pytest.mark.parametrize("missing", ["secret", "configuration"])
async def test_a_missing_object_of_the_chart_is_reported(missing: str) -> None:
    server = ApiServer()
    setattr(server, missing, None)
    problem = await Replica(server).store.look()
    assert problem.endswith(MISSING)
    assert NAME in problem
