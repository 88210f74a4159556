"""A real API server takes each object that is built, where Pod Security is restricted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from slackwater_operator.build.disruption_budget import disruption_budget
from slackwater_operator.build.pod_monitor import pod_monitor
from slackwater_operator.build.pod_template import revision
from slackwater_operator.build.preflight_job import preflight_job
from slackwater_operator.build.service import service
from slackwater_operator.build.service_account import service_account
from slackwater_operator.build.statefulset import statefulset
from slackwater_operator.resources import MAX_NAME, ConsumerGroup, parse
from tests.support.bad_resources import good
from tests.support.controlplane import CommandFailed, ControlPlane

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
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with Secrets": SECURED,
    "with a template": {**SECURED, **LAID_OVER},
    "with the longest name": {"metadata/name": "f" * MAX_NAME},
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
    api_server.kubectl("apply", "-f", "-", stdin=POD_MONITORS)
    api_server.kubectl("wait", "--for=condition=Established", "crd/podmonitors.monitoring.coreos.com")
    with api_server.namespace(pod_security="restricted") as name:
        yield name


def made(plane: ControlPlane, home: str, changes: dict[str, Any]) -> ConsumerGroup:
    """The group as the operator reads it: with namespace and uid."""
    plane.kubectl("apply", "-n", home, "-f", "-", stdin=yaml.safe_dump(good(**changes)))
    name = changes.get("metadata/name", "flights")
    return parse(json.loads(plane.kubectl("get", "cg", name, "-n", home, "-o", "json")))


def objects(group: ConsumerGroup) -> list[dict[str, Any]]:
    current = revision(group, worker_image=IMAGE)
    return [
        current.config_map,
        service_account(group),
        service(group),
        statefulset(group, template=current.template, replicas=3),
        disruption_budget(group, max_unavailable=0),
        pod_monitor(group),
        preflight_job(group, current),
    ]


def dry_run(plane: ControlPlane, *documents: dict[str, Any]) -> str:
    """Server-side apply as the operator does it; nothing is kept. Warnings are part of what is returned."""
    return plane.kubectl(
        "apply", "--server-side", "--field-manager=slackwater-operator", "--dry-run=server", "-f", "-",
        stdin=yaml.safe_dump_all(documents), check=True,
    )  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_each_object_is_taken(api_server: ControlPlane, home: str, changes: dict[str, Any]) -> None:
    group = made(api_server, home, changes)
    told = dry_run(api_server, *objects(group)).splitlines()
    assert len([line for line in told if line.endswith("serverside-applied (server dry run)")]) == 7


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_each_pod_may_run_where_pod_security_is_restricted(
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


def test_a_pod_that_is_less_careful_may_not(api_server: ControlPlane, home: str) -> None:
    """The test above would otherwise show nothing."""
    template = revision(made(api_server, home, {}), worker_image=IMAGE).template
    del template["spec"]["securityContext"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": home}}
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        dry_run(api_server, {**pod, "spec": template["spec"]})


def test_what_the_server_fills_in_is_no_other_template(api_server: ControlPlane, home: str) -> None:
    """Applying the same again changes nothing, so that no pod counts as outdated."""
    group = made(api_server, home, {**SECURED, **LAID_OVER})
    current = revision(group, worker_image=IMAGE)
    document = yaml.safe_dump(statefulset(group, template=current.template, replicas=0))
    generations = [
        json.loads(
            api_server.kubectl(
                "apply", "--server-side", "--field-manager=slackwater-operator", "-f", "-", "-o", "json",
                stdin=document,
            )
        )["metadata"]["generation"]
        for _ in range(2)
    ]  # fmt: skip
    api_server.kubectl("delete", "statefulset", group.name, "-n", home)
    assert generations == [1, 1]


def test_a_misspelled_field_deep_in_the_template_is_named(api_server: ControlPlane, home: str) -> None:
    deep = {"containers": [{"name": "worker", "resources": {"limit": {"memory": "1Gi"}}}]}
    group = made(api_server, home, {"spec/template": {"spec": deep}})
    current = revision(group, worker_image=IMAGE)
    with pytest.raises(CommandFailed, match="limit: field not declared in schema"):
        dry_run(api_server, statefulset(group, template=current.template, replicas=1))
