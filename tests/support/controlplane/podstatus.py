"""A pod's status from its containers (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.controlplane.api import Json


def phase_of(containers: Sequence[Json], *, initialized: bool, ended: bool, failed: bool) -> str:
    """``ended``: no container will run again. ``failed``: an init container did, for good."""
    if failed:
        return "Failed"
    if ended:
        codes = [one["state"].get("terminated", {}).get("exitCode", 137) for one in containers]
        return "Succeeded" if not any(codes) else "Failed"
    started = any("waiting" not in one["state"] or one["restartCount"] for one in containers)
    return "Running" if initialized and started else "Pending"


def conditions(
    containers: Sequence[Json], before: Sequence[Json], *, phase: str, initialized: bool, at: str
) -> list[Json]:
    """The kubelet's own conditions; ``lastTransitionTime`` moves only when the status does."""
    unready = [one["name"] for one in containers if not one["ready"]]
    ready = initialized and not unready and phase == "Running"
    why: Json = {}
    if phase == "Succeeded":
        why = {"reason": "PodCompleted"}
    elif not ready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        why = {"reason": "ContainersNotReady", "message": message}
    wanted = [
        ("PodReadyToStartContainers", True, {}),
        ("Initialized", initialized, {} if initialized else {"reason": "ContainersNotInitialized"}),
        ("ContainersReady", ready, why),
        ("Ready", ready, why),
        ("PodScheduled", True, {}),
    ]
    found = []
    for kind, holds, reason in wanted:
        status = "True" if holds else "False"
        old = next((one for one in before if one["type"] == kind), {})
        since = old.get("lastTransitionTime", at) if old.get("status") == status else at
        found.append({"type": kind, "status": status, "lastTransitionTime": since, **reason})
    return found
