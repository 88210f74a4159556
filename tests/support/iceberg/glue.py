"""AWS Glue's catalog for tests: moto's, which does not compare versions, behind a proxy that does."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from types import TracebackType
from typing import Any, Self

from tests.support.iceberg.catalogs import Catalog
from tests.support.stores.gate import BUCKET, HttpThread, ask, pass_on, request_body
from tests.support.stores.s3 import S3Server, installed

_TARGET = "X-Amz-Target"


def use_boto3() -> None:
    """Lets this process import boto3, which is in moto's environment alone."""
    (packages,) = installed().parents[1].glob("lib/python3*/site-packages")
    if str(packages) not in sys.path:
        sys.path.append(str(packages))


class GlueServer:
    """The Glue of ``store``, on a port of 127.0.0.1, until the block ends.

    ``UpdateTable`` must name the table's version, and is refused if that is not the current one, as AWS
    documents its ``VersionId``. ``updates``: the requests that were made; ``refused``: how many were refused;
    ``loses``: of how many of the next updates the answer is lost.
    """

    def __init__(self, store: S3Server) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.updates: list[dict[str, Any]] = []
        self.refused = self.loses = 0

    def __enter__(self) -> Self:
        self._http = HttpThread(self._answer)
        self.port = self._http.port
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def _answer(self, client: http.server.BaseHTTPRequestHandler) -> None:
        body, headers = request_body(client), dict(client.headers)
        if headers[_TARGET] != "AWSGlue.UpdateTable":
            pass_on(client, *ask(self._store.port, "POST", "/", body, headers))
            return
        asked = json.loads(body)
        with self._lock:
            current = self._table(asked["DatabaseName"], asked["TableInput"]["Name"], headers)
            if asked["VersionId"] == current["VersionId"]:
                self.updates.append(asked)
                answer = ask(self._store.port, "POST", "/", body, headers)
                if self.loses:
                    self.loses -= 1
                    client.close_connection = True
                else:
                    pass_on(client, *answer)
                return
            self.refused += 1
        refusal = b'{"__type": "ConcurrentModificationException", "Message": "another version"}'
        client.send_response_only(400)
        client.send_header("Content-Type", "application/x-amz-json-1.1")
        client.send_header("Content-Length", str(len(refusal)))
        client.end_headers()
        client.wfile.write(refusal)

    def _table(self, database: str, name: str, headers: dict[str, str]) -> dict[str, Any]:
        asked = json.dumps({"DatabaseName": database, "Name": name}).encode()
        same = {key: value for key, value in headers.items() if key != "Content-Length"}
        _, content = ask(self._store.port, "POST", "/", asked, {**same, _TARGET: "AWSGlue.GetTable"})
        table: dict[str, Any] = json.loads(content)["Table"]
        return table

    def options(self, url: str = "") -> dict[str, str]:
        """Options of the sink for this server, or for a gate at ``url``."""
        return {
            "type": "glue",
            "glue.endpoint": url or self.url,
            "client.region": "us-east-1",
            "client.access-key-id": "test-key-id",
            "client.secret-access-key": "test-secret-key",
            "warehouse": f"s3://{BUCKET}/glue",
            "s3.endpoint": self._store.url,
        }

    def catalog(self) -> Catalog:
        """It as a sink has it, with tables in the store."""
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=test-key-id/20260101/us-east-1/glue/aws4_request, "
            "SignedHeaders=host, Signature=0",
            "Content-Type": "application/x-amz-json-1.1",
        }

        def locate(table: str) -> str:
            database, _, name = table.partition(".")
            return str(self._table(database, name, headers)["Parameters"]["metadata_location"])

        return Catalog(
            locate, self.options(), lambda path: self._store.read(path.removeprefix(f"s3://{BUCKET}/"))
        )
