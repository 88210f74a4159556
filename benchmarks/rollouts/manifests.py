"""The peers' workloads as manifests (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
NAME_LABEL = "app.kubernetes.io/name"


def deployment(template: Mapping[str, Any], name: str, replicas: int, surge: str, unavailable: str) -> Json:
    """A Deployment with RollingUpdate; ``surge`` and ``unavailable`` are numbers or percentages."""
    rolling = {"maxSurge": _number(surge), "maxUnavailable": _number(unavailable)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {NAME_LABEL: name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "template": dict(template),
        },
    }


def statefulset(template: Mapping[str, Any], name: str, replicas: int) -> Json:
    """A StatefulSet with RollingUpdate: one pod after the other, from the last, each when the one before is
    ready. Parallel, so that it starts like the others; a rolling update keeps to its order all the same."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {NAME_LABEL: name}},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": dict(template),
        },
    }


def peer_template(name: str, image: str, settings: Mapping[str, Any], *, scratch: bool = False) -> Json:
    """The pod of a peer (`peer.py`) with these :class:`~benchmarks.rollouts.peer.Settings`. It is probed as
    often as our workers are. ``scratch``: whether it may write to /tmp, as Spark does; our workers may."""
    container: Json = {
        "name": "consumer",
        "image": image,
        "env": [
            {"name": "PEER", "value": json.dumps(settings)},
            _from_pod("POD_NAME", "metadata.name"),
            _from_pod("POD_IP", "status.podIP"),
        ],
        "ports": [{"name": "health", "containerPort": 8080}],
        "readinessProbe": _probe("/readyz", period_s=1, timeout_s=2, failures=3),
        "livenessProbe": _probe("/healthz", period_s=10, timeout_s=5, failures=6),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod: Json = {
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if scratch:
        container["workingDir"] = "/tmp"
        container["env"].append({"name": "HOME", "value": "/tmp"})
        container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
        pod["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    return {"metadata": {"labels": {NAME_LABEL: name}}, "spec": pod}


def _from_pod(variable: str, field: str) -> Json:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
