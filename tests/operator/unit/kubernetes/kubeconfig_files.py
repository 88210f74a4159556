"""Kubeconfig files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.kubernetes.access import Access

V1 = "client.authentication.k8s.io/v1"


def document(user: dict[str, Any] | None = None, *, name: str = "air", **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "flights"}}],
        "clusters": [{"name": name, "cluster": {"server": "http://localhost:1/", **cluster}}],
        "users": [{"name": name, "user": user or {}}],
    }


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def access_to(
    monkeypatch: pytest.MonkeyPatch, folder: Path, user: dict[str, Any], **cluster: Any
) -> Access:
    monkeypatch.setenv("KUBECONFIG", str(written(folder / "config", document(user, **cluster))))
    return await Access.find()
