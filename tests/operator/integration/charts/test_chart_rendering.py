"""The chart as helm renders it: whole in each combination of values, strict about wrong ones, documented."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater_operator.cli.operator_options import parse
from slackwater_operator.model import names
from tests.support.operator import chart
from tools import chart as generated

ALL_ON: dict[str, Any] = {
    "networkPolicy.enabled": True,
    "networkPolicy.workers.enabled": True,
    "podMonitor.enabled": True,
    "podMonitor.workers.enabled": True,
    "prometheusRule.enabled": True,
    "dashboards.enabled": True,
    "admissionWebhook.enabled": True,
}
pytestmark = pytest.mark.parts("kubectl")

COMBINATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all on": ALL_ON,
    "two namespaces": {**ALL_ON, "watchNamespaces": ["a", "b"]},
    "one replica": {"replicaCount": 1},
    "no replica": {"replicaCount": 0},
    "without CRD, roles and account": {
        "crds.enabled": False,
        "rbac.create": False,
        "serviceAccount.create": False,
    },
    "CRD not kept": {"crds.keep": False, "crds.annotations": {"owner": "data"}},
    "no aggregated roles, no test": {"rbac.aggregate": False, "tests.enabled": False},
    "images by digest": {"image.digest": "sha256:" + "a" * 64, "workerImage.digest": "sha256:" + "b" * 64},
    "names": {"fullnameOverride": "sw-op", "serviceAccount.name": "watcher", "nameOverride": "water"},
    "everything a pod may have": {
        "imagePullSecrets": [{"name": "pull"}],
        "extraArgs": ["--round-ms=2000"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
        "podLabels": {"team": "data"},
        "podAnnotations": {"note": "x: y"},
        "commonLabels": {"cost": "42"},
        "commonAnnotations": {"argocd.argoproj.io/sync-wave": "-1"},
        "deploymentAnnotations": {"reloader.stakater.com/auto": "true"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "priorityClassName": "system-cluster-critical",
    },
    "policies with peers": {
        "networkPolicy.enabled": True,
        "networkPolicy.workers.enabled": True,
        "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "networkPolicy.apiServer.to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
        "networkPolicy.kafka.to": [{"namespaceSelector": {"matchLabels": {"name": "kafka"}}}],
        "networkPolicy.extraEgress": [{"ports": [{"port": 8443}]}],
        "networkPolicy.workers.extraEgress": [{"ports": [{"port": 15002}]}],
    },
    "a strict webhook": {
        "admissionWebhook.enabled": True,
        "admissionWebhook.failurePolicy": "Fail",
        "admissionWebhook.timeoutSeconds": 30,
        "admissionWebhook.annotations": {"note": "x: y"},
    },
    "a webhook without roles": {"admissionWebhook.enabled": True, "rbac.create": False},
}


LINTED = ("defaults", "all on")
"""The values with no object more than necessary, and those with all templates; the others are rendered."""


@pytest.mark.parametrize("name", COMBINATIONS)
def test_helm_lints_and_renders(name: str) -> None:
    values = COMBINATIONS[name]
    if name in LINTED:
        chart.helm("lint", "--strict", str(chart.CHART), *chart.set_values(values))
    manifests = chart.template(values)
    named = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(set(named)) == len(named)
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert all(isinstance(value, str) for value in labels.values())
        for key, value in values.get("commonLabels", {}).items():
            assert labels[key] == value
        common = values.get("commonAnnotations", {})
        assert common.items() <= manifest["metadata"].get("annotations", {}).items()


CI_VALUES = sorted((chart.CHART / "ci").glob("*-values.yaml"))


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_the_values_of_chart_testing_lint_and_render(path: Path) -> None:
    """chart-testing (`ct lint`, `ct install`) takes `ci/*-values.yaml`; they are not in the package."""
    chart.helm("lint", "--strict", str(chart.CHART), "--values", str(path))
    assert chart.only_manifest(chart.template(files=(path,)), "Deployment")


def test_the_package_has_no_values_of_tests(tmp_path: Path) -> None:
    chart.helm("package", str(chart.CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as opened:
        names = opened.getnames()
    assert "slackwater/values.yaml" in names
    assert not [name for name in names if name.startswith("slackwater/ci")]
    assert CI_VALUES


def test_the_defaults_install_only_the_necessary_objects() -> None:
    kinds = sorted(
        m["kind"] for m in chart.template() if "helm.sh/hook" not in m["metadata"].get("annotations", {})
    )
    assert kinds == [
        "ClusterRole", "ClusterRole", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition",
        "Deployment", "PodDisruptionBudget", "Role", "RoleBinding", "ServiceAccount",
    ]  # fmt: skip


# --- the CustomResourceDefinition


@pytest.mark.parametrize("keep", [True, False])
def test_the_crd_is_the_one_in_crds(keep: bool) -> None:
    installed = chart.only_manifest(chart.template({"crds.keep": keep}), "CustomResourceDefinition")
    text = (chart.ROOT / "crds" / generated.CRD_NAME).read_text(encoding="utf-8")
    source = yaml.load(text, chart.Loader)
    policy = installed["metadata"].pop("annotations", {}).get("helm.sh/resource-policy")
    assert policy == ("keep" if keep else None)
    installed["metadata"].pop("labels")
    source["metadata"].pop("labels", None)
    source["metadata"].pop("annotations", None)
    assert installed == source


# --- rights


def rules(values: Mapping[str, Any], kind: str, name: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = chart.only_manifest(chart.template(values), kind, name)["rules"]
    return result


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group, resource, verb in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def test_a_role_in_each_namespace_grants_what_the_cluster_role_does() -> None:
    everywhere = granted(rules({}, "ClusterRole", "sw-slackwater"))
    manifests = chart.template({"watchNamespaces": ["a", "b"]})
    assert not [m for m in manifests if m["kind"] == "ClusterRoleBinding"]
    for namespace in ("a", "b"):
        inside = [m for m in manifests if m["metadata"].get("namespace") == namespace]
        assert granted(chart.only_manifest(inside, "Role", "sw-slackwater")["rules"]) == everywhere
        binding = chart.only_manifest(inside, "RoleBinding", "sw-slackwater")
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "sw-slackwater", "namespace": chart.NAMESPACE}
        ]


def test_the_roles_are_what_the_design_says() -> None:
    """docs/design/operator.md, "What it may do": read off the code, and tested with the operator there."""
    page = (chart.ROOT / "docs" / "design" / "operator.md").read_text(encoding="utf-8")
    part = page.split("## What it may do", 1)[1].split("\n## ", 1)[0]
    written: set[tuple[str, str, str]] = set()
    for group, resources, verbs in re.findall(
        r"^\| (\S+) \| ([a-z/ ]+) \| ([a-z ]+) \|$", part, re.MULTILINE
    ):
        result = itertools.product(["" if group == "core" else group], resources.split(), verbs.split())
        written |= set(result)
    everywhere = granted(rules({}, "ClusterRole", "sw-slackwater"))
    at_home = granted(rules({}, "Role", "sw-slackwater-lease"))
    assert everywhere | at_home == written
    assert {resource for _, resource, _ in at_home} == {"leases", "events"}


def test_the_operator_gets_no_rights_that_lead_to_more_rights() -> None:
    """No wildcard; no exec; no roles, tokens, nodes or CRDs; the Lease at home only. Of Secrets it can read
    one by its name and make one, but list, change and delete none."""
    everywhere = granted(rules({}, "ClusterRole", "sw-slackwater"))
    assert not [permission for permission in everywhere if "*" in permission]
    resources = {resource for _, resource, _ in everywhere}
    assert not resources & {
        "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "serviceaccounts/token",
        "roles", "rolebindings", "clusterroles", "clusterrolebindings", "nodes", "leases",
        "customresourcedefinitions",
        "mutatingwebhookconfigurations", "validatingwebhookconfigurations", "deployments", "namespaces",
    }  # fmt: skip
    assert {verb for _, resource, verb in everywhere if resource == "secrets"} == {"get", "create"}
    assert {verb for _, resource, verb in everywhere if resource == "pods"} == {
        "get",
        "list",
        "watch",
        "delete",
    }
    assert "deletecollection" not in {verb for _, _, verb in everywhere}


# --- the operator's pod


def pod(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    result: dict[str, Any] = chart.only_manifest(chart.template(values), "Deployment")["spec"]["template"][
        "spec"
    ]
    return result


def test_the_pod_satisfies_the_restricted_standard() -> None:
    for spec in (pod(), chart.only_manifest(chart.template(), "Pod")["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPath" in volume for volume in spec.get("volumes", []))


def test_the_pods_name_no_user_so_that_openshift_can_set_one() -> None:
    for spec in (pod(), chart.only_manifest(chart.template(), "Pod")["spec"]):
        for context in (spec["securityContext"], spec["containers"][0]["securityContext"]):
            assert not context.keys() & {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"}


def test_annotations_of_the_deployment_are_not_its_pods() -> None:
    """A change of the pods' annotations would restart the operator."""
    deployment = chart.only_manifest(chart.template(COMBINATIONS["everything a pod may have"]), "Deployment")
    assert deployment["metadata"]["annotations"] == {
        "argocd.argoproj.io/sync-wave": "-1",
        "reloader.stakater.com/auto": "true",
    }
    assert deployment["spec"]["template"]["metadata"]["annotations"].keys() == {
        "kubectl.kubernetes.io/default-container",
        "note",
    }


@pytest.mark.parametrize(
    ("host", "policy", "surge"), [(False, None, 1), (True, "ClusterFirstWithHostNet", 0)]
)
def test_the_pod_in_the_nodes_network_resolves_services_and_is_replaced_in_its_place(
    host: bool, policy: str | None, surge: int
) -> None:
    """Two pods on one node would want the same ports."""
    spec = chart.only_manifest(chart.template({"hostNetwork": host}), "Deployment")["spec"]
    assert spec["template"]["spec"].get("hostNetwork", False) is host
    assert spec["template"]["spec"].get("dnsPolicy") == policy
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": surge, "maxUnavailable": 1 - surge}


def test_probes_and_monitor_name_the_existing_port() -> None:
    (container,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
    assert ports == {"http": 8080}
    (container,) = pod({"admissionWebhook.enabled": True})["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "http": 8080,
        "webhook": parse([], {}).admission_port,
    }
    monitor = chart.only_manifest(chart.template(ALL_ON), "PodMonitor", "sw-slackwater")
    assert [end["port"] for end in monitor["spec"]["podMetricsEndpoints"]] == ["http"]


def test_arguments_follow_the_values() -> None:
    plain = pod()["containers"][0]["args"]
    assert "--worker-image=slackwater/worker:0.1.0" in plain
    assert not [argument for argument in plain if argument.startswith("--namespace")]
    assert "--no-pod-monitors" not in plain
    assert not [argument for argument in plain if argument.startswith("--traces")]
    values = {
        "watchNamespaces": ["a", "b"],
        "podMonitor.workers.enabled": True,
        "extraArgs": ["--round-ms=2000"],
        "workerImage.repository": "mine/worker",
        "workerImage.tag": "7",
        "logLevel": "debug",
        "prometheusUrl": "http://prometheus.monitoring:9090",
        "tracesEndpoint": "http://otel-collector.observability:4318",
    }
    more = pod(values)["containers"][0]["args"]
    assert {"--namespace=a", "--namespace=b", "--no-pod-monitors", "--worker-image=mine/worker:7",
            "--log-level=debug", "--round-ms=2000", "--prometheus-url=http://prometheus.monitoring:9090",
            "--traces-endpoint=http://otel-collector.observability:4318"} <= set(more)  # fmt: skip


def test_the_operator_reads_its_arguments() -> None:
    parsed = parse(pod({"watchNamespaces": ["a"]})["containers"][0]["args"], {})
    assert parsed.http_host == "", "kubectl port-forward connects to loopback"
    assert parsed.namespaces == ("a",)
    assert parsed.worker_image == "slackwater/worker:0.1.0"
    assert parsed.lease == "sw-slackwater"


@pytest.mark.parametrize(
    ("registry", "repository", "image"),
    [
        ("", "ghcr.io/acme/operator", "ghcr.io/acme/operator"),
        ("mirror.example", "slackwater/operator", "mirror.example/slackwater/operator"),
        ("mirror.example", "operator", "mirror.example/operator"),
        ("mirror.example/cache", "ghcr.io/acme/operator", "mirror.example/cache/acme/operator"),
        ("mirror:5000", "localhost/acme/operator", "mirror:5000/acme/operator"),
        ("mirror:5000", "other:5000/operator", "mirror:5000/operator"),
    ],
)
def test_the_global_registry_replaces_the_images_own(registry: str, repository: str, image: str) -> None:
    values = {
        "global.imageRegistry": registry,
        "image.repository": repository,
        "workerImage.repository": repository,
        "workerImage.digest": "sha256:" + "b" * 64,
    }
    manifests = chart.template(values)
    (operator,) = chart.only_manifest(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    (test,) = chart.only_manifest(manifests, "Pod")["spec"]["containers"]
    assert operator["image"] == test["image"] == f"{image}:0.1.0"
    assert f"--worker-image={image}@sha256:{'b' * 64}" in operator["args"]


def test_the_global_pull_secrets_come_before_the_own_ones() -> None:
    values = {
        "global.imagePullSecrets": ["mirror", {"name": "shared"}],
        "imagePullSecrets": [{"name": "own"}, {"name": "mirror"}],
    }
    manifests = chart.template(values)
    wanted = [{"name": "mirror"}, {"name": "shared"}, {"name": "own"}]
    assert (
        chart.only_manifest(manifests, "Deployment")["spec"]["template"]["spec"]["imagePullSecrets"] == wanted
    )
    assert chart.only_manifest(manifests, "Pod")["spec"]["imagePullSecrets"] == wanted


def test_globals_of_other_charts_are_accepted() -> None:
    assert chart.template({"global.storageClass": "fast"}) == chart.template()


def test_extra_objects_are_templates() -> None:
    metadata = {"name": "{{ .Release.Name }}-a", "namespace": "{{ .Release.Namespace }}"}
    text = 'apiVersion: v1\nkind: Secret\nmetadata: {name: {{ include "slackwater.fullname" . }}-b}\n'
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b: c"}}
    manifests = chart.template({"extraObjects": [plain, text]})
    config = chart.only_manifest(manifests, "ConfigMap", "sw-a")
    assert config == {**plain, "metadata": {"name": "sw-a", "namespace": "slackwater"}}
    assert chart.only_manifest(manifests, "Secret", "sw-slackwater-b")


def test_only_several_replicas_have_a_disruption_budget() -> None:
    assert not [m for m in chart.template({"replicaCount": 1}) if m["kind"] == "PodDisruptionBudget"]
    budget = chart.only_manifest(chart.template(), "PodDisruptionBudget")
    labels = chart.only_manifest(chart.template(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_test_pod_is_not_taken_for_an_operator() -> None:
    manifests = chart.template(ALL_ON)
    selector = chart.only_manifest(manifests, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= chart.only_manifest(manifests, "Pod")["metadata"]["labels"].items()


# --- the admission webhook

WEBHOOK = "sw-slackwater-webhook"


def webhook(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    manifests = chart.template({"admissionWebhook.enabled": True, **(values or {})})
    configuration = chart.only_manifest(manifests, "ValidatingWebhookConfiguration", WEBHOOK)
    (result,) = configuration["webhooks"]
    return dict(result)


def test_without_the_webhook_none_of_its_objects_is_rendered() -> None:
    assert "webhook" not in chart.helm("template", chart.RELEASE, str(chart.CHART)).lower()


def test_the_webhook_gets_changes_of_a_spec_and_an_operator_that_is_away_blocks_nobody() -> None:
    result = webhook()
    assert result["failurePolicy"] == "Ignore"
    assert result["sideEffects"] == "None"
    assert result["timeoutSeconds"] == 5
    (rule,) = result["rules"]
    assert (rule["resources"], rule["operations"]) == (["consumergroups"], ["CREATE", "UPDATE"])
    (condition,) = result["matchConditions"]
    assert condition["expression"] == "request.operation == 'CREATE' || object.spec != oldObject.spec"
    assert "namespaceSelector" not in result
    assert webhook({"admissionWebhook.failurePolicy": "Fail"})["failurePolicy"] == "Fail"


def test_the_webhook_looks_at_the_watched_namespaces_only() -> None:
    (expression,) = webhook({"watchNamespaces": ["a", "b"]})["namespaceSelector"]["matchExpressions"]
    assert expression == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}


def test_the_api_server_finds_the_operators_certificate_and_port() -> None:
    """The certificates are the operator's: neither the caBundle nor the Secret's data is the chart's."""
    manifests = chart.template({"admissionWebhook.enabled": True})
    client = webhook()["clientConfig"]
    assert client == {
        "service": {"name": WEBHOOK, "namespace": chart.NAMESPACE, "path": "/validate", "port": 443}
    }
    service = chart.only_manifest(manifests, "Service", WEBHOOK)["spec"]
    labels = chart.only_manifest(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert service["ports"] == [{"name": "webhook", "port": 443, "targetPort": "webhook", "protocol": "TCP"}]
    assert "data" not in chart.only_manifest(manifests, "Secret", WEBHOOK)
    arguments = pod({"admissionWebhook.enabled": True})["containers"][0]["args"]
    assert f"--admission-webhook={WEBHOOK}" in arguments
    assert parse(arguments, {"POD_NAMESPACE": "slackwater"}).own_namespace == "slackwater"


def test_the_webhooks_rights_are_of_one_secret_and_one_configuration() -> None:
    values = {"admissionWebhook.enabled": True, "watchNamespaces": ["a"]}
    assert rules(values, "Role", WEBHOOK) == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [WEBHOOK], "verbs": ["get", "update"]}
    ]
    assert rules(values, "ClusterRole", WEBHOOK) == [
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["validatingwebhookconfigurations"],
            "resourceNames": [WEBHOOK],
            "verbs": ["get", "patch"],
        }
    ]
    account = {"kind": "ServiceAccount", "name": "sw-slackwater", "namespace": chart.NAMESPACE}
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        assert chart.only_manifest(chart.template(values), kind, WEBHOOK)["subjects"] == [account]
    page = (chart.ROOT / "docs" / "design" / "operator.md").read_text(encoding="utf-8")
    part = page.split("## The admission webhook", 1)[1].split("\n## ", 1)[0]
    for rule in (*rules(values, "Role", WEBHOOK), *rules(values, "ClusterRole", WEBHOOK)):
        assert f"| {rule['resources'][0]} | {' '.join(rule['verbs'])} |" in part


# --- policies


def test_the_policy_lets_the_api_server_reach_the_webhook() -> None:
    values = {**COMBINATIONS["policies with peers"], "admissionWebhook.enabled": True}
    metrics, reviews = chart.only_manifest(chart.template(values), "NetworkPolicy", "sw-slackwater")["spec"][
        "ingress"
    ]
    assert "from" in metrics
    assert reviews == {"ports": [{"port": "webhook", "protocol": "TCP"}]}


def test_the_policy_allows_the_connections_of_the_operator() -> None:
    policy = chart.only_manifest(chart.template(ALL_ON), "NetworkPolicy", "sw-slackwater")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 6443, 9092, 9093, 9094, "health"}
    health = next(rule for rule in policy["egress"] if rule["ports"][0]["port"] == "health")
    (peer,) = health["to"]
    assert peer["namespaceSelector"] == {}
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "slackwater-worker"}


def test_the_workers_policy_is_for_the_pods_of_all_jobs_too() -> None:
    policy = chart.only_manifest(chart.template(ALL_ON), "NetworkPolicy", "sw-slackwater-workers")["spec"]
    (selected,) = policy["podSelector"]["matchExpressions"]
    apps = {names.WORKER_APP, names.PREFLIGHT_APP, names.REWIND_APP, names.MAINTENANCE_APP}
    assert set(selected["values"]) == apps


def test_limited_metrics_are_open_to_the_test_and_the_operator() -> None:
    values = COMBINATIONS["policies with peers"]
    manifests = chart.template(values)
    own = chart.only_manifest(manifests, "NetworkPolicy", "sw-slackwater")["spec"]["ingress"][0]["from"]
    assert {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "slackwater-test"}}} in own
    workers = chart.only_manifest(manifests, "NetworkPolicy", "sw-slackwater-workers")["spec"]["ingress"][0][
        "from"
    ]
    assert any(peer.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/name")
               == "slackwater-operator" for peer in workers)  # fmt: skip


def test_workers_reach_each_other_for_a_takeover_and_nobody_else_inside() -> None:
    """The successor asks its predecessor on the health port, in the same namespace."""
    peer = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "slackwater-worker"}}}
    policy = chart.only_manifest(
        chart.template(COMBINATIONS["policies with peers"]), "NetworkPolicy", "sw-slackwater-workers"
    )["spec"]
    (ingress,) = policy["ingress"]
    assert ingress["ports"] == [{"port": "health", "protocol": "TCP"}]
    assert peer in ingress["from"]
    (egress,) = [rule for rule in policy["egress"] if rule["ports"][0]["port"] == "health"]
    assert egress == {"ports": [{"port": "health", "protocol": "TCP"}], "to": [peer]}
    # Without a limit of who may ask for metrics the port is open to all, so to workers, too.
    policy = chart.only_manifest(chart.template(ALL_ON), "NetworkPolicy", "sw-slackwater-workers")["spec"]
    assert "from" not in policy["ingress"][0]
    assert [rule["to"] for rule in policy["egress"] if rule["ports"][0]["port"] == "health"] == [[peer]]


# --- dashboards


def test_dashboards_carry_the_sidecars_label_and_are_whole() -> None:
    values = {"dashboards.enabled": True, "dashboards.label": "board", "dashboards.labelValue": "yes",
              "dashboards.namespace": "grafana", "dashboards.annotations": {"folder": "Kafka"}}  # fmt: skip
    maps = [m for m in chart.template(values) if m["kind"] == "ConfigMap"]
    stored = {path.name: path for path in (chart.CHART / "dashboards").glob("*.json")}
    assert len(maps) == len(stored) == 2
    for config_map in maps:
        assert config_map["metadata"]["labels"]["board"] == "yes"
        assert config_map["metadata"]["namespace"] == "grafana"
        assert config_map["metadata"]["annotations"] == {"folder": "Kafka"}
        ((name, text),) = config_map["data"].items()
        assert json.loads(text) == json.loads(
            stored[name.removeprefix("slackwater-")].read_text(encoding="utf-8")
        )
    for result in chart.template({"dashboards.enabled": True}):
        if result["kind"] == "ConfigMap":
            assert result["metadata"]["labels"]["grafana_dashboard"] == "1"


# --- helm test


@pytest.mark.parametrize(
    ("values", "istio"),
    [({}, "false"), ({"tests.podAnnotations": {"sidecar.istio.io/inject": "true"}}, "true")],
)
def test_injectors_add_nothing_to_the_pod_of_helm_test_unless_asked(
    values: dict[str, Any], istio: str
) -> None:
    """A sidecar that is not native would keep it running, and helm waits for its end."""
    pod = chart.only_manifest(chart.template(values), "Pod", "sw-slackwater-test")
    annotations = pod["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "test"
    assert annotations["sidecar.istio.io/inject"] == istio
    assert annotations["linkerd.io/inject"] == "disabled"


# --- values

REFUSED_BY_SCHEMA: list[tuple[dict[str, Any], str]] = [
    ({"replicaCout": 2}, "'': additional properties 'replicaCout' not allowed"),
    ({"replicaCount": -1}, "'/replicaCount'"),
    ({"replicaCount": "2"}, "'/replicaCount'"),
    ({"image.name": "x"}, "'/image': additional properties 'name' not allowed"),
    ({"image.tag": "a b"}, "'/image/tag'"),
    ({"image.digest": "abc"}, "'/image/digest'"),
    ({"image.pullPolicy": "Sometimes"}, "'/image/pullPolicy'"),
    ({"imagePullSecrets": ["pull"]}, "'/imagePullSecrets/0'"),
    ({"watchNamespaces": "a"}, "'/watchNamespaces'"),
    ({"watchNamespaces": ["A_b"]}, "'/watchNamespaces/0'"),
    ({"watchNamespaces": ["a", "a"]}, "'/watchNamespaces'"),
    ({"logLevel": "loud"}, "'/logLevel'"),
    ({"extraArgs[0]": "verbose"}, "'/extraArgs/0'"),
    ({"extraArgs[1]": "--lease=another"}, "'/extraArgs/1'"),
    ({"extraArgs[2]": "--leas=another"}, "'/extraArgs/2'"),
    ({"extraArgs[3]": "--no-leader-election"}, "'/extraArgs/3'"),
    ({"extraArgs[4]": "--http-port=9999"}, "'/extraArgs/4'"),
    ({"extraArgs[5]": "--admission-webhook=other"}, "'/extraArgs/5'"),
    ({"image": None}, "'': missing property 'image'"),
    ({"workerImage": None}, "'': missing property 'workerImage'"),
    ({"image.repository": None}, "'/image': missing property 'repository'"),
    ({"resources.request.cpu": 1}, "'/resources': additional properties 'request' not allowed"),
    ({"podLabels": {"a": 1}}, "'/podLabels/a'"),
    ({"podDisruptionBudget.maxUnavailable": "half"}, "'/podDisruptionBudget/maxUnavailable'"),
    ({"podDisruptionBudget.maxUnavailable": 0}, "'/podDisruptionBudget/maxUnavailable'"),
    ({"podDisruptionBudget.maxUnavailable": "0%"}, "'/podDisruptionBudget/maxUnavailable'"),
    ({"podDisruptionBudget.maxUnavailable": "100%"}, "'/podDisruptionBudget/maxUnavailable'"),
    ({"crds.keep": "yes"}, "'/crds/keep'"),
    ({"tracesEndpoint": "otel-collector:4317"}, "'/tracesEndpoint'"),
    ({"networkPolicy.kafka.ports": [0]}, "'/networkPolicy/kafka/ports/0'"),
    ({"networkPolicy.kafka.ports": []}, "'/networkPolicy/kafka/ports'"),
    ({"podMonitor.interval": 15}, "'/podMonitor/interval'"),
    ({"prometheusRule.thresholds.restartBudget": 70}, "'/prometheusRule/thresholds/restartBudget'"),
    ({"prometheusRule.runbookUrl": "https://a.example/b#c"}, "'/prometheusRule/runbookUrl'"),
    ({"prometheusRule.runbookUrl": "operate.md"}, "'/prometheusRule/runbookUrl'"),
    ({"admissionWebhook.failurePolicy": "Maybe"}, "'/admissionWebhook/failurePolicy'"),
    ({"admissionWebhook.timeoutSeconds": 31}, "'/admissionWebhook/timeoutSeconds'"),
    ({"admissionWebhook.enable": True}, "'/admissionWebhook': additional properties 'enable' not allowed"),
    ({"terminationGracePeriodSeconds": 0}, "'/terminationGracePeriodSeconds'"),
    ({"dashboards.labelValue": 1}, "'/dashboards/labelValue'"),
    ({"global.imageRegistry": "mirror.example/"}, "'/global/imageRegistry'"),
    ({"global.imagePullSecrets": [{"secret": "a"}]}, "'/global/imagePullSecrets/0'"),
    ({"extraObjects": {"kind": "Secret"}}, "'/extraObjects'"),
    ({"extraObjects": [{}]}, "'/extraObjects/0'"),
]
REFUSED_BY_TEMPLATES: list[tuple[dict[str, Any], str]] = [
    (
        {"podDisruptionBudget.maxUnavailable": 2},
        "podDisruptionBudget.maxUnavailable: 2 lets a drain stop all 2",
    ),
    ({"podDisruptionBudget.maxUnavailable": "51%"}, "podDisruptionBudget.maxUnavailable: 51% lets a drain"),
    ({"podDisruptionBudget.maxUnavailable": 3, "replicaCount": 3}, "stop all 3 operators"),
    (
        {"podMonitor.scrapeTimeout": "16s"},
        "podMonitor.scrapeTimeout: 16s is longer than podMonitor.interval, 15s",
    ),
    ({"podMonitor.scrapeTimeout": "1m1s", "podMonitor.interval": "1m"}, "1m1s is longer than"),
    (
        {"prometheusRule.enabled": True, "prometheusRule.disabled": ["SlackwaterFoo"]},
        "there is no alert SlackwaterFoo",
    ),
]


def refused(values: Mapping[str, Any]) -> str:
    with pytest.raises(chart.HelmFailed) as failed:
        chart.template(values)
    return str(failed.value)


def test_wrong_values_are_refused_by_name() -> None:
    """helm names all that the schema refuses, so cases of different values share a call."""
    left = REFUSED_BY_SCHEMA
    while left:
        together: list[tuple[dict[str, Any], str]] = []
        others: list[tuple[dict[str, Any], str]] = []
        for case in left:
            (path,) = case[0]
            paths = [other for values, _ in together for other in values]
            clash = any(
                f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in paths
            )
            (others if clash else together).append(case)
        message = refused({path: value for values, _ in together for path, value in values.items()})
        for values, named in together:
            assert f"at {named}" in message, values
        left = others


@pytest.mark.parametrize(("values", "named"), REFUSED_BY_TEMPLATES)
def test_values_that_contradict_each_other_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    assert named in refused(values)


def test_names_of_other_charts_are_refused_with_ours() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
    (pattern,) = schema["patternProperties"]
    names = re.findall(r"\w+", pattern)
    assert "serviceMonitor" in names
    for name in names:
        said = re.search(rf"{name}: this chart's value is (\w+)", refused({f"{name}.enabled": True}))
        assert said is not None, name
        assert said[1] in DEFAULTS, name


ACCEPTED: list[dict[str, Any]] = [
    {"podDisruptionBudget.maxUnavailable": "50%", "podMonitor.scrapeTimeout": "15s"},
    {
        "podDisruptionBudget.maxUnavailable": 2,
        "replicaCount": 3,
        "podMonitor.scrapeTimeout": "90000ms",
        "podMonitor.interval": "1m30s",
    },
    {"podDisruptionBudget.maxUnavailable": 2, "podDisruptionBudget.enabled": False},
]


@pytest.mark.parametrize("values", ACCEPTED, ids=json.dumps)
def test_values_at_a_limit_are_accepted(values: dict[str, Any]) -> None:
    assert chart.template(values)


def test_a_part_that_a_user_sets_to_null_is_left_out() -> None:
    """`resources.limits: null` is how helm's users drop a default."""
    (container,) = pod({"resources.limits": None})["containers"]
    assert "limits" not in container["resources"]


def older(folder: Path, values: Mapping[str, Any]) -> Path:
    """This chart as `helm upgrade --reuse-values` renders it: with the values of an older release's chart."""
    shutil.copytree(chart.CHART, folder)
    (folder / "values.yaml").write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    return folder


@cache
def rendered(folder: Path) -> str:
    """The chart in the folder with everything on."""
    here = ("--namespace", chart.NAMESPACE, *chart.set_values(ALL_ON))
    return chart.helm("template", chart.RELEASE, str(folder), *here)


DEFAULTS: dict[str, Any] = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
ALWAYS_THERE = {"image", "workerImage", *generated.REMOVABLE}
"""What the schema demands, and what is left out with its default."""


SHOWN = ("global", "prometheusUrl")


@pytest.mark.parametrize(
    "missing",
    [
        "all",
        *SHOWN,
        *(
            pytest.param(key, marks=pytest.mark.long)
            for key in DEFAULTS
            if key not in ALWAYS_THERE and key not in SHOWN
        ),
    ],
)
def test_values_that_an_older_chart_lacked_have_their_defaults(missing: str, tmp_path: Path) -> None:
    if missing == "all":
        empty = {key: {} for key, value in DEFAULTS.items() if isinstance(value, dict)}
        values = {**empty, **{key: DEFAULTS[key] for key in ALWAYS_THERE}}
    else:
        values = {key: value for key, value in DEFAULTS.items() if key != missing}
    made = older(tmp_path / "slackwater", values)
    assert rendered(made) == rendered(chart.CHART)


@pytest.mark.parametrize("key", sorted(generated.REMOVABLE))
def test_a_pod_section_that_an_older_chart_lacked_is_left_out(key: str, tmp_path: Path) -> None:
    made = older(tmp_path / "slackwater", {name: value for name, value in DEFAULTS.items() if name != key})
    assert chart.helm("template", chart.RELEASE, str(made), "--namespace", chart.NAMESPACE)


def test_notes_say_what_to_do_next() -> None:
    values = {"crds.enabled": False, "replicaCount": 1, "prometheusRule.enabled": True}
    place = ("install", "sw", str(chart.CHART), "--dry-run=client", "--namespace", "x")
    said = chart.helm(*place, *chart.set_values(values))
    assert "helm test sw --namespace x" in said
    assert "rollout status deployment/sw-slackwater" in said
    assert "crds.enabled=false" in said
    assert "With one replica" in said
    assert "podMonitor.enabled is false" in said
    assert "helm uninstall" not in said


def test_notes_say_which_groups_an_uninstall_without_their_definition_keeps() -> None:
    place = ("install", "sw", str(chart.CHART), "--dry-run=client", "--namespace", "x")
    assert "spec.deletionPolicy Delete" in chart.helm(*place, *chart.set_values({"crds.keep": False}))
