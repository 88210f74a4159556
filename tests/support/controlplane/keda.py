"""KEDA as its own manifests install it: operator and metrics adapter, each in a pod, without the webhooks.

Built from the Go module that ``tools/keda/go.mod`` pins; manifests and definitions are that module's. The
Deployments are changed (:func:`_operator`, :func:`_adapter`), since pods here have an address, but neither
ports of their own nor names. Its certificates are its own, by ``--enable-cert-rotation``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import yaml

from tests.support.controlplane import build
from tests.support.controlplane.aggregated import registered
from tests.support.controlplane.api import ApiError, Json, path_of, until
from tests.support.controlplane.cluster import ControlPlane
from tests.support.waiting import HANG_S

API_VERSION = "keda.sh/v1alpha1"
OPERATOR, ADAPTER = "keda-operator", "keda-metrics-apiserver"
CERTIFICATES = "kedaorg-certs"


class Keda:
    """A running KEDA. Made by :func:`keda`."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._namespace = namespace

    def log(self, part: str) -> str:
        """What :data:`OPERATOR` or :data:`ADAPTER` has written."""
        pods = (pod["metadata"]["name"] for pod in self._pods(part))
        return "".join(self._plane.pods.logs(self._namespace, pod) for pod in pods)

    def address(self) -> str | None:
        """The operator's pod's, as soon as it has one."""
        return next((pod.get("status", {}).get("podIP") for pod in self._pods(OPERATOR)), None)

    def _pods(self, part: str) -> list[Json]:
        return self._plane.api.list(path_of("v1", "pods", self._namespace), label_selector=f"app={part}")


@contextlib.contextmanager
def keda(plane: ControlPlane, *, may: Sequence[Json] | None = None) -> Iterator[Keda]:
    """Installs KEDA into a namespace of its own; its metrics are served when this begins, and all of it is
    gone when this ends. There is one in a control plane, as in a cluster.

    ``may``: RBAC rules in place of those by which it reads every kind and writes every scale; None: those.
    Raises :class:`build.ToolsUnavailable`, and TimeoutError when it does not start.
    """
    operator, adapter = build.keda()
    with plane.namespace() as namespace:
        parts = _by_kind(_manifests(plane, namespace))
        [service] = parts.pop("APIService")
        definitions, deployments = parts.pop("CustomResourceDefinition"), parts.pop("Deployment")
        if may is not None:
            _narrow(parts["ClusterRole"], may)
        rest = yaml.safe_dump_all([document for kind in parts.values() for document in kind])
        running = Keda(plane, namespace)
        try:
            plane.define(yaml.safe_dump_all(definitions))
            plane.kubectl("apply", "-f", "-", stdin=rest)
            collection = path_of("apps/v1", "deployments", namespace)
            plane.api.create(collection, _operator(_named(deployments, OPERATOR), str(operator)))
            address = until(running.address, "the address of KEDA's operator", HANG_S)
            until(lambda: _certified(plane, namespace), "KEDA's certificates", HANG_S)
            host = f"{OPERATOR}.{namespace}.svc"
            plane.api.create(collection, _adapter(_named(deployments, ADAPTER), str(adapter), address, host))
            with registered(plane, service):
                yield running
        finally:
            _let_go(plane)
            plane.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=rest)
            plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(definitions))


def _manifests(plane: ControlPlane, namespace: str) -> Iterator[Json]:
    """What KEDA's users without its webhooks apply, in ``namespace`` instead of "keda"."""
    for document in yaml.safe_load_all(
        plane.kubectl("kustomize", str(build.keda_source() / "config" / "minimal"))
    ):
        if document["kind"] == "Namespace":
            continue
        places = [document["metadata"], *document.get("subjects", [])]
        if document["kind"] == "APIService":
            places.append(document["spec"]["service"])
        for place in places:
            if place.get("namespace") == "keda":
                place["namespace"] = namespace
        yield document


def _by_kind(manifests: Iterator[Json]) -> dict[str, list[Json]]:
    by_kind: dict[str, list[Json]] = {}
    for manifest in manifests:
        by_kind.setdefault(manifest["kind"], []).append(manifest)
    return by_kind


def _named(manifests: Sequence[Json], name: str) -> Json:
    return next(manifest for manifest in manifests if manifest["metadata"]["name"] == name)


def _narrow(roles: Sequence[Json], may: Sequence[Json]) -> None:
    role = _named(roles, OPERATOR)
    kept = [rule for rule in role["rules"] if rule["apiGroups"] != ["*"]]
    assert len(kept) == len(role["rules"]) - 2, "it reads everything, and writes every scale"
    role["rules"] = [*kept, *may]


def _operator(deployment: Json, program: str) -> Json:
    """It listens at its pod's address: with 0.0.0.0 two of them on this machine would clash."""
    return _run_by(
        deployment, program, "--metrics-bind-address=$(POD_IP):8080",
        "--health-probe-bind-address=$(POD_IP):8081", "--metrics-service-bind-address=$(POD_IP):9666",
    )  # fmt: skip


def _adapter(deployment: Json, program: str, address: str, host: str) -> Json:
    """The same, and it is told where the operator is, whose name nobody resolves here; the certificate is
    that name's all the same."""
    return _run_by(
        deployment, program, "--bind-address=$(POD_IP)", "--port=0",
        f"--metrics-service-address={address}:9666", f"--metrics-service-grpc-authority={host}",
    )  # fmt: skip


def _run_by(deployment: Json, program: str, *arguments: str) -> Json:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    container["command"] = [program]
    container["args"] += arguments
    container["env"].append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    return deployment


def _certified(plane: ControlPlane, namespace: str) -> bool:
    secret = plane.api.get(path_of("v1", "secrets", namespace, CERTIFICATES)) or {}
    return {"ca.crt", "tls.crt", "tls.key"} <= set(secret.get("data") or {})


def _let_go(plane: ControlPlane) -> None:
    """Without KEDA nobody takes its finalizers away."""
    try:
        left = plane.api.list(path_of(API_VERSION, "scaledobjects"))
    except ApiError as exc:
        if exc.status != 404:
            raise
        return
    for expression in left:
        path = path_of(
            API_VERSION, "scaledobjects", expression["metadata"]["namespace"], expression["metadata"]["name"]
        )
        plane.api.delete(path)
        with contextlib.suppress(ApiError):  # KEDA has been as quick
            plane.api.patch(path, {"metadata": {"finalizers": None}})
