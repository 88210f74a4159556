"""The XML API of Google Cloud Storage in front of fake-gcs-server: ``python -m ... PORT PORT_OF_THE_SERVER``.

fake-gcs-server (``tools/gcs/go.mod``) has the JSON API with preconditions. obstore and deltalake write by the
XML API, of which it has reads, deletes and listings (without ``start-after``, which is added here). Writes
are translated:

- ``PUT`` of an object with ``x-goog-if-generation-match`` is an upload with ``ifGenerationMatch``, which
  fake-gcs-server checks and carries out at once;
- ``PUT`` with ``x-goog-copy-source`` is the same with the content of another object;
- the parts of a multipart upload are kept here until it is completed, and are one upload then.

It is a process of its own, because deltalake lists files with the interpreter's lock held.
"""

from __future__ import annotations

import http.server
import itertools
import json
import sys
import threading
import xml.etree.ElementTree as ET
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.stores.gate import BUCKET, HttpThread, ask, pass_on, request_body

_CONDITION = "x-goog-if-generation-match"
_COPY = "x-goog-copy-source"


class XmlApi:
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
    def _answer(client: http.server.BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
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


if __name__ == "__main__":
    HttpThread(XmlApi(int(sys.argv[2])).handle, int(sys.argv[1]))
    threading.Event().wait()
