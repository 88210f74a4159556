"""A namespace of the node with what the examples expect: ``kafka.kafka.svc``, the topics, the claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.controlplane.api import Json
from tests.support.controlplane.build import ROOT
from tests.support.kafka import KafkaCluster
from tests.support.kafka.secured import SecuredKafka
from tests.support.node.host import ADDRESS
from tests.support.node.node import NAME, Node
from tests.support.node.pods import NodePods
from tests.support.site import Group

EXAMPLES = ROOT / "examples"
CLAIMS = ("orders", "flights", "flights-sqlite", "payments")
"""The volume claims of the examples; all are one folder."""


@dataclass
class NodeSite:
    """One namespace, made by :meth:`prepare`; the operator is the chart's, in ``operator_namespace``."""

    node: Node
    secured: SecuredKafka
    namespace: str
    operator_namespace: str
    folder: Path
    install_s: float = 0.0
    """How long ``helm install --wait`` took."""
    _topics: set[str] = field(default_factory=set)

    @property
    def kafka(self) -> KafkaCluster:
        """The brokers."""
        return self.secured.cluster

    @property
    def plane(self) -> ControlPlane:
        """The node's."""
        return self.node.plane

    @property
    def pods(self) -> NodePods:
        """The node's."""
        return self.node.pods

    def operator_logs(self) -> Mapping[str, str]:
        """What the operator's pods have written."""
        namespace = self.operator_namespace
        return {pod: self.pods.logs(namespace, pod) for pod in self.pods.pods_of(namespace)}

    def prepare(self) -> None:
        """Makes the namespace (Pod Security ``restricted``), the Service of Kafka and the claims."""
        ports = {9092: self.kafka.bootstrap, 9093: self.secured.at("LOGIN_TLS")}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        documents = [
            namespace(self.namespace, {"pod-security.kubernetes.io/enforce": "restricted"}),
            *outside("kafka", "kafka", {port: _port(address) for port, address in ports.items()}),
            *(document for claim in CLAIMS for document in _volume(self.folder, self.namespace, claim)),
        ]
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
        until(
            lambda: self.plane.api.get(path_of("v1", "serviceaccounts", self.namespace, "default")),
            f"the default ServiceAccount of {self.namespace}",
        )

    def make_topic(self, name: str, partitions: int) -> None:
        """Makes a topic once."""
        if name not in self._topics:
            admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
            admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
            self._topics.add(name)

    def fresh_topic(self, name: str, partitions: int) -> None:
        """Makes a topic that has no records: removed first where it is there."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        if name in admin.list_topics(timeout=60).topics:
            admin.delete_topics([name])[name].result(60)
            until(lambda: name not in admin.list_topics(timeout=60).topics, f"the end of {name}")
        self._topics.discard(name)
        self.make_topic(name, partitions)

    def manifest(self, example: str, name: str = "", **spec: Any) -> Json:
        """``orders/takeover.yaml``, for one: with another name, topic and folder, and fields of ``spec``."""
        document: Json = yaml.safe_load((EXAMPLES / example).read_text())
        if name:
            document["metadata"]["name"] = name
            document["spec"].update(topics=[name])
            if "path" in document["spec"]["pipeline"]["sink"]:
                document["spec"]["pipeline"]["sink"]["path"] = f"/data/{name}"
        return {**document, "spec": {**document["spec"], **spec}}

    def apply(self, manifest: Json, partitions: int) -> Group:
        """Makes the topics of a group, and applies it."""
        for topic in manifest["spec"].get("topics", ()):
            self.make_topic(topic, partitions)
        if letters := manifest["spec"]["pipeline"].get("deadLetterTopic"):
            self.make_topic(letters, 1)
        self.plane.kubectl("-n", self.namespace, "apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        name = manifest["metadata"]["name"]
        path = manifest["spec"]["pipeline"]["sink"].get("path", "/data/none")
        group = Group(self, name, partitions, self.folder / path.removeprefix("/data/"))
        group.topic = manifest["spec"].get("topics", [name])[0]
        return group

    def remove(self, group: Group) -> None:
        """Deletes the group; returns when its pods are gone: the next one needs the node's processors."""
        self.plane.kubectl("-n", self.namespace, "delete", "cg", group.name, "--wait", "--timeout=120s")
        until(lambda: not group.pods(), f"the end of {group.name}'s pods", 120)


def order(number: int) -> bytes:
    """A record as the handlers of examples/orders read it."""
    fields = {"id": str(number), "customer": f"c{number % 100}", "quantity": number % 9 + 1, "price": 2.5}
    return json.dumps(fields).encode()


def flight(number: int) -> bytes:
    """A record as the handlers of examples/flights read it; its ``flight`` is the number."""
    fields = {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": number % 90,
        "arr_time": 830, "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": number,
        "tailnum": "N14228", "origin": "EWR", "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5,
        "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    return json.dumps(fields).encode()


def small(manifest: Json, cpu: str = "50m") -> Json:
    """The same with less reserved CPU: a node of two processors has room for more of them."""
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"]["cpu"] = cpu
    return manifest


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Json:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}


def outside(name: str, home: str, ports: Mapping[int, int]) -> list[Json]:
    """The Service ``name`` in the namespace ``home`` for what runs beside the node, at these ports of it."""
    place = {"name": name, "namespace": home}
    label = {"kubernetes.io/service-name": name}
    return [
        namespace(home),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": place,
            "spec": {
                "ports": [
                    {"name": f"p{port}", "port": port, "targetPort": target} for port, target in ports.items()
                ]
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**place, "labels": label},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}],
            "ports": [{"name": f"p{port}", "port": target} for port, target in ports.items()],
        },
    ]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _volume(folder: Path, home: str, claim: str) -> list[Json]:
    """A local volume, on which the kubelet applies fsGroup; its root belongs to root at first."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{home}-{claim}"},
            "spec": {
                **common,
                "capacity": {"storage": "5Gi"},
                "local": {"path": str(folder)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": home},
            "spec": {
                **common,
                "volumeName": f"{home}-{claim}",
                "resources": {"requests": {"storage": "5Gi"}},
            },
        },
    ]
