"""Google Cloud Storage for tests: fake-gcs-server as a process of its own, with the XML API in front of it.

fake-gcs-server (``tools/gcs/go.mod``) has the JSON API with preconditions. obstore and deltalake write by the XML
API, of which it has the reads, deletes and listings (but ``start-after``, which is added here); writes are translated:

- ``PUT`` of an object with ``x-goog-if-generation-match`` is an upload with ``ifGenerationMatch``, which
  fake-gcs-server checks and carries out at once;
- ``PUT`` with ``x-goog-copy-source`` is the same with the content of another object;
- the parts of a multipart upload are kept here until it is completed, and are one upload then.

Credentials are not checked.
"""

from __future__ import annotations

import http.server
import itertools
import json
import tempfile
import xml.etree.ElementTree as ET
from types import TracebackType
from urllib.parse import parse_qs, quote, unquote, urlsplit

from obstore.store import from_url
from pyarrow.fs import GcsFileSystem

from tests.support.controlplane import build
from tests.support.processes import OwnedProcess, reserve_ports
from tests.support.stores.gate import BUCKET, HttpThread, ask, pass_on, request_body
from tests.support.stores.objects import Objects
from tests.support.waiting import wait_until

_CONDITION = "x-goog-if-generation-match"
_COPY = "x-goog-copy-source"


class _XmlApi:
    """Translates what a client of the XML API writes for a fake-gcs-server on ``port``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count(1)
        self._uploads: dict[str, dict[int, bytes]] = {}

    def handle(self, client: http.server.BaseHTTPRequestHandler) -> None:
        """Answers a request."""
        body = request_body(client)
        parts = urlsplit(client.path)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}/")
        query = parse_qs(parts.query, keep_blank_values=True)
        upload = query.get("uploadId", [""])[0]
        match client.command:
            case "POST" if "uploads" in query:
                upload = f"upload-{next(self._numbers)}"
                self._uploads[upload] = {}
                self._answer(client, 200, _xml("InitiateMultipartUploadResult", UploadId=upload))
            case "PUT" if upload:
                number = int(query["partNumber"][0])
                self._uploads[upload][number] = body
                self._answer(client, 200, b"", ETag=f'"{number}"')
            case "POST" if upload in self._uploads:
                content = b"".join(part for _, part in sorted(self._uploads.pop(upload).items()))
                self._write(client, key, content, _xml("CompleteMultipartUploadResult", ETag='"all"'))
            case "DELETE" if upload:
                self._uploads.pop(upload, None)
                self._answer(client, 204, b"")
            case "PUT":
                if source := client.headers.get(_COPY):
                    answer, body = ask(self._port, "GET", f"/{source}", b"", {})
                    if answer.status != 200:
                        self._answer(client, answer.status, b"")
                        return
                self._write(client, key, body, b"<CopyObjectResult/>" if source else b"")
            case "GET" if after := query.get("start-after", [""])[0]:
                answer, listing = ask(self._port, "GET", client.path, b"", {})
                self._answer(client, answer.status, _after(listing, after))
            case _:
                headers = {name: value for name, value in client.headers.items() if name.lower() != "host"}
                pass_on(client, *ask(self._port, client.command, client.path, body, headers))

    def _write(
        self, client: http.server.BaseHTTPRequestHandler, key: str, content: bytes, done: bytes
    ) -> None:
        condition = client.headers.get(_CONDITION)
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}"
        if condition is not None:
            path += f"&ifGenerationMatch={condition}"
        headers = {"Content-Type": "application/octet-stream"}
        answer, said = ask(self._port, "POST", path, content, headers)
        if answer.status != 200:
            self._answer(client, answer.status, said)
            return
        document = json.loads(said)
        self._answer(
            client, 200, done, ETag=f'"{document["etag"]}"', **{"x-goog-generation": document["generation"]}
        )

    @staticmethod
    def _answer(
        client: http.server.BaseHTTPRequestHandler, status: int, body: bytes, **headers: str
    ) -> None:
        client.send_response_only(status)
        for name, value in headers.items():
            client.send_header(name, value)
        client.send_header("Content-Length", str(len(body)))
        client.end_headers()
        client.wfile.write(body)


def _after(listing: bytes, key: str) -> bytes:
    """The part of a listing behind ``key``."""
    root = ET.fromstring(listing)
    for element in root.findall("Contents"):
        if (element.findtext("Key") or "") <= key:
            root.remove(element)
    return ET.tostring(root)


def _xml(name: str, **fields: str) -> bytes:
    return f"<{name}>{''.join(f'<{key}>{value}</{key}>' for key, value in fields.items())}</{name}>".encode()


class GoogleServer:
    """fake-gcs-server and the XML API, each on a port of 127.0.0.1, until the block or the test process ends."""

    scheme = "gs"
    part_mark = "partNumber="

    def __enter__(self) -> GoogleServer:
        (self._json_port,) = reserve_ports(1)
        self._output = tempfile.TemporaryFile()
        self._process = OwnedProcess(
            [
                str(build.fake_gcs_server()), "-scheme", "http", "-host", "127.0.0.1",
                "-port", str(self._json_port), "-backend", "memory", "-log-level", "error",
                # Requests for another host are for the bucket of that name.
                "-public-host", f"127.0.0.1:{self._json_port}",
            ],
            output=self._output.fileno(),
        )  # fmt: skip
        wait_until(self._answers, "fake-gcs-server answers")
        self._http = HttpThread(_XmlApi(self._json_port).handle)
        self.port = self._http.port
        ask(
            self._json_port, "POST", "/storage/v1/b?project=test", json.dumps({"name": BUCKET}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        config = self.options()
        allow_http = {"allow_http": config.pop("google_allow_http")}
        objects = Objects(from_url(f"gs://{BUCKET}", config=config, client_options=allow_http))  # type: ignore[call-overload]
        self.keys, self.read, self.delete = objects.keys, objects.read, objects.delete
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._process.kill()
        self._output.close()

    def _answers(self) -> bool:
        if not self._process.running():
            self._output.seek(0)
            raise AssertionError(f"fake-gcs-server has ended: {self._output.read().decode()[-3000:]}")
        try:
            answer, _ = ask(self._json_port, "GET", "/_internal/healthcheck", b"", {})
        except OSError:
            return False
        return answer.status == 200

    def is_copy(self, method: str, path: str) -> bool:
        """Whether a request puts an object in its place that was staged: a copy is a PUT of its target."""
        return method == "PUT" and "uploadId=" not in path

    def file_system(self) -> GcsFileSystem:
        """pyarrow's own client, as a reader that knows nothing of Slackwater has it."""
        return GcsFileSystem(
            anonymous=True, endpoint_override=f"127.0.0.1:{self._json_port}", scheme="http"
        )

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
