"""A real Kubernetes control plane for the tests, its pods run as processes of this machine.

``ControlPlane.start(directory)`` starts it; ``docs/design/controlplane.md`` says what is like a real
cluster and what is not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.controlplane.api import Api, ApiError, path_of, until
    from tests.support.controlplane.build import ToolsUnavailable, helm, kubectl, prometheus, promtool
    from tests.support.controlplane.cluster import CommandFailed, ControlPlane, ControlPlaneUnavailable
    from tests.support.controlplane.images import CRASHES, HANGS, Image, this_checkout, unless
    from tests.support.controlplane.pods import ContainerProcess, KubeletError, PodProcesses, ProcessEvent

_MODULES = {
    "api": ("Api", "ApiError", "path_of", "until"),
    "build": ("ToolsUnavailable", "helm", "kubectl", "prometheus", "promtool"),
    "cluster": ("CommandFailed", "ControlPlane", "ControlPlaneUnavailable"),
    "images": ("CRASHES", "HANGS", "Image", "this_checkout", "unless"),
    "pods": ("ContainerProcess", "KubeletError", "PodProcesses", "ProcessEvent"),
}

__all__ = [
    "CRASHES",
    "HANGS",
    "Api",
    "ApiError",
    "CommandFailed",
    "ContainerProcess",
    "ControlPlane",
    "ControlPlaneUnavailable",
    "Image",
    "KubeletError",
    "PodProcesses",
    "ProcessEvent",
    "ToolsUnavailable",
    "helm",
    "kubectl",
    "path_of",
    "prometheus",
    "promtool",
    "this_checkout",
    "unless",
    "until",
]


def __getattr__(name: str) -> Any:
    # Loaded on demand: `python -m tests.support.controlplane.cluster` must not find itself imported.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__} has no {name}")
