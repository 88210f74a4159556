"""Objects for the tests of the way to the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
