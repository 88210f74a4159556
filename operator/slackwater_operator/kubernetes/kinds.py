"""The kinds of Kubernetes objects: their API versions and URLs."""

from __future__ import annotations

from urllib.parse import quote

_PLURALS: dict[tuple[str, str], str] = {
    ("v1", "Pod"): "pods",
    ("v1", "Service"): "services",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("v1", "Namespace"): "namespaces",
    ("v1", "Node"): "nodes",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("apps/v1", "ControllerRevision"): "controllerrevisions",
    ("apps/v1", "Deployment"): "deployments",
    ("batch/v1", "Job"): "jobs",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("events.k8s.io/v1", "Event"): "events",
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitors",
    ("slackwater.dev/v1alpha1", "ConsumerGroup"): "consumergroups",
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
    ): "validatingwebhookconfigurations",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "customresourcedefinitions",
}
"""Those that the operator and its tests use; of any other kind the API server is asked."""

_WATCHED = {
    "ConsumerGroup": "slackwater.dev/v1alpha1",
    "Pod": "v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "PodDisruptionBudget": "policy/v1",
    "ServiceAccount": "v1",
}


def api_version_of(kind: str) -> str:
    """The version in which the operator watches a kind."""
    return _WATCHED[kind]


def plural_of(api_version: str, kind: str) -> str | None:
    """The name of the kind in URLs; None: not among the known ones."""
    return _PLURALS.get((api_version, kind))


def resource_of(kind: str) -> str:
    """A watched kind as RBAC names it: `pods`, `jobs.batch`."""
    api_version = _WATCHED[kind]
    group = api_version.rpartition("/")[0]
    return f"{_PLURALS[api_version, kind]}.{group}".removesuffix(".")


def base(api_version: str) -> str:
    """`/api/v1`, `/apis/apps/v1`."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def path(api_version: str, plural: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """The path of an object, or, without a name, of all of them in the namespace (or everywhere)."""
    parts = [base(api_version)]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)
