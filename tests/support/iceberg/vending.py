"""A REST catalog that wants tokens of an OAuth2 issuer and hands out credentials for the store, for tests.

Iceberg's own REST catalog does neither. This is a proxy in front of it, which is the issuer, too. The
credentials are of moto's STS.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from tests.support.iceberg.rest import TOKEN, RestCatalogServer
from tests.support.stores.gate import HttpThread, ask, pass_on, request_body
from tests.support.stores.s3 import S3Server

CLIENT, SECRET, SCOPE = "slackwater", "open-sesame-5c1d", "lake:write"
_ASSUME = (
    b"Action=AssumeRole&Version=2011-06-15&RoleSessionName=worker&RoleArn=arn:aws:iam::123456789012:role/lake"
)
_STS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test-key-id/20260101/us-east-1/sts/aws4_request, "
    "SignedHeaders=host, Signature=0",
    "Content-Type": "application/x-www-form-urlencoded",
}


class VendingCatalog:
    """``catalog`` behind a proxy on a port of 127.0.0.1, and its ``store`` behind another one, until the
    block ends. Each takes only what was handed out since the last :meth:`expire`.

    ``tokens``, ``keys``: what was handed out so far; ``expired``: how often one was refused as it had
    expired.
    """

    def __init__(self, catalog: RestCatalogServer, store: S3Server) -> None:
        self._catalog, self._store = catalog, store
        self._lock = threading.Lock()
        self.tokens: list[str] = []
        self.keys: list[str] = []
        self.expired = 0
        self._valid: set[str] = set()

    def __enter__(self) -> Self:
        self._front, self._objects = HttpThread(self._answer), HttpThread(self._object)
        self.url = f"http://127.0.0.1:{self._front.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._front.close()
        self._objects.close()

    def options(self, **more: str) -> dict[str, str]:
        """Options of the sink."""
        return {
            "type": "rest", "uri": self.url, "credential": f"{CLIENT}:{SECRET}", "scope": SCOPE,
            "oauth2-server-uri": f"{self.url}/issuer/token", **more,
        }  # fmt: skip

    def expire(self) -> None:
        """All tokens and credentials that were handed out are refused from now on."""
        with self._lock:
            self._valid.clear()

    def _is_valid(self, given: str) -> bool:
        with self._lock:
            is_valid = given in self._valid
            self.expired += not is_valid and given in (*self.tokens, *self.keys)
            return is_valid

    def _hand_out(self, kind: list[str], value: str) -> str:
        with self._lock:
            kind.append(value)
            self._valid.add(value)
        return value

    def _answer(self, client: http.server.BaseHTTPRequestHandler) -> None:
        body = request_body(client)
        if client.path == "/issuer/token":
            _say(client, *self._token({name: each[0] for name, each in parse_qs(body.decode()).items()}))
            return
        if not self._is_valid((client.headers["Authorization"] or "").removeprefix("Bearer ")):
            said = {"message": "Not authorized", "type": "NotAuthorizedException", "code": 401}
            _say(client, 401, {"error": said})
            return
        headers = {**dict(client.headers), "Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "identity"}
        answer, content = ask(self._catalog.port, client.command, client.path, body, headers)
        if answer.status == 200 and b'"metadata"' in content:
            wanted = client.headers["X-Iceberg-Access-Delegation"]
            assert wanted == "vended-credentials", wanted
            table = json.loads(content)
            _say(client, 200, {**table, "config": {**table.get("config", {}), **self._credentials()}})
            return
        pass_on(client, answer, content)

    def _token(self, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if (asked["client_id"], asked["client_secret"]) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client", "error_description": "who is that"}
        if (asked["grant_type"], asked["scope"]) != ("client_credentials", SCOPE):
            return 400, {"error": "invalid_scope", "error_description": "not that one"}
        token = self._hand_out(self.tokens, f"token-{len(self.tokens)}")
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": 1}

    def _credentials(self) -> dict[str, str]:
        _, answer = ask(self._store.port, "POST", "/", _ASSUME, _STS)
        key, secret, token = (
            re.findall(f"<{name}>(.*?)</{name}>", answer.decode())[0]
            for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
        )
        return {
            "s3.endpoint": f"http://127.0.0.1:{self._objects.port}",
            "s3.region": "us-east-1",
            "s3.access-key-id": self._hand_out(self.keys, key),
            "s3.secret-access-key": secret,
            "s3.session-token": token,
        }

    def _object(self, client: http.server.BaseHTTPRequestHandler) -> None:
        body = request_body(client)
        key = re.findall(r"Credential=([^/]+)/", client.headers["Authorization"] or "")
        if not key or not self._is_valid(key[0]):
            said = (
                b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            )
            _write(client, 403, "application/xml", said)
            return
        pass_on(client, *ask(self._store.port, client.command, client.path, body, dict(client.headers)))


def _say(client: http.server.BaseHTTPRequestHandler, status: int, content: object) -> None:
    _write(client, status, "application/json", json.dumps(content).encode())


def _write(client: http.server.BaseHTTPRequestHandler, status: int, kind: str, content: bytes) -> None:
    client.send_response_only(status)
    client.send_header("Content-Type", kind)
    client.send_header("Content-Length", str(len(content)))
    client.end_headers()
    if client.command != "HEAD":
        client.wfile.write(content)
