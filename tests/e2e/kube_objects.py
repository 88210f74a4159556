"""Objects for the tests of the way to the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.store import GROUP_LABEL

Object = dict[str, Any]


def group(namespace: str, name: str = "flights", **spec: Any) -> Object:
    """A ConsumerGroup that the CRD takes."""
    return {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "groupId": name,
            "topics": [name],
            "kafka": {"bootstrapServers": "127.0.0.1:9092"},
            "pipeline": {"handler": "flights.pipeline:transform", "sink": {"path": "/data/out"}},
            **spec,
        },
    }


def config_map(namespace: str, name: str, *, of: str = "", **data: str) -> Object:
    """A ConfigMap, with the label of the group `of`."""
    labels = {GROUP_LABEL: of} if of else {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": data,
    }


@asynccontextmanager
async def connected(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, **how: Any) -> AsyncIterator[Kube]:
    """A client by that kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    kube = await Kube.connect(**how)
    try:
        yield kube
    finally:
        await kube.close()


async def eventually(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> None:
    """Waits for a condition on the same loop."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.01)
