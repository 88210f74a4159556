"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager.

Pods run as processes of this machine by :mod:`tests.support.controlplane.kubelet`. Everything ends with
the process that started it, however that one ends.

As a program it serves until Ctrl-C and says where its kubeconfig is::

    python -m tests.support.controlplane.cluster [DIRECTORY]
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.controlplane import build
from tests.support.controlplane.api import MERGE_PATCH, Api, ApiError, Json, path_of, until
from tests.support.controlplane.certificates import Authority, KeyPair, service_account_keys
from tests.support.controlplane.images import ImageRegistry
from tests.support.controlplane.pods import PodProcesses
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.waiting import HANG_S

ISSUER = "https://kubernetes.default.svc"
SERVICE_RANGE = "10.96.0.0/24"
CONTROLLERS = (
    "statefulset", "replicaset", "deployment", "job", "daemonset", "garbage-collector", "namespace",
    "serviceaccount", "endpointslice", "disruption", "pod-garbage-collector",
    "root-ca-certificate-publisher", "resourcequota", "clusterrole-aggregation",
    "horizontal-pod-autoscaler",
)  # fmt: skip
"""No node-lifecycle: nobody sends heartbeats for the nodes."""
FRONT_PROXY = "front-proxy-client"
"""Who the API server is to the servers of APIServices (the common name of its certificate)."""
LAZY = {"GOGC": "400", "GOMAXPROCS": "1"}
"""Of the environment of Go's programs, which takes a third of their CPU time away: the collector lets memory
grow more, and no second thread looks for work."""

_ATTEMPTS = 3


class ControlPlaneUnavailable(RuntimeError):
    """The control plane cannot be started here; the message says what is missing or went wrong."""


@dataclass(frozen=True)
class PodNetwork:
    """The network of pods that have addresses of their own, on a real node.

    ``address``: this machine's in it, where the API server listens. ``services``: the range of the Services'
    addresses. Then nodes authenticate as such, and all controllers run.
    """

    address: str
    services: str

    @property
    def api_service(self) -> str:
        """The address of the Service ``kubernetes``: the first of the range."""
        return str(ipaddress.ip_network(self.services)[1])


class ControlPlane:
    """A running control plane; a context manager. Made by :meth:`start`.

    ``kubeconfig``: an administrator's. ``url``, ``ca``: of the API server. ``api``: an administrator's
    client. ``authority``: issues certificates; ``front_proxy_authority``: only the API server's, as a client
    of APIServices' servers. ``images``: what a pod's image runs as. ``pods``: the pods' processes, their
    signals and logs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: Sequence[str] = ("node-1",),
        back_off_s: float = 10.0,
        network: PodNetwork | None = None,
    ) -> None:
        self._directory = directory
        self._nodes = tuple(nodes)
        self._network = network
        self._host = "127.0.0.1" if network is None else network.address
        self._back_off_s = back_off_s
        self._running: dict[str, ServerProcess] = {}
        self._defined: dict[Path | str, dict[str, tuple[str, int] | None]] = {}
        self._etcd_port = self._etcd_peer_port = self._port = 0

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        nodes: Sequence[str] = ("node-1",),
        back_off_s: float = 10.0,
        network: PodNetwork | None = None,
    ) -> ControlPlane:
        """Starts everything, about 5 s; its files go to ``directory`` (made if it is not there).

        ``nodes``: names of the nodes that run pods; none: no kubelet, pods stay Pending. ``back_off_s``:
        a container's first pause after it failed twice; Kubernetes' is 10 s. ``network``: that of a real
        node's pods; without it the API server is on loopback. Raises :class:`ControlPlaneUnavailable` and
        :class:`build.ToolsUnavailable`.
        """
        plane = cls(directory, nodes=nodes, back_off_s=back_off_s, network=network)
        try:
            plane._start()
        except BaseException:
            plane.close()
            raise
        return plane

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process, the pods' first."""
        if (kubelet := self._running.pop("kubelet", None)) is not None:
            kubelet.send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                kubelet.wait(HANG_S)
            kubelet.kill()
        for name in ("controller-manager", "apiserver", "etcd"):
            if (owned := self._running.pop(name, None)) is not None:
                owned.kill()

    # --- what tests do with it --------------------------------------------------------------------

    @property
    def url(self) -> str:
        """``https://HOST:PORT``."""
        return f"https://{self._host}:{self._port}"

    @property
    def host_port(self) -> tuple[str, int]:
        """Where the API server listens."""
        return (self._host, self._port)

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the parts: etcd, apiserver, controller-manager, kubelet."""
        return {name: owned.pid for name, owned in self._running.items() if owned.running()}

    def log(self, part: str) -> str:
        """What a part (see :attr:`pids`) has written."""
        return (self._directory / f"{part}.log").read_text(errors="replace")

    def stop_apiserver(self) -> None:
        """SIGKILL: with watches open, SIGTERM takes it over ten seconds."""
        self._running.pop("apiserver").kill()

    def start_apiserver(self) -> None:
        """Starts it again on its port; returns when it serves (about 2.5 s)."""
        self._launch_apiserver()
        self._await_ready()

    def kubeconfig_for(
        self,
        namespace: str,
        service_account: str,
        *,
        rules: Sequence[Mapping[str, Any]] | None = None,
        name: str = "",
    ) -> Path:
        """A kubeconfig with a token of that ServiceAccount (made if it is not there), valid for a day.

        ``rules``: what a ClusterRole made for it allows everywhere, and does when this returns; None:
        nothing is bound, the chart's or the test's own roles decide.
        """
        self._ensure(path_of("v1", "serviceaccounts", namespace), {"metadata": {"name": service_account}})
        if rules is not None:
            self._allow(namespace, service_account, rules)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        token = self.api.create(
            path_of("v1", "serviceaccounts", namespace, service_account, "token"),
            {**request, "spec": {"expirationSeconds": 24 * 3600}},
        )["status"]["token"]
        path = self._directory / f"kubeconfig-{name or f'{namespace}-{service_account}'}"
        return self._write_kubeconfig(path, {"token": token}, namespace)

    def api_for(self, namespace: str, service_account: str) -> Api:
        """A client that is that ServiceAccount."""
        token = json.loads(self.kubeconfig_for(namespace, service_account).read_text())
        return Api(self.url, self.ca, token=token["users"][0]["user"]["token"])

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True, timeout_s: float = HANG_S) -> str:
        """Runs the real kubectl as the administrator; its stdout (with ``check=False`` stderr, too).

        Raises :class:`CommandFailed`, with what it printed, unless ``check`` is False.
        """
        return self._run(build.kubectl(), arguments, stdin, check, timeout_s)

    def helm(self, *arguments: str, stdin: str = "", check: bool = True, timeout_s: float = HANG_S) -> str:
        """Runs the real helm as the administrator; as :meth:`kubectl`."""
        return self._run(build.helm(), arguments, stdin, check, timeout_s)

    def define(self, definitions: Path | str = build.ROOT / "crds") -> list[str]:
        """Applies CustomResourceDefinitions (a file, a folder, or YAML) and awaits that they are served.

        Returns their names. Those that are there since it was last called are not applied again: the API
        server would compile all their rules.
        """
        defined = self._defined.get(definitions, {})
        if not defined or any(self._generation(name) != kept for name, kept in defined.items()):
            source, stdin = (str(definitions), "") if isinstance(definitions, Path) else ("-", definitions)
            command = ("apply", "--server-side", "--force-conflicts", "-o", "name", "-f", source)
            names = [name.partition("/")[2] for name in self.kubectl(*command, stdin=stdin).split()]
            defined = self._defined[definitions] = {name: self._generation(name) for name in names}
        for name in defined:
            self.await_definition(name)
        return list(defined)

    def _generation(self, definition: str) -> tuple[str, int] | None:
        """Which object a CustomResourceDefinition is, and which of its specs it has; None: there is none."""
        path = path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", name=definition)
        document = self.api.get(path)
        # One that is being deleted is none.
        if document is None or "deletionTimestamp" in document["metadata"]:
            return None
        return document["metadata"]["uid"], document["metadata"]["generation"]

    def undefine(self, name: str) -> None:
        """Takes a CustomResourceDefinition (``plural.group``) and its objects away, and awaits their end."""
        path = path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", name=name)
        self.api.delete(path)
        until(lambda: self.api.get(path) is None, f"{name} is gone")

    def await_definition(self, name: str) -> None:
        """Returns when the objects of that CustomResourceDefinition (``plural.group``) are served.

        Not by `kubectl wait`: it fails on a definition whose ``status.conditions`` are still null.
        """
        plural, _, group = name.partition(".")
        path = path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", name=name)

        def served() -> bool:
            definition = self.api.get(path)
            if definition is None:
                return False
            conditions = definition.get("status", {}).get("conditions") or []
            if not any(
                (condition["type"], condition["status"]) == ("Established", "True")
                for condition in conditions
            ):
                return False
            # Established comes a moment before the address answers and discovery lists it.
            versions = [
                f"{group}/{version['name']}"
                for version in definition["spec"]["versions"]
                if version["served"]
            ]
            return all(self._lists(version, plural) for version in versions)

        until(served, f"{name} is served")

    def _lists(self, version: str, plural: str) -> bool:
        resources = self.api.get(f"/apis/{version}")
        return (
            resources is not None
            and plural in [resource["name"] for resource in resources["resources"]]
            and self.api.get(path_of(version, plural)) is not None
        )

    def environment(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """The environment for a command that shall talk to this control plane and to no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HELM_")}
        home = self._directory / "home"
        return {
            **kept,
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "KUBECACHEDIR": str(home / "kube"),
            "HELM_CACHE_HOME": str(home / "helm-cache"),
            "HELM_CONFIG_HOME": str(home / "helm-config"),
            "HELM_DATA_HOME": str(home / "helm-data"),
        }

    @contextlib.contextmanager
    def namespace(self, *, pod_security: str = "restricted") -> Iterator[str]:
        """A fresh namespace, deleted afterwards with everything in it."""
        name = f"test-{secrets.token_hex(4)}"
        labels = {"pod-security.kubernetes.io/enforce": pod_security}
        self.api.create(path_of("v1", "namespaces"), {"metadata": {"name": name, "labels": labels}})
        until(
            lambda: self.api.get(path_of("v1", "serviceaccounts", name, "default")),
            f"the default ServiceAccount of {name}",
        )
        try:
            yield name
        finally:
            self._delete_namespace(name)

    # --- starting ---------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._nodes and os.geteuid() != 0:
            raise ControlPlaneUnavailable(
                "the process kubelet mounts volumes and adds a route, which only root may:"
                " run the tests as root (sudo make e2e, or in a container)"
            )
        self._programs = build.binaries()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._make_credentials()
        for attempt in range(_ATTEMPTS):
            try:
                self._start_servers()
                break
            except ControlPlaneUnavailable:
                # Somebody may have taken a port between the choice and the start, for one.
                if attempt == _ATTEMPTS - 1:
                    raise
                self.close()
        self._launch_controller_manager()
        if self._nodes:
            self._launch_kubelet()
        until(
            lambda: self.api.get(path_of("v1", "serviceaccounts", "default", "default")),
            "the first ServiceAccount",
        )
        self._await_nodes()

    def _make_credentials(self) -> None:
        folder = self._directory / "pki"
        (folder / "front-proxy").mkdir(parents=True, exist_ok=True)
        authority = self.authority = Authority(folder)
        self.ca = authority.certificate
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        network = self._network
        addresses = [] if network is None else [network.address, network.api_service]
        self._serving = authority.issue("kube-apiserver", server_names=names, server_addresses=addresses)
        self._admin = authority.issue("test-admin", ["system:masters"])
        self._manager = authority.issue("system:kube-controller-manager")
        self._kubelet = authority.issue("test-kubelet", ["system:masters"])
        proxies = self.front_proxy_authority = Authority(folder / "front-proxy")
        self._front_proxy = proxies.issue(FRONT_PROXY)
        self._tokens = service_account_keys(folder)

    def _start_servers(self) -> None:
        self._etcd_port, self._etcd_peer_port, self._port = reserve_ports(3)
        self.kubeconfig = self._write_kubeconfig(self._directory / "kubeconfig", _user(self._admin))
        self._write_kubeconfig(self._directory / "kubeconfig-manager", _user(self._manager))
        self._write_kubeconfig(self._directory / "kubeconfig-kubelet", _user(self._kubelet))
        self.api = Api(self.url, self.ca, certificate=self._admin.certificate, key=self._admin.key)
        self.images = ImageRegistry(self._directory / "images.json")
        self.pods = PodProcesses(self._directory / "kubelet")
        self._launch_etcd()
        self._launch_apiserver()
        self._await_ready()

    def _launch(self, part: str, command: Sequence[str], **environment: str) -> None:
        self._running[part] = ServerProcess(
            part, list(command), env={**_plain_environment(), **LAZY, **environment}, cwd=self._directory,
            log=self._directory / f"{part}.log", failure=ControlPlaneUnavailable,
        )  # fmt: skip

    def _launch_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._etcd_peer_port}"
        data = tempfile.mkdtemp(dir=self._directory, prefix="etcd-")
        self._launch(
            "etcd",
            [
                str(self._programs.etcd), f"--data-dir={data}",
                f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}", "--unsafe-no-fsync", "--log-level=warn",
            ],
        )  # fmt: skip

    def _launch_apiserver(self) -> None:
        self._launch(
            "apiserver",
            [
                str(self._programs.apiserver),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                f"--bind-address={self._host}", f"--secure-port={self._port}",
                f"--tls-cert-file={self._serving.certificate}", f"--tls-private-key-file={self._serving.key}",
                f"--client-ca-file={self.ca}",
                f"--service-account-issuer={ISSUER}",
                f"--service-account-key-file={self._tokens.certificate}",
                f"--service-account-signing-key-file={self._tokens.key}",
                *self._network_arguments(),
                f"--kubelet-client-certificate={self._admin.certificate}",
                f"--kubelet-client-key={self._admin.key}", f"--kubelet-certificate-authority={self.ca}",
                # An APIService's server is a pod: reached at its own address, since no Service has one here.
                "--enable-aggregator-routing=true",
                f"--proxy-client-cert-file={self._front_proxy.certificate}",
                f"--proxy-client-key-file={self._front_proxy.key}",
                # They read this in kube-system/extension-apiserver-authentication: who it asks for.
                f"--requestheader-client-ca-file={self.front_proxy_authority.certificate}",
                f"--requestheader-allowed-names={FRONT_PROXY}",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            ],
        )  # fmt: skip

    def _network_arguments(self) -> list[str]:
        network = self._network
        if network is None:
            return [
                "--authorization-mode=RBAC",
                f"--service-cluster-ip-range={SERVICE_RANGE}",
                "--endpoint-reconciler-type=none",
            ]
        return [
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={network.services}",
            f"--advertise-address={network.address}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _launch_controller_manager(self) -> None:
        kept = "*" if self._network else ",".join(f"{name}-controller" for name in CONTROLLERS)
        self._launch(
            "controller-manager",
            [
                str(self._programs.controller_manager),
                f"--kubeconfig={self._directory / 'kubeconfig-manager'}",
                f"--controllers={kept}",
                "--leader-elect=false", "--use-service-account-credentials=true",
                f"--service-account-private-key-file={self._tokens.key}", f"--root-ca-file={self.ca}",
                "--secure-port=0", "--horizontal-pod-autoscaler-sync-period=1s",
            ],
        )  # fmt: skip

    def _launch_kubelet(self) -> None:
        self._launch(
            "kubelet",
            [
                sys.executable, "-m", "tests.support.controlplane.kubelet",
                "--kubeconfig", str(self._directory / "kubeconfig-kubelet"),
                "--directory", str(self._directory / "kubelet"),
                "--images", str(self._directory / "images.json"),
                "--back-off-s", str(self._back_off_s), "--node", *self._nodes,
            ],
            PYTHONPATH=str(build.ROOT),
        )  # fmt: skip

    def _await_ready(self) -> None:
        self._running["apiserver"].await_ready(self._serves, every_s=0.05, not_yet=(OSError, ApiError))

    def _serves(self) -> bool:
        self._running["etcd"].check_running()
        # RBAC is loaded a moment after /readyz: until then even the administrator's are refused.
        return bool(self.api.request("GET", "/readyz") == "ok") and self._authorises()

    def _authorises(self) -> bool:
        """Whether RBAC is in force: the controller-manager's own role is there and counts."""
        rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}
        return self._may("system:kube-controller-manager", rule)

    def _may(self, user: str, rule: Mapping[str, Any]) -> bool:
        """Whether a user may do the first thing that a rule allows, in all namespaces."""
        resource, _, subresource = rule["resources"][0].partition("/")
        asked = {
            "verb": rule["verbs"][0],
            "group": rule["apiGroups"][0],
            "resource": resource,
            "subresource": subresource,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": asked},
        }
        path = path_of("authorization.k8s.io/v1", "subjectaccessreviews")
        return bool(self.api.create(path, review)["status"]["allowed"])

    def _await_nodes(self) -> None:
        for name in self._nodes:
            until(lambda name=name: self._schedulable(name), f"node {name}")  # type: ignore[misc]

    def _schedulable(self, name: str) -> bool:
        self._running["kubelet"].check_running()
        node = self.api.get(path_of("v1", "nodes", name=name))
        if node is None or node["spec"].get("taints"):
            return False
        return any(condition["type"] == "Ready" for condition in node["status"].get("conditions", []))

    # --- small things -----------------------------------------------------------------------------

    def user_kubeconfig(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig ``kubeconfig-NAME`` with a client certificate of ``user`` in ``groups``."""
        pair = self.authority.issue(user, groups)
        return self._write_kubeconfig(self._directory / f"kubeconfig-{name}", _user(pair))

    def _write_kubeconfig(self, path: Path, user: Mapping[str, str], namespace: str = "default") -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        context = {"cluster": "test", "user": "user", "namespace": namespace}
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "user", "user": dict(user)}],
                    "contexts": [{"name": "test", "context": context}],
                    "current-context": "test",
                }
            )
        )
        return path

    def _ensure(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            self.api.create(path, body)
        except ApiError as exc:
            if exc.reason != "AlreadyExists":
                raise

    def _allow(self, namespace: str, service_account: str, rules: Sequence[Mapping[str, Any]]) -> None:
        name, group = f"test:{namespace}:{service_account}", "rbac.authorization.k8s.io"
        self._ensure(
            path_of(f"{group}/v1", "clusterroles"), {"metadata": {"name": name}, "rules": list(rules)}
        )
        subject = {"kind": "ServiceAccount", "name": service_account, "namespace": namespace}
        binding: Json = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        }
        self._ensure(path_of(f"{group}/v1", "clusterrolebindings"), binding)
        # The API server learns of both by watches of its own.
        user = f"system:serviceaccount:{namespace}:{service_account}"
        until(lambda: self._may(user, rules[0]), f"the rights of {service_account}")

    def _delete_namespace(self, name: str) -> None:
        """Deletes it with all that is in it; returns when no pod of it runs.

        The object itself goes about 5 s later: the namespace controller waits for its caches.
        """
        path = path_of("v1", "namespaces", name=name)
        self.api.delete(path)
        self._release_groups(name)

        def empty() -> bool:
            # The namespace controller would give pods their grace period; after a test nothing drains.
            left = self.api.list(path_of("v1", "pods", name))
            for pod in left:
                body = {"metadata": {"finalizers": None}}
                pod_path = path_of("v1", "pods", name, pod["metadata"]["name"])
                self.api.patch(pod_path, body)
                self.api.delete(pod_path, grace_s=0)
            return not left and not (self._nodes and self.pods.running(name))

        until(empty, f"the end of the pods of {name}")

    def _release_groups(self, namespace: str) -> None:
        """Removes the finalizers of its ConsumerGroups: no operator may be left that would.

        While one keeps a namespace, its controller asks for the objects of each kind again and again.
        """
        groups = path_of("slackwater.dev/v1alpha1", "consumergroups", namespace)
        # As a table: Python's json cannot read a group, nor its metadata, that nests 1,500 levels deep.
        table, names_only = "application/json;as=Table;g=meta.k8s.io;v=v1", "?includeObject=None"

        def listed() -> Mapping[str, Any]:
            try:
                answer: Mapping[str, Any] = self.api.request("GET", groups + names_only, accept=table)
            except ApiError as exc:
                if exc.status != 404:  # the kind is not defined
                    raise
                return {"rows": None}
            return answer

        # The API server answers 429 right after the kind was defined.
        for row in until(listed, f"the groups of {namespace}")["rows"] or ():
            with contextlib.suppress(ApiError):  # it has gone meanwhile
                self.api.request(
                    "PATCH", f"{groups}/{row['cells'][0]}{names_only}", {"metadata": {"finalizers": None}},
                    content_type=MERGE_PATCH, accept=table,
                )  # fmt: skip

    def _run(self, program: Path, arguments: Sequence[str], stdin: str, check: bool, timeout_s: float) -> str:
        done = subprocess.run(
            [str(program), *arguments], input=stdin, env={**self.environment(), **LAZY},
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        if not check:
            return done.stdout + done.stderr
        if done.returncode:
            raise CommandFailed(program.name, arguments, done.returncode, done.stdout + done.stderr)
        return done.stdout


class CommandFailed(AssertionError):
    """kubectl or helm failed: ``code`` and ``output`` (stdout, then stderr)."""

    def __init__(self, program: str, arguments: Sequence[str], code: int, output: str) -> None:
        self.code = code
        self.output = output
        super().__init__(f"{program} {' '.join(arguments)} failed with {code}:\n{output}")


def _user(pair: KeyPair) -> dict[str, str]:
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}


def _plain_environment() -> dict[str, str]:
    """Of this process's environment what the parts need: no proxies, no other cluster's credentials."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "JAVA_HOME", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ}


def main(arguments: list[str] | None = None) -> int:
    """Serves until Ctrl-C or SIGTERM; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    with contextlib.ExitStack() as stack:
        directory = Path(given[0]) if given else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            plane = stack.enter_context(ControlPlane.start(directory.resolve()))
        except (ControlPlaneUnavailable, build.ToolsUnavailable) as exc:
            print(f"controlplane: {exc}", file=sys.stderr)
            return 1
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
