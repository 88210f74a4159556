"""A metrics adapter in a pod of the control plane: what KEDA's does for its HPAs, for the lag of a group.

An aggregated API server (``external.metrics.k8s.io/v1beta1``, an APIService), which answers with the lag
that Kafka has at that moment, asked by confluent-kafka. Of KEDA's names it keeps two: a metric is called
``s0-kafka-TOPIC``, and the selector ``scaledobject.keda.sh/name`` says whose lag it is (here: the group.id).

As a program it is the server: ``python -m tests.support.controlplane.external_metrics HOST PORT FOLDER``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

import confluent_kafka

from tests.support.waiting import HANG_S

if TYPE_CHECKING:
    from tests.support.controlplane.api import Json
    from tests.support.controlplane.cluster import ControlPlane

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
PREFIX = "s0-kafka-"
OWNER = "scaledobject.keda.sh/name"
NAME, PORT = "external-metrics", 6443
IMAGE = "test.example/external-metrics:v1"
FOLDER = "/etc/external-metrics"


def lag(bootstrap: str, group_id: str, topic: str, timeout_s: float = HANG_S) -> int:
    """Records of ``topic`` that the group has not committed, as KEDA counts them by default: a partition
    without a commit has all its records (there: ``offsetResetPolicy: earliest``).

    Raises ``confluent_kafka.KafkaException``.
    """
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    try:
        partitions = consumer.list_topics(topic, timeout_s).topics[topic].partitions
        asked = [confluent_kafka.TopicPartition(topic, number) for number in partitions]
        total = 0
        for place in consumer.committed(asked, timeout_s):
            low, high = consumer.get_watermark_offsets(place, timeout_s)
            total += high - (place.offset if place.offset >= 0 else low)
        return total
    finally:
        consumer.close()


@contextlib.contextmanager
def external_metrics(plane: ControlPlane, namespace: str, bootstrap: str) -> Iterator[None]:
    """Runs the adapter for the Kafka at ``bootstrap`` as a pod of ``namespace``, with its Service, and
    registers it; the API server has found it when this begins.

    There is one in a control plane, as in a cluster: its APIService is gone when this ends.
    """
    from tests.support.controlplane.aggregated import registered
    from tests.support.controlplane.api import path_of
    from tests.support.controlplane.images import ROOT, this_checkout

    api = plane.api
    plane.images.push(IMAGE, this_checkout("python", PYTHONPATH=f"{ROOT}:{ROOT}/worker"))
    names = plane.authority.issue(NAME, server_names=[f"{NAME}.{namespace}.svc"])
    files = {
        "tls.crt": names.certificate,
        "tls.key": names.key,
        "ca.crt": plane.front_proxy_authority.certificate,
    }
    texts = {name: file.read_text() for name, file in files.items()} | {"bootstrap": bootstrap}
    api.create(path_of("v1", "secrets", namespace), {"metadata": {"name": NAME}, "stringData": texts})
    api.create(path_of("v1", "services", namespace), _service())
    api.create(path_of("v1", "pods", namespace), _pod())
    try:
        with registered(plane, _api_service(namespace, plane.ca)):
            yield
    finally:
        plane.images.remove(IMAGE)


def _service() -> Json:
    ports = [{"port": 443, "targetPort": PORT}]
    return {"metadata": {"name": NAME}, "spec": {"selector": {"app": NAME}, "ports": ports}}


def _pod() -> Json:
    container = {
        "name": "adapter",
        "image": IMAGE,
        "args": ["-m", __name__, "$(POD_IP)", str(PORT), FOLDER],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": [{"name": "files", "mountPath": FOLDER}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "files", "secret": {"secretName": NAME}}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 0,
    }
    return {"metadata": {"name": NAME, "labels": {"app": NAME}}, "spec": spec}


def _api_service(namespace: str, ca: Path) -> Json:
    return {
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(ca.read_bytes()).decode(),
            "service": {"namespace": namespace, "name": NAME, "port": 443},
        },
    }


# --- the server -----------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    """Discovery, and ``/apis/external.metrics.k8s.io/v1beta1/namespaces/NAMESPACE/METRIC``."""

    bootstrap = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts == ["apis", GROUP, VERSION]:
            return self._answer(200, _resources())
        if parts[:4] == ["apis", GROUP, VERSION, "namespaces"] and len(parts) == 6:
            selector = parse_qs(url.query).get("labelSelector", [""])[0]
            return self._metric(parts[5], dict(part.split("=", 1) for part in selector.split(",") if part))
        return self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

    def _metric(self, metric: str, labels: dict[str, str]) -> None:
        items = []
        if metric.startswith(PREFIX) and OWNER in labels:
            value = lag(self.bootstrap, labels[OWNER], metric.removeprefix(PREFIX))
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            items = [{"metricName": metric, "metricLabels": labels, "timestamp": now, "value": str(value)}]
        listed = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        self._answer(200, {**listed, "items": items})

    def _answer(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _resources() -> Json:
    resource = {
        "name": "externalmetrics",
        "singularName": "",
        "namespaced": True,
        "kind": "ExternalMetricValueList",
        "verbs": ["get"],
    }
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [resource],
    }


def main(arguments: list[str]) -> None:
    """Serves until it is killed; only to who has a certificate of the authority (the API server's proxy)."""
    host, port, folder = arguments[0], int(arguments[1]), Path(arguments[2])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    _Handler.bootstrap = (folder / "bootstrap").read_text()
    server = ThreadingHTTPServer((host, port), _Handler)
    # The handshake belongs to the connection's own thread: a probe that says nothing must not hold others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
