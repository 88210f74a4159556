"""A real API server takes each object that is built, where Pod Security is restricted."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from slackwater_operator.api.v1alpha1.consumer_group import MAX_NAME, MAX_NAME_TAKEOVER, ConsumerGroup, parse
from slackwater_operator.model import names
from slackwater_operator.planner.objects import differs, marked
from slackwater_operator.specs.preflight_job import preflight_job
from slackwater_operator.specs.statefulset import revision, statefulset
from slackwater_operator.specs.supporting_objects import (
    disruption_budget,
    pod_monitor,
    service,
    service_account,
)
from slackwater_operator.specs.worker_config import takeover_secret
from tests.support.controlplane import CommandFailed, ControlPlane
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


@pytest.fixture(scope="module")
def home(api_server: ControlPlane) -> Iterator[str]:
    api_server.define(POD_MONITORS)
    with api_server.namespace(pod_security="restricted") as name:
        yield name


def made(plane: ControlPlane, home: str, changes: dict[str, Any]) -> ConsumerGroup:
    """The group as the operator reads it: with namespace and uid."""
    plane.kubectl("apply", "-n", home, "-f", "-", stdin=yaml.safe_dump(good(**changes)))
    name = changes.get("metadata/name", "flights")
    return parse(json.loads(plane.kubectl("get", "cg", name, "-n", home, "-o", "json")))


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


def dry_run(plane: ControlPlane, *documents: dict[str, Any]) -> str:
    """Server-side apply as the operator does it; nothing is kept. Warnings are part of what is returned."""
    return plane.kubectl(
        "apply", "--server-side", "--field-manager=slackwater-operator", "--dry-run=server", "-f", "-",
        # JSON, since PyYAML writes a revision such as 7048709e61 without quotes: kubectl reads a number.
        stdin="\n---\n".join(map(json.dumps, documents)), check=True,
    )  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_the_api_server_accepts_each_object(
    api_server: ControlPlane, home: str, changes: dict[str, Any]
) -> None:
    group = made(api_server, home, changes)
    built = objects(group)
    assert len(built) == (9 if group.spec.rollout.takes_over else 7)
    lines = dry_run(api_server, *built).splitlines()
    assert [line for line in lines if not line.endswith("serverside-applied (server dry run)")] == []
    assert len(lines) == len(built)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_restricted_pod_security_admits_each_pod(
    api_server: ControlPlane, home: str, changes: dict[str, Any]
) -> None:
    group = made(api_server, home, changes)
    api_server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(service_account(group)))
    for built in objects(group):
        if built["kind"] in ("StatefulSet", "Job"):
            template = built["spec"]["template"]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": "one", "namespace": home},
                "spec": template["spec"],
            }
            assert "pod/one serverside-applied" in dry_run(api_server, pod)


def test_restricted_pod_security_refuses_a_pod_without_a_security_context(
    api_server: ControlPlane, home: str
) -> None:
    """Shows that the test above can fail."""
    template = revision(made(api_server, home, {}), worker_image=IMAGE).template
    del template["spec"]["securityContext"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": home}}
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        dry_run(api_server, {**pod, "spec": template["spec"]})


def applied(plane: ControlPlane, document: dict[str, Any]) -> dict[str, Any]:
    """Server-side apply as the operator does it."""
    output = plane.kubectl(
        "apply", "--server-side", "--field-manager=slackwater-operator", "-f", "-", "-o", "json",
        stdin=json.dumps(document),
    )  # fmt: skip
    applied: dict[str, Any] = json.loads(output)
    return applied


@pytest.mark.parametrize("suffix", ["", "a"])
def test_fields_that_the_server_fills_in_do_not_change_the_template(
    api_server: ControlPlane, home: str, suffix: str
) -> None:
    """Applying the same object again changes nothing, so no pod counts as outdated."""
    group = made(api_server, home, {**SECURED, **LAID_OVER, **TAKEOVER})
    current = revision(group, worker_image=IMAGE)
    document = statefulset(group, template=current.template, replicas=0, suffix=suffix)
    kept = [applied(api_server, document) for _ in range(2)]
    api_server.kubectl("delete", "statefulset", document["metadata"]["name"], "-n", home)
    assert [live["metadata"]["generation"] for live in kept] == [1, 1]
    assert not any(
        differs(marked(document), applied_as_marked(live_document, document)) for live_document in kept
    )


def applied_as_marked(live: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The object as if it had been applied with the mark that turns give it."""
    annotations = marked(document)["metadata"]["annotations"]
    return {**live, "metadata": {**live["metadata"], "annotations": annotations}}


def test_workers_of_earlier_versions_get_their_variables_in_order(
    api_server: ControlPlane, home: str
) -> None:
    """A variable may refer only to earlier ones. The API server merges the new variables into the existing
    StatefulSet, in which an earlier operator set the instance id from the pod's name."""
    group = made(api_server, home, {})
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
    applied(api_server, before)
    now = statefulset(group, template=revision(group, worker_image=IMAGE).template, replicas=0)
    kept = applied(api_server, now)
    api_server.kubectl("delete", "statefulset", "flights", "-n", home)
    template = kept["spec"]["template"]
    (worker,) = template["spec"]["containers"]
    assert [variable["name"] for variable in worker["env"]] == [
        variable["name"] for variable in now["spec"]["template"]["spec"]["containers"][0]["env"]
    ]
    labels = {**template["metadata"]["labels"], names.POD_INDEX_LABEL: "3"}
    pod = {"metadata": {"name": "flights-3", "labels": labels}, "status": {"podIP": "10.0.0.1"}}
    assert environment(worker, pod, {})[names.INSTANCE_ID_VARIABLE] == "flights-3"


def test_a_misspelled_field_deep_in_the_template_is_named(api_server: ControlPlane, home: str) -> None:
    deep = {"containers": [{"name": "worker", "resources": {"limit": {"memory": "1Gi"}}}]}
    group = made(api_server, home, {"spec/template": {"spec": deep}})
    current = revision(group, worker_image=IMAGE)
    with pytest.raises(CommandFailed, match="limit: field not declared in schema"):
        dry_run(api_server, statefulset(group, template=current.template, replicas=1))
