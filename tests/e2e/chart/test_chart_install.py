"""The chart's whole life by real helm on a real API server, in namespaces that enforce `restricted`."""

from __future__ import annotations

import base64
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.kafka import KafkaAdmin
from slackwater.kafka.admin import NewTopic
from slackwater_operator.admission import certificates
from slackwater_operator.controller.snapshots.builder import read
from tests.support.controlplane import CommandFailed, ControlPlane, path_of, until
from tests.support.devbroker import DevBroker
from tests.support.operator import chart, monitoring
from tests.support.operator.bad_resources import NOT_FOR_PODS, UNREADABLE, good

pytestmark = pytest.mark.controlplane

RELEASE = "sw"
NAME = "sw-slackwater"
CRD = "consumergroups.slackwater.dev"
GROUPS = "slackwater.dev/v1alpha1"
RELEASED = Path(__file__).parent / "released"
CI_VALUES = sorted((chart.CHART / "ci").glob("*-values.yaml"))
EVERYTHING: dict[str, Any] = {
    "podMonitor.enabled": True,
    "podMonitor.workers.enabled": True,
    "prometheusRule.enabled": True,
    "dashboards.enabled": True,
    "networkPolicy.enabled": True,
    "networkPolicy.workers.enabled": True,
    "admissionWebhook.enabled": True,
}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane without the ConsumerGroup's definition: helm puts it in and takes it away."""
    control_plane.undefine(CRD)
    names = [name for definition in monitoring.crds() for name in control_plane.define(definition)]
    yield control_plane
    for name in names:
        control_plane.undefine(name)


@contextmanager
def namespace_of_release(plane: ControlPlane) -> Iterator[str]:
    """A namespace; what helm has installed there goes with it."""
    with plane.namespace() as name:
        yield name
        plane.helm("uninstall", RELEASE, "--namespace", name, "--ignore-not-found", "--wait")
        plane.kubectl("delete", "crd", CRD, "--ignore-not-found", "--wait", "--timeout=600s")


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    with namespace_of_release(plane) as name:
        yield name


@pytest.fixture(scope="class")
def idle(plane: ControlPlane) -> Iterator[str]:
    """The namespace of a release without operators, for the first tests of a class."""
    with namespace_of_release(plane) as name:
        install(plane, name, {"replicaCount": 0})
        yield name


@pytest.fixture(scope="class")
def running(plane: ControlPlane, idle: str) -> Iterator[str]:
    """The namespace of that release, upgraded to one with everything. While it had no operators, nobody
    refused the group ``flights``."""
    plane.await_definition(CRD)
    assert "flights created" in apply(plane, idle, OPERATORS_ONLY[0].document)
    assert "STATUS: deployed" in helm(plane, idle, "upgrade", EVERYTHING, "--wait")
    yield idle
    plane.kubectl("delete", "cg", "--all", "-n", idle, "--wait", "--timeout=600s")


def helm(
    plane: ControlPlane, namespace: str, verb: str, values: Mapping[str, Any], *more: str, limit: str = "240s"
) -> str:
    return plane.helm(
        verb,
        RELEASE,
        str(chart.CHART),
        "--namespace",
        namespace,
        "--timeout",
        limit,
        *more,
        *chart.set_values(values),
    )


def install(plane: ControlPlane, namespace: str, values: Mapping[str, Any], *more: str) -> str:
    return helm(plane, namespace, "install", values, "--wait", *more)


def run_helm_test(plane: ControlPlane, namespace: str) -> str:
    return plane.helm("test", RELEASE, "--namespace", namespace, "--logs", "--timeout", "600s")


def pods(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    label = "app.kubernetes.io/name=slackwater-operator"
    pods = plane.api.list(path_of("v1", "pods", namespace), label_selector=label)
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def lease_holder(plane: ControlPlane, namespace: str) -> str:
    lease = plane.api.get(path_of("coordination.k8s.io/v1", "leases", namespace, NAME))
    return str((lease or {}).get("spec", {}).get("holderIdentity") or "")


def left(plane: ControlPlane) -> set[str]:
    """Everything in the cluster that carries the release's label."""

    def listed() -> set[str] | None:
        kinds = plane.kubectl("api-resources", "--verbs=list", "-o", "name").split()
        label = f"app.kubernetes.io/instance={RELEASE}"
        try:
            output = plane.kubectl("get", ",".join(kinds), "-A", "-o", "name", "-l", label)
        except CommandFailed as exc:
            # A definition that goes is listed for a moment longer than it is served.
            if "could not find the requested resource" in exc.output or "have a resource type" in exc.output:
                return None
            raise
        return {*output.split(), "listed"}

    objects = until(listed, "what there is") - {"listed"}
    return {line for line in objects if not line.startswith(("endpointslice", "pod/sw-slackwater-test"))}


@pytest.mark.long
def test_helm_test_fails_when_an_operator_is_missing(plane: ControlPlane, namespace: str) -> None:
    install(plane, namespace, {})
    plane.kubectl("scale", f"deployment/{NAME}", "--replicas=1", "-n", namespace)
    until(lambda: len(pods(plane, namespace)) == 1, "one replica")
    with pytest.raises(CommandFailed):
        run_helm_test(plane, namespace)


@pytest.mark.long
def test_helm_upgrades_rolls_back_and_undoes_a_failed_upgrade(plane: ControlPlane, namespace: str) -> None:
    install(plane, namespace, {})
    before = {pod["metadata"]["name"] for pod in pods(plane, namespace)}
    helm(plane, namespace, "upgrade", {"logLevel": "debug"}, "--wait")
    after = until(lambda: exchanged(plane, namespace, before), "the new pods")
    assert all("--log-level=debug" in pod["spec"]["containers"][0]["args"] for pod in after)
    assert "failed " not in run_helm_test(plane, namespace)

    plane.helm("rollback", RELEASE, "1", "--namespace", namespace, "--wait", "--timeout", "600s")
    assert arguments(plane, namespace) == arguments_rendered({})

    # An image that cannot be had: helm gives up and puts back what was; the old pods never went.
    with pytest.raises(CommandFailed):
        helm(
            plane,
            namespace,
            "upgrade",
            {"extraArgs": ["--no-such-argument"]},
            "--rollback-on-failure",
            limit="8s",
        )
    until(lambda: arguments(plane, namespace) == arguments_rendered({}), "the rollback")
    # The pod of the failed upgrade is an operator that is not ready as long as it is there.
    until(lambda: len(pods(plane, namespace)) == 2 and ready(plane, namespace) == 2, "the two of before")
    assert "failed " not in run_helm_test(plane, namespace)


@pytest.mark.long
def test_the_release_before_is_upgraded_with_its_values_and_groups(
    plane: ControlPlane, namespace: str
) -> None:
    """What docs say of an upgrade: `--reuse-values`, and the definition is upgraded with the chart."""
    (before,) = RELEASED.glob("*.tgz")
    place = ("--namespace", namespace, "--wait", "--timeout", "600s")
    plane.helm("install", RELEASE, str(before), *place, "--set", "logLevel=debug")
    plane.await_definition(CRD)
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=SLEEPING)
    old_schema = definition(plane)
    group = plane.api.get(path_of(GROUPS, "consumergroups", namespace, "sleeping"))
    assert group
    old_pods = {pod["metadata"]["name"] for pod in pods(plane, namespace)}

    said = helm(plane, namespace, "upgrade", {}, "--reuse-values", "--wait")
    assert "REVISION: 2" in said
    assert len(until(lambda: exchanged(plane, namespace, old_pods), "the new pods")) == 2
    assert arguments(plane, namespace) == arguments_rendered({"logLevel": "debug"})
    # The API server adds defaults to a schema, and so to both: the new one is what a new installation has.
    new_schema = definition(plane)
    assert new_schema != old_schema
    source = chart.only_manifest(chart.template(), "CustomResourceDefinition")
    assert described_fields(new_schema) == described_fields(source["spec"]["versions"][0]["schema"])
    kept = plane.api.get(path_of(GROUPS, "consumergroups", namespace, "sleeping"))
    assert kept
    assert kept["metadata"]["uid"] == group["metadata"]["uid"]
    assert has(kept["spec"], group["spec"])
    assert "failed " not in run_helm_test(plane, namespace)


def definition(plane: ControlPlane) -> dict[str, Any]:
    crd = plane.api.get(path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", name=CRD)) or {}
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]
    return schema


def has(after: Any, before: Any) -> bool:
    """Whether each value of ``before`` is in ``after``, which may have more, such as defaults."""
    if isinstance(before, Mapping):
        return all(name in after and has(after[name], value) for name, value in before.items())
    return bool(after == before)


def described_fields(schema: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Path of each field of a schema -> its description."""
    result: dict[str, str] = {}
    for key, value in schema.items():
        if isinstance(value, Mapping):
            result |= described_fields(value, f"{path}.{key}")
        elif key == "description" and isinstance(value, str):
            result[path] = value
    return result


@pytest.mark.long
def test_extra_objects_come_change_and_go_with_the_release(plane: ControlPlane, namespace: str) -> None:
    extra = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-extra"},
        "data": {"replicas": '{{ .Values.replicaCount }} of {{ include "slackwater.fullname" . }}'},
    }
    quiet: dict[str, Any] = {"replicaCount": 0, "extraObjects": [extra]}
    place = path_of("v1", "configmaps", namespace, f"{RELEASE}-extra")
    install(plane, namespace, quiet)
    assert (plane.api.get(place) or {})["data"] == {"replicas": f"0 of {NAME}"}
    helm(plane, namespace, "upgrade", {**quiet, "fullnameOverride": "renamed"}, "--wait")
    assert (plane.api.get(place) or {})["data"] == {"replicas": "0 of renamed"}
    helm(plane, namespace, "upgrade", {"replicaCount": 0, "extraObjects": []}, "--wait")
    assert plane.api.get(place) is None


def exchanged(plane: ControlPlane, namespace: str, before: set[str]) -> list[dict[str, Any]]:
    running_pods = pods(plane, namespace)
    return (
        running_pods
        if len(running_pods) == 2 and not before & {pod["metadata"]["name"] for pod in running_pods}
        else []
    )


def ready(plane: ControlPlane, namespace: str) -> int:
    deployment = plane.api.get(path_of("apps/v1", "deployments", namespace, NAME)) or {}
    return int(deployment.get("status", {}).get("readyReplicas", 0))


def arguments(plane: ControlPlane, namespace: str) -> list[str]:
    deployment = plane.api.get(path_of("apps/v1", "deployments", namespace, NAME)) or {}
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def arguments_rendered(values: Mapping[str, Any]) -> list[str]:
    deployment = chart.only_manifest(chart.template(values), "Deployment")
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


@pytest.mark.long
@pytest.mark.parametrize("keep", [True, False])
def test_uninstall_leaves_at_most_the_definition(plane: ControlPlane, namespace: str, keep: bool) -> None:
    install(plane, namespace, {**EVERYTHING, "crds.keep": keep})
    assert len(left(plane)) > 15
    plane.helm("uninstall", RELEASE, "--namespace", namespace, "--wait")
    kept = {f"customresourcedefinition.apiextensions.k8s.io/{CRD}"} if keep else set()
    # Each look at the whole cluster costs a second of CPU.
    until(lambda: left(plane) == kept, f"only {kept} to be left", 180, every_s=1.0)
    if keep:
        # A new release takes over what the old one left, groups and all.
        install(plane, namespace, {})
        assert "failed " not in run_helm_test(plane, namespace)


SLEEPING = """
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {name: sleeping}
spec:
  kafka: {bootstrapServers: "127.0.0.1:9"}
  topics: [t]
  pipeline: {handler: "h:f", engine: arrow, sink: {path: /data}}
  suspend: true
"""


@pytest.mark.long
def test_a_kept_definition_keeps_the_groups(plane: ControlPlane, namespace: str) -> None:
    install(plane, namespace, {"replicaCount": 0})
    plane.await_definition(CRD)
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=SLEEPING)
    plane.helm("uninstall", RELEASE, "--namespace", namespace, "--wait")
    assert "sleeping" in plane.kubectl("get", "consumergroups", "-n", namespace, "-o", "name")


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(chart.set_values({}), id="plain", marks=pytest.mark.long),
        pytest.param(chart.set_values(EVERYTHING), id="all"),
        pytest.param(chart.set_values({"watchNamespaces": ["default"]}), id="one", marks=pytest.mark.long),
        *(pytest.param(["--values", str(path)], id=path.stem, marks=pytest.mark.long) for path in CI_VALUES),
    ],
)
def test_the_manifests_satisfy_restricted_pod_security(
    plane: ControlPlane, namespace: str, values: list[str]
) -> None:
    """A server-side dry run checks every manifest; the API server warns of no pod and no pod template."""
    for kind in ("warn", "audit"):
        plane.kubectl(
            "label", "ns", namespace, f"pod-security.kubernetes.io/{kind}=restricted", "--overwrite"
        )
    # A dry run makes nothing, and a pod wants its account to be there.
    plane.kubectl("create", "serviceaccount", f"{NAME}-test", "-n", namespace)
    manifests = plane.helm("template", RELEASE, str(chart.CHART), "--namespace", namespace, *values)
    dry = ("apply", "--dry-run=server", "-n", namespace, "-f", "-")
    said = plane.kubectl(*dry, stdin=manifests, check=False)
    assert "violate" not in said.lower()
    assert "(server dry run)" in said
    # The account above was not made by `apply`, which says so.
    said = "\n".join(line for line in said.splitlines() if "last-applied-configuration" not in line)
    assert "Warning" not in said
    assert "error" not in said.lower(), said


# --- rights

# What Kubernetes gives to everybody who is authenticated.
FOR_ALL = {
    "selfsubjectaccessreviews.authorization.k8s.io", "selfsubjectrulesreviews.authorization.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
}  # fmt: skip


def may(plane: ControlPlane, namespace: str, account_namespace: str) -> dict[str, set[str]]:
    """Resource -> verbs, by `kubectl auth can-i --list` as the operator's ServiceAccount."""
    user = f"system:serviceaccount:{account_namespace}:{NAME}"
    who = (f"--as={user}", "--as-group=system:authenticated", "--as-group=system:serviceaccounts")
    listed = plane.kubectl("auth", "can-i", "--list", "--no-headers", "-n", namespace, *who)
    series: dict[str, set[str]] = {}
    for line in listed.splitlines():
        if line.startswith(" "):  # a path that is no resource, such as /version
            continue
        row = re.fullmatch(r"(\S+)\s+\[(.*?)\]\s+\[(.*?)\]\s+\[(.*?)\]", line.strip())
        assert row, line
        resource, _, names, verbs = row.groups()
        if resource not in FOR_ALL:
            assert not names, line
            series.setdefault(resource, set()).update(verbs.split())
    return series


def await_rights(
    plane: ControlPlane, namespace: str, account_namespace: str, wanted: dict[str, set[str]]
) -> None:
    """Waits until the account may all of that (the API server learns of roles by watches), and no more."""
    until(lambda: may(plane, namespace, account_namespace).items() >= wanted.items(), "the roles")
    assert may(plane, namespace, account_namespace) == wanted


def rendered(kind: str, name: str, values: Mapping[str, Any]) -> dict[str, set[str]]:
    texts: dict[str, set[str]] = {}
    for manifest in chart.template(values):
        if manifest["kind"] == kind and manifest["metadata"]["name"] == name:
            for rule in manifest["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        name_of, _, part = resource.partition("/")  # as kubectl writes it
                        key = "/".join(filter(None, (f"{name_of}.{group}" if group else name_of, part)))
                        texts.setdefault(key, set()).update(rule["verbs"])
    return texts


@pytest.mark.long
def test_the_service_account_has_no_rights_outside_the_watched_namespaces(
    plane: ControlPlane, namespace: str
) -> None:
    with plane.namespace() as watched:
        values = {"replicaCount": 0, "watchNamespaces": [watched]}
        install(plane, namespace, values)
        inside = rendered("Role", NAME, values)
        await_rights(plane, watched, namespace, inside)
        await_rights(plane, namespace, namespace, rendered("Role", f"{NAME}-lease", values))
        assert may(plane, "default", namespace) == {}


@pytest.mark.long
def test_roles_in_the_watched_namespaces_suffice(plane: ControlPlane, namespace: str) -> None:
    """The operator runs a group by the Roles of one namespace alone, and doesn't touch another's."""
    with DevBroker() as broker, plane.namespace() as watched, plane.namespace() as other:
        install(plane, namespace, {"watchNamespaces": [watched]})
        with KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 2)]).unwrap()
        for where in (watched, other):
            handler = {
                "metadata": {"name": "handlers"},
                "data": {"h.py": "def f(table):\n    return table\n"},
            }
            plane.api.create(path_of("v1", "configmaps", where), handler)
            plane.kubectl("apply", "-n", where, "-f", "-", stdin=READING.format(bootstrap=broker.bootstrap))
        until(lambda: condition(plane, watched, "Ready") == "True", "the group")
        assert "conditions" not in reading(plane, other).get("status", {})
        assert plane.api.list(path_of("apps/v1", "statefulsets", other)) == []
        for pod in pods(plane, namespace):
            log = plane.pods.logs(namespace, pod["metadata"]["name"])
            assert "orbidden" not in log, log[-3000:]
        assert "failed " not in run_helm_test(plane, namespace)
        plane.kubectl("delete", "cg", "--all", "-n", watched, "--wait", "--timeout=600s")
        until(lambda: not plane.pods.running(watched), "the end of the workers")


def reading(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    return plane.api.get(path_of(GROUPS, "consumergroups", namespace, "reading")) or {}


def condition(plane: ControlPlane, namespace: str, kind: str) -> str:
    conditions = reading(plane, namespace).get("status", {}).get("conditions", [])
    return next((condition["status"] for condition in conditions if condition["type"] == kind), "")


READING = """
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {{name: reading}}
spec:
  kafka: {{bootstrapServers: "{bootstrap}"}}
  topics: [t]
  pipeline: {{handler: "h:f", handlerPath: [/handlers], engine: arrow, sink: {{path: /data/out}}}}
  replicas: 2
  template:
    spec:
      containers:
        - name: worker
          volumeMounts: [{{name: data, mountPath: /data}}, {{name: handlers, mountPath: /handlers}}]
      volumes: [{{name: data, emptyDir: {{}}}}, {{name: handlers, configMap: {{name: handlers}}}}]
"""


# --- the admission webhook

WEBHOOK = f"{NAME}-webhook"
REGISTRATION = "admissionregistration.k8s.io/v1"
OPERATORS_ONLY = [*UNREADABLE, *NOT_FOR_PODS]
"""What CRD schema and CEL admit, and the operator does not."""


def named(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**document, "metadata": {"name": name}}


def apply(plane: ControlPlane, namespace: str, *documents: Mapping[str, Any], dry: bool = False) -> str:
    """`kubectl apply` of all documents at once; what it printed, errors and all."""
    arguments = ("apply", "-n", namespace, "-f", "-", *(("--dry-run=server",) if dry else ()))
    return plane.kubectl(*arguments, stdin=yaml.safe_dump_all(documents), check=False)


def message(document: Mapping[str, Any]) -> str:
    """The message of the condition with the reason InvalidSpec."""
    return read(dict(document), (), "slackwater/worker:0.1.0").error


def secret(plane: ControlPlane, namespace: str) -> dict[str, str]:
    data: dict[str, str] = (plane.api.get(path_of("v1", "secrets", namespace, WEBHOOK)) or {}).get("data", {})
    return data


def bundle(plane: ControlPlane) -> str:
    path = path_of(REGISTRATION, "validatingwebhookconfigurations", "", WEBHOOK)
    (webhook,) = (plane.api.get(path) or {"webhooks": [{"clientConfig": {}}]})["webhooks"]
    return str(webhook["clientConfig"].get("caBundle", ""))


def served(plane: ControlPlane, namespace: str) -> list[str]:
    """The certificate that each operator serves, as the Secret has it."""
    addresses = [pod["status"]["podIP"] for pod in pods(plane, namespace)]
    pems = [ssl.get_server_certificate((address, 9443)) for address in addresses]
    return [base64.b64encode(pem.encode()).decode() for pem in pems]


def all_serve(plane: ControlPlane, namespace: str) -> bool:
    """Whether both operators serve the Secret's certificate, and the API server is to trust it."""
    data = secret(plane, namespace)
    return (
        bool(data) and bundle(plane) == data["ca.crt"] and served(plane, namespace) == [data["tls.crt"]] * 2
    )


def refused(plane: ControlPlane, namespace: str) -> bool:
    """Whether a ConsumerGroup that only the operator can refuse is refused."""
    document = named(OPERATORS_ONLY[0].document, "probe")
    return message(document) in apply(plane, namespace, document, dry=True)


class TestRelease:
    def test_the_service_account_has_exactly_the_rights_of_its_cluster_role(
        self, plane: ControlPlane, idle: str
    ) -> None:
        everywhere = rendered("ClusterRole", NAME, {})
        of_lease = rendered("Role", f"{NAME}-lease", {})
        at_home = {
            resource: everywhere.get(resource, set()) | of_lease.get(resource, set())
            for resource in everywhere | of_lease
        }
        await_rights(plane, "default", idle, everywhere)
        await_rights(plane, idle, idle, at_home)

    def test_the_user_roles_of_kubernetes_cover_consumer_groups(self, plane: ControlPlane, idle: str) -> None:
        for role, verb, expected in (
            ("view", "list", True),
            ("view", "create", False),
            ("edit", "create", True),
        ):
            user = f"{role}-{verb}"
            plane.kubectl(
                "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", idle
            )
            command = ("auth", "can-i", verb, "consumergroups.slackwater.dev", f"--as={user}", "-n", idle)
            until(lambda c=command, e=expected: (plane.kubectl(*c, check=False).startswith("yes")) is e,  # type: ignore[misc]
                  f"{role}: {verb}")  # fmt: skip

    def test_an_installed_operator_leads_and_passes_helm_test(
        self, plane: ControlPlane, running: str
    ) -> None:
        operators = pods(plane, running)
        assert len(operators) == 2
        holder = until(lambda: lease_holder(plane, running), "a leader")
        assert holder in {pod["metadata"]["name"] for pod in operators}
        tested = run_helm_test(plane, running)
        assert re.search(r"ok +2 of 2 operators are ready", tested)
        assert re.search(r"ok +the API server has 1 ConsumerGroups in all namespaces", tested)
        assert "failed " not in tested
        # The objects of the helm test are deleted with it.
        kinds = "serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,configmaps"
        assert f"{NAME}-test" not in plane.kubectl("get", kinds, "-n", running, "-o", "name")

    def test_the_webhook_refuses_what_the_operator_would_refuse(
        self, plane: ControlPlane, running: str
    ) -> None:
        bad = OPERATORS_ONLY[0].document
        until(lambda: all_serve(plane, running), "the first certificate", every_s=0.5)
        until(lambda: refused(plane, running), "a refusal", 120, every_s=1)
        operators = {pod["metadata"]["name"] for pod in pods(plane, running)}

        def condition_message() -> str:
            group = plane.api.get(path_of(GROUPS, "consumergroups", running, "flights")) or {}
            conditions = group.get("status", {}).get("conditions", [])
            return next((str(c["message"]) for c in conditions if c.get("reason") == "InvalidSpec"), "")

        assert until(condition_message, "the condition of what was admitted") == message(bad)

        # Each of the others by one command, in the condition's words.
        documents = [named(case.document, f"bad-{number}") for number, case in enumerate(OPERATORS_ONLY)]
        printed = apply(plane, running, *documents, named(good(), "fine"), dry=True)
        assert "consumergroup.slackwater.dev/fine created (server dry run)" in printed
        for document in documents:
            assert message(document) in printed
            assert f"/{document['metadata']['name']} created" not in printed

        # An update is looked at where it changes the spec only.
        plane.kubectl("annotate", "cg", "flights", "-n", running, "note=x")
        assert plane.kubectl("scale", "cg", "flights", "--replicas=3", "-n", running)
        worse = OPERATORS_ONLY[1].document
        assert message(worse) in apply(plane, running, worse)
        assert "flights configured" in apply(plane, running, good())

        # A name that the API server generates is known to the webhook.
        create = ("create", "-n", running, "--dry-run=server", "-f", "-")
        for document, expected in (
            (good(), r"/gen-\w+ created"),
            (
                bad,
                r"ConsumerGroup gen-\w+"
                + re.escape(message(named(bad, "x")).removeprefix("ConsumerGroup x")),
            ),
        ):
            nameless = yaml.safe_dump({**document, "metadata": {"generateName": "gen-"}})
            assert re.search(expected, plane.kubectl(*create, stdin=nameless, check=False))

        # An upgrade of the release keeps what the operator has added.
        added = (bundle(plane), secret(plane, running))
        helm(plane, running, "upgrade", {**EVERYTHING, "admissionWebhook.timeoutSeconds": 7}, "--wait")
        assert (bundle(plane), secret(plane, running)) == added
        assert refused(plane, running)

        # A certificate that is due is renewed without a restart, by whichever replica looks first.
        past_ms = (
            time.time_ns() // 1_000_000 - certificates.CERTIFICATE_MS + certificates.RENEW_CERTIFICATE_MS
        )
        host = f"{WEBHOOK}.{running}.svc"
        old = certificates.renewed(None, certificates.Renewal.EVERYTHING, host, past_ms).to_secret()
        plane.api.patch(path_of("v1", "secrets", running, WEBHOOK), {"data": old})
        until(lambda: secret(plane, running)["tls.crt"] != old["tls.crt"], "the renewal", every_s=0.5)
        assert secret(plane, running)["ca.crt"] == old["ca.crt"]
        until(lambda: all_serve(plane, running), "the new certificate", every_s=0.5)
        until(lambda: refused(plane, running), "a refusal", 120, every_s=1)
        assert {pod["metadata"]["name"] for pod in pods(plane, running)} == operators
        for name in operators:
            log = plane.pods.logs(running, name)
            assert "orbidden" not in log
            assert "Traceback" not in log
            assert " ERROR " not in log
