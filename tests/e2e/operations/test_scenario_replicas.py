"""spec.replicas is the user's: whoever sets it, in whichever order, meets no conflict with the operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from tests.support.controlplane import CommandFailed, ControlPlane, until
from tests.support.site import ClusterSite, Group
from tests.support.site.group import POLL_S

pytestmark = pytest.mark.controlplane


@pytest.fixture
def site(control_plane: ControlPlane, namespace: str) -> Iterator[ClusterSite]:
    """A site with an operator; the groups are suspended, so they need no Kafka."""
    kafka = SimpleNamespace(bootstrap="127.0.0.1:1")
    with ClusterSite(control_plane, kafka, namespace) as made, made.operator():
        yield made


def apply(site: ClusterSite, replicas: int | None, *, manager: str = "argocd-controller") -> Group:
    """A server-side apply, which refuses what is a conflict."""
    manifest = site.manifest("flights", replicas=replicas, suspend=True)
    site.plane.kubectl(
        "apply", "--server-side", f"--field-manager={manager}", "-f", "-", stdin=yaml.safe_dump(manifest)
    )
    return Group(site, "flights", 1, site.folder)


def await_replicas(group: Group, replicas: int) -> None:
    """The operator has seen the newest spec, and `spec.replicas` is this."""

    def observed() -> bool:
        resource = group.resource()
        observed_generation = (resource.get("status") or {}).get("observedGeneration")
        return bool(resource["spec"].get("replicas") == replicas) and bool(
            observed_generation == resource["metadata"]["generation"]
        )

    until(observed, f"spec.replicas {replicas}", every_s=POLL_S)


def scale(site: ClusterSite, replicas: int) -> None:
    site.plane.kubectl("-n", site.namespace, "scale", "cg/flights", f"--replicas={replicas}")


def autoscale(site: ClusterSite, least: int) -> None:
    """A real HorizontalPodAutoscaler; without metrics it keeps the number within its bounds alone."""
    target = {"apiVersion": API_VERSION, "kind": KIND, "name": "flights"}
    manifest = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "flights", "namespace": site.namespace},
        "spec": {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": 9},
    }
    site.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))


def test_a_number_meets_no_conflict_whoever_has_set_it_before(site: ClusterSite) -> None:
    group = apply(site, None)
    await_replicas(group, 1)
    apply(site, 3)
    await_replicas(group, 3)
    apply(site, None)  # the present number is filled in
    await_replicas(group, 3)
    apply(site, 2, manager="kubectl")
    await_replicas(group, 2)
    scale(site, 4)  # a number of two manifests
    await_replicas(group, 4)


@pytest.mark.long
def test_who_scales_keeps_the_number_whoever_applies_the_rest(site: ClusterSite) -> None:
    group = apply(site, None)
    await_replicas(group, 1)
    scale(site, 4)  # as an HPA, by the scale subresource
    await_replicas(group, 4)
    apply(site, None)
    apply(site, None, manager="helm")
    await_replicas(group, 4)


@pytest.mark.long
@pytest.mark.parametrize("hpa_first", [True, False])
def test_an_hpa_has_the_number_from_before_or_after_an_apply_on(site: ClusterSite, hpa_first: bool) -> None:
    if hpa_first:
        autoscale(site, 3)
    group = apply(site, 2)
    if not hpa_first:
        await_replicas(group, 2)
        autoscale(site, 3)
    await_replicas(group, 3)
    apply(site, None)  # leaves the number to the HPA
    await_replicas(group, 3)
    with pytest.raises(CommandFailed, match="conflict with") as refused:
        apply(site, 4)
    assert "slackwater-operator" not in refused.value.output, "it is with the HPA's controller alone"


@pytest.mark.long
def test_helm_sets_the_number_after_the_operator(site: ClusterSite, tmp_path: Path) -> None:
    manifest = site.manifest("flights", replicas=None, suspend=True)
    text = yaml.safe_dump(manifest) + "{{- with .Values.replicas }}\n  replicas: {{ . }}\n{{- end }}\n"
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: flights, version: 1.0.0}")
    (tmp_path / "templates" / "group.yaml").write_text(text)
    group = Group(site, "flights", 1, site.folder)
    site.plane.helm("install", "flights", str(tmp_path), "-n", site.namespace)
    await_replicas(group, 1)
    site.plane.helm("upgrade", "flights", str(tmp_path), "-n", site.namespace, "--set", "replicas=3")
    await_replicas(group, 3)
    site.plane.helm("upgrade", "flights", str(tmp_path), "-n", site.namespace)
    await_replicas(group, 3)
