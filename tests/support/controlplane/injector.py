"""Mutating admission webhooks: one that adds a container to pods, as the injectors of service meshes do, and
one that refuses pods, as policies do."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.controlplane.api import ApiError, Json, path_of, until
from tests.support.controlplane.certificates import Authority

if TYPE_CHECKING:
    from tests.support.controlplane.cluster import ControlPlane


@contextlib.contextmanager
def injects(plane: ControlPlane, namespace: str, container: Json, folder: Path) -> Iterator[None]:
    """Adds ``container`` behind those of each pod that is created in ``namespace`` meanwhile.

    ``folder``: where the webhook's certificates are.
    """
    patch = [{"op": "add", "path": "/spec/containers/-", "value": container}]
    text = base64.b64encode(json.dumps(patch).encode()).decode()
    with _answers(plane, namespace, {"allowed": True, "patchType": "JSONPatch", "patch": text}, folder):
        yield


@contextlib.contextmanager
def denies(plane: ControlPlane, namespace: str, message: str, folder: Path) -> Iterator[None]:
    """Refuses each pod that would be created in ``namespace`` meanwhile."""
    with _answers(plane, namespace, {"allowed": False, "status": {"message": message}}, folder):
        yield


@contextlib.contextmanager
def _answers(plane: ControlPlane, namespace: str, answer: Json, folder: Path) -> Iterator[None]:
    authority = Authority(folder)
    pair = authority.issue("injector")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    asked = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.set()
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {"uid": review["request"]["uid"], **answer}
            body = json.dumps({**review, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collection = path_of("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
    name = f"injector-{namespace}"
    try:
        plane.api.create(collection, _configuration(name, namespace, server.server_port, authority))
        until(lambda: _in_force(plane, namespace, asked), "the webhook in force")
        yield
    finally:
        plane.api.delete(f"{collection}/{name}")
        server.shutdown()
        server.server_close()


def _in_force(plane: ControlPlane, namespace: str, asked: threading.Event) -> bool:
    spec = {"containers": [{"name": "any", "image": "busybox"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried-out"}, "spec": spec}
    with contextlib.suppress(ApiError):
        plane.api.try_out(namespace, pod)
    return asked.is_set()


def _configuration(name: str, namespace: str, port: int, authority: Authority) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "injector.test.example",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {
                    "url": f"https://127.0.0.1:{port}/",
                    "caBundle": base64.b64encode(authority.certificate.read_bytes()).decode(),
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["pods"],
                        "operations": ["CREATE"],
                    }
                ],
            }
        ],
    }
