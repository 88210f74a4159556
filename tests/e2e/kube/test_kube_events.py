"""Events on a real API server: it takes them, and kubectl shows them."""

from __future__ import annotations

import pytest

from slackwater_operator.kubernetes.events import Events
from tests.e2e.conftest import Command
from tests.e2e.kube.kube_objects import connected, group
from tests.support.controlplane import ControlPlane, path_of

pytestmark = pytest.mark.controlplane


@pytest.fixture(autouse=True)
def crds(control_plane: ControlPlane) -> None:
    control_plane.define()


async def test_kubectl_describe_shows_events_and_counts_repeated_ones(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, kubectl: Command
) -> None:
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        made = await kube.apply(group(namespace))
        for instance in ("op-1", "op-2", "op-3"):  # as after restarts
            events = Events(kube, instance=instance)
            events.post(made, "ScaledUp", "from 3 to 5: the lag needs it", action="Scale")
            await events.flush()
        events.post(made, "RolloutStopped", "é" * 2000, kind="Warning")
        await events.flush()
        listed = control_plane.api.list(path_of("events.k8s.io/v1", "events", namespace))
        counts = {event["reason"]: (event.get("series") or {}).get("count") for event in listed}
        assert counts == {"ScaledUp": 3, "RolloutStopped": None}
        described = kubectl("describe", "consumergroup", "flights", "-n", namespace)
        assert "from 3 to 5: the lag needs it" in described
        assert "x3 over" in described
        assert "Warning  RolloutStopped" in described


async def test_equal_events_in_the_first_post_become_one_series(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(monkeypatch, control_plane.kubeconfig) as kube:
        made = await kube.apply(group(namespace))
        events = Events(kube, instance="op-1")
        for _ in range(5):
            events.post(made, "Held", "lag is not known")
        await events.flush()
        [event] = control_plane.api.list(path_of("events.k8s.io/v1", "events", namespace))
        assert event["series"]["count"] == 5
        assert event["regarding"]["uid"] == made["metadata"]["uid"]
