"""Google Cloud Storage for tests: fake-gcs-server, and the XML API in front of it, each a process of its own.

Credentials are not checked.
"""

from __future__ import annotations

import json
import sys
from types import TracebackType

from pyarrow.fs import GcsFileSystem

from tests.support.controlplane import build
from tests.support.kafka.jars import ROOT
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.stores.gate import BUCKET, ask
from tests.support.stores.objects import Objects


class GoogleServer:
    """fake-gcs-server and the XML API, each on a port of 127.0.0.1, until the block ends or the test
    process does."""

    scheme = "gs"
    iceberg_scheme = "gs"
    part_mark = "partNumber="

    def __enter__(self) -> GoogleServer:
        self._json_port, self.port = reserve_ports(2)
        self._process = ServerProcess(
            "fake-gcs-server",
            [
                str(build.fake_gcs_server()), "-scheme", "http", "-host", "127.0.0.1",
                "-port", str(self._json_port), "-backend", "memory", "-log-level", "error",
                # Requests for another host are for the bucket of that name.
                "-public-host", f"127.0.0.1:{self._json_port}",
            ],
        )  # fmt: skip
        self._process.await_ready(lambda: self._answers(self._json_port))
        self._xml = ServerProcess(
            "the XML API of fake-gcs-server",
            [sys.executable, "-m", "tests.support.stores.google_xml", str(self.port), str(self._json_port)],
            cwd=ROOT,
        )
        self._xml.await_ready(lambda: self._answers(self.port))
        ask(
            self._json_port, "POST", "/storage/v1/b?project=test", json.dumps({"name": BUCKET}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        objects = Objects(f"{self.scheme}://{BUCKET}", self.options())
        self.keys, self.read, self.delete = objects.keys, objects.read, objects.delete
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._xml.kill()
        self._process.kill()

    def _answers(self, port: int) -> bool:
        answer, _ = ask(port, "GET", "/_internal/healthcheck", b"", {})
        return answer.status == 200

    def is_copy(self, method: str, path: str) -> bool:
        """Whether a request puts an object in its place that was staged: a copy is a PUT of its target."""
        return method == "PUT" and "uploadId=" not in path

    def file_system(self) -> GcsFileSystem:
        """pyarrow's own client, as a reader that knows nothing of Slackwater has it."""
        return GcsFileSystem(anonymous=True, endpoint_override=f"127.0.0.1:{self._json_port}", scheme="http")

    def options(self, url: str = "", **more: str) -> dict[str, str]:
        """Storage options for this server, or for a gate at ``url``."""
        return {
            "google_service_account_key": json.dumps(
                {
                    "gcs_base_url": url or f"http://127.0.0.1:{self.port}",
                    "disable_oauth": True,
                    **dict.fromkeys(("client_email", "private_key", "private_key_id"), ""),
                }
            ),
            "google_allow_http": "true",
            **more,
        }

    def iceberg_properties(self) -> dict[str, str]:
        """Properties of pyiceberg for this server."""
        return {
            "gcs.service.host": f"http://127.0.0.1:{self._json_port}",
            "gcs.oauth2.token": "any",
            "gcs.oauth2.token-expires-at": "4102444800000",
        }
