"""A real API server takes each object that is built, where Pod Security is restricted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1 import pod_template_overlay as overlay
from slackwater_operator.api.v1alpha1.consumer_group import MAX_NAME, MAX_NAME_TAKEOVER, ConsumerGroup, parse
from slackwater_operator.model import names
from slackwater_operator.planner.objects import differs, with_applied_hash
from slackwater_operator.specs.preflight_job import preflight_job
from slackwater_operator.specs.statefulset import revision, statefulset
from slackwater_operator.specs.supporting_objects import (
    disruption_budget,
    pod_monitor,
    service,
    service_account,
)
from slackwater_operator.specs.worker_config import takeover_secret
from tests.support.controlplane import ApiError, ControlPlane, path_of
from tests.support.controlplane.kubelet.environment import environment
from tests.support.operator.bad_resources import good

pytestmark = pytest.mark.controlplane

IMAGE = "registry.example/slackwater-worker:1"
SECURED = {
    "spec/kafka/security": {
        "protocol": "SASL_SSL",
        "mechanism": "SCRAM-SHA-512",
        "credentialsSecret": "user",
        "caSecret": "ca",
        "clientCertificateSecret": "mine",
    }
}
LAID_OVER = {
    "spec/template": {
        "metadata": {"labels": {"team": "lake"}, "annotations": {"example/why": "x"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "lake"}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            ],
            "containers": [
                {
                    "name": "worker",
                    "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}},
                    "env": [{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "livenessProbe": {"failureThreshold": 30},
                }
            ],
        },
    }
}
TAKEOVER = {"spec/rollout/strategy": "Takeover"}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with Secrets": SECURED,
    "with a template": {**SECURED, **LAID_OVER},
    "with the longest name": {"metadata/name": "f" * MAX_NAME},
    "with takeovers": TAKEOVER,
    "with takeovers and Secrets": {**TAKEOVER, **SECURED},
    "with takeovers and the longest name": {**TAKEOVER, "metadata/name": "f" * MAX_NAME_TAKEOVER},
}

POD_MONITORS = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PodMonitor, listKind: PodMonitorList, plural: podmonitors, singular: podmonitor}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              required: [podMetricsEndpoints, selector]
              properties:
                selector:
                  type: object
                  properties:
                    matchLabels: {type: object, additionalProperties: {type: string}}
                podMetricsEndpoints:
                  type: array
                  items:
                    type: object
                    properties:
                      port: {type: string}
                      path: {type: string}
                      interval: {type: string, pattern: "^[0-9]+(ms|s|m|h)$"}
                      honorLabels: {type: boolean}
                      relabelings:
                        type: array
                        items:
                          type: object
                          properties:
                            sourceLabels: {type: array, items: {type: string}}
                            targetLabel: {type: string}
"""
"""What the Prometheus Operator's definition says about the fields that are used here."""


@pytest.fixture(scope="module", autouse=True)
def pod_monitors(control_plane: ControlPlane) -> Iterator[None]:
    """The definition of a PodMonitor is there."""
    control_plane.define(POD_MONITORS)
    yield
    control_plane.undefine("podmonitors.monitoring.coreos.com")


def made(plane: ControlPlane, home: str, changes: dict[str, Any]) -> ConsumerGroup:
    """The group as the operator reads it: with namespace and uid."""
    return parse(plane.api.apply(home, good(**changes), manager="kubectl"))


def objects(group: ConsumerGroup) -> list[dict[str, Any]]:
    current = revision(group, worker_image=IMAGE)
    sets = [statefulset(group, template=current.template, replicas=3)]
    if group.spec.rollout.takes_over:
        sets = [
            statefulset(group, template=current.template, replicas=2, suffix="a"),
            statefulset(group, template=current.template, replicas=1, suffix="b", start=2),
            takeover_secret(group, "0f" * 32),
        ]
    return [
        *sets,
        current.config_map,
        service_account(group),
        service(group),
        disruption_budget(group, max_unavailable=0),
        pod_monitor(group),
        preflight_job(group, current),
    ]


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_the_api_server_accepts_each_object(
    control_plane: ControlPlane, home: str, changes: dict[str, Any]
) -> None:
    group = made(control_plane, home, changes)
    built = objects(group)
    assert len(built) == (9 if group.spec.rollout.takes_over else 7)
    warnings: list[str] = []
    for document in built:
        control_plane.api.apply(home, document, dry_run=True, warnings=warnings)
    assert warnings == []


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_restricted_pod_security_admits_each_pod(
    control_plane: ControlPlane, home: str, changes: dict[str, Any]
) -> None:
    group = made(control_plane, home, changes)
    control_plane.api.apply(home, service_account(group))
    for built in objects(group):
        if built["kind"] in ("StatefulSet", "Job"):
            template = built["spec"]["template"]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": "one", "namespace": home},
                "spec": template["spec"],
            }
            assert control_plane.api.apply(home, pod, dry_run=True)["metadata"]["uid"]


def test_restricted_pod_security_refuses_a_pod_without_a_security_context(
    control_plane: ControlPlane, home: str
) -> None:
    """Shows that the test above can fail."""
    template = revision(made(control_plane, home, {}), worker_image=IMAGE).template
    del template["spec"]["securityContext"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": home}}
    with pytest.raises(ApiError, match="violates PodSecurity"):
        control_plane.api.apply(home, {**pod, "spec": template["spec"]}, dry_run=True)


@pytest.mark.parametrize("suffix", ["", "a"])
def test_fields_that_the_server_fills_in_do_not_change_the_template(
    control_plane: ControlPlane, home: str, suffix: str
) -> None:
    """Applying the same object again changes nothing, so no pod counts as outdated."""
    group = made(control_plane, home, {**SECURED, **LAID_OVER, **TAKEOVER})
    current = revision(group, worker_image=IMAGE)
    document = statefulset(group, template=current.template, replicas=0, suffix=suffix)
    kept = [control_plane.api.apply(home, document) for _ in range(2)]
    control_plane.api.delete(path_of("apps/v1", "statefulsets", home, document["metadata"]["name"]))
    assert [live["metadata"]["generation"] for live in kept] == [1, 1]
    assert not any(
        differs(with_applied_hash(document), applied_as_marked(live_document, document))
        for live_document in kept
    )


def applied_as_marked(live: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The object as if it had been applied with the mark that turns give it."""
    annotations = with_applied_hash(document)["metadata"]["annotations"]
    return {**live, "metadata": {**live["metadata"], "annotations": annotations}}


def test_workers_of_earlier_versions_get_their_variables_in_order(
    control_plane: ControlPlane, home: str
) -> None:
    """A variable may refer only to earlier ones. The API server merges the new variables into the existing
    StatefulSet, in which an earlier operator set the instance id from the pod's name."""
    group = made(control_plane, home, {})
    before = statefulset(group, template=revision(group, worker_image=IMAGE).template, replicas=0)
    before = copy.deepcopy(before)
    (worker,) = before["spec"]["template"]["spec"]["containers"]
    worker["env"] = [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in (
            (names.INSTANCE_ID_VARIABLE, "metadata.name"),
            (names.HEALTH_HOST_VARIABLE, "status.podIP"),
        )
    ] + [{"name": "HOME", "value": "/tmp"}]
    control_plane.api.apply(home, before)
    now = statefulset(group, template=revision(group, worker_image=IMAGE).template, replicas=0)
    kept = control_plane.api.apply(home, now)
    control_plane.api.delete(path_of("apps/v1", "statefulsets", home, "flights"))
    template = kept["spec"]["template"]
    (worker,) = template["spec"]["containers"]
    assert [variable["name"] for variable in worker["env"]] == [
        variable["name"] for variable in now["spec"]["template"]["spec"]["containers"][0]["env"]
    ]
    labels = {**template["metadata"]["labels"], names.POD_INDEX_LABEL: "3"}
    pod = {"metadata": {"name": "flights-3", "labels": labels}, "status": {"podIP": "10.0.0.1"}}
    assert environment(worker, pod, {})[names.INSTANCE_ID_VARIABLE] == "flights-3"


def test_a_misspelled_field_deep_in_the_template_is_named(control_plane: ControlPlane, home: str) -> None:
    deep = {"containers": [{"name": "worker", "resources": {"limit": {"memory": "1Gi"}}}]}
    group = made(control_plane, home, {"spec/template": {"spec": deep}})
    current = revision(group, worker_image=IMAGE)
    document = statefulset(group, template=current.template, replicas=1)
    with pytest.raises(ApiError, match="limit: field not declared in schema"):
        control_plane.api.apply(home, document, dry_run=True)


def test_the_names_of_a_pods_fields_are_kubernetes_own(control_plane: ControlPlane) -> None:
    """Those of the API server, with what later releases have changed."""
    schemas = control_plane.api.request("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    pod, container = (
        set(schemas[f"io.k8s.api.core.v1.{kind}"]["properties"]) for kind in ("PodSpec", "Container")
    )
    later = {"schedulingGroup", "evictionResponders"}
    assert pod - {"workloadRef"} | later == overlay.POD_FIELDS
    assert container == overlay.CONTAINER_FIELDS
