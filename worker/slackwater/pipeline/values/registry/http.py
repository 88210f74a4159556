"""HTTP to one address of a schema registry: one connection that is kept, answers of limited size."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from slackwater.kafka.errors import KafkaError
from slackwater.kafka.net.security.files import read_line
from slackwater.kafka.net.security.settings import Security
from slackwater.kafka.net.security.tls import TlsContexts
from slackwater.runtime.config.value_config import RegistryConfig
from slackwater.runtime.errors import ConfigError

MAX_BYTES = 16 << 20
_PIECE = 1 << 16
_TRY_AGAIN = (408, 425, 429)


class RegistryAwayError(Exception):
    """The address gives no usable answer now; it may later."""


@dataclass(frozen=True)
class RegistryResponse:
    """``url``: the one asked, for messages. ``document``: the JSON in the body; None where there is none."""

    url: str
    status: int
    document: Any

    @property
    def error_code(self) -> int | None:
        """The registry's own code in an error."""
        code = self.document.get("error_code") if isinstance(self.document, dict) else None
        return code if isinstance(code, int) else None

    @property
    def said(self) -> str:
        """The registry's message, to be put behind a status; "" without one."""
        message = self.document.get("message") if isinstance(self.document, dict) else None
        return f", {' '.join(message.split())[:200]!r}" if isinstance(message, str) else ""


class RegistryConnection:
    """Makes requests of ``url``, which may have a path."""

    def __init__(self, url: str, config: RegistryConfig) -> None:
        self._url, self._config = url, config
        parts = urlsplit(url)
        self._host, self._path, self._secure = parts.hostname or "", parts.path, parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._http: http.client.HTTPConnection | None = None
        self._contexts: TlsContexts | None = None

    def get(self, path: str, timeout: float) -> RegistryResponse:
        """Asks for ``path`` beneath the url. ``timeout``: seconds, for each wait and for the whole body.

        Raises :class:`RegistryAwayError`, and ConfigError for files that cannot be read or a certificate that
        is not accepted.
        """
        kept = self._http is not None
        try:
            return self._ask(path, timeout)
        except (ConnectionError, http.client.BadStatusLine) as exc:
            self.close()
            if not kept:
                raise self._away(exc) from exc
        except ssl.SSLCertVerificationError as exc:
            self.close()
            raise ConfigError(
                f"the certificate of {self._url} is not accepted ({exc.verify_message}): set caFile to the "
                "authority that has signed it, or correct the url",
                field="value.registry.caFile",
            ) from exc
        except (OSError, http.client.HTTPException) as exc:
            self.close()
            raise self._away(exc) from exc
        return self.get(path, timeout)  # the server has closed a connection that was kept

    def _ask(self, path: str, timeout: float) -> RegistryResponse:
        url = f"{self._url}{path}"
        if self._http is None:
            self._http = self._connect(timeout)
        elif self._http.sock is not None:
            self._http.sock.settimeout(timeout)
        self._http.request("GET", self._path + path, headers=self._headers())
        response = self._http.getresponse()
        body = self._body(response, url, timeout)
        if response.will_close:
            self.close()
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        answer = RegistryResponse(url, response.status, document)
        if response.status >= 500 or response.status in _TRY_AGAIN:
            raise RegistryAwayError(f"{url} answers HTTP {response.status}{answer.said}")
        return answer

    def _body(self, response: http.client.HTTPResponse, url: str, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        pieces, size = [], 0
        while piece := response.read1(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                self.close()
                raise RegistryAwayError(f"{url} has sent more than {MAX_BYTES >> 20} MiB")
            if time.monotonic() > deadline:
                self.close()
                raise RegistryAwayError(f"{url} has not sent its answer within {timeout:.1f} s")
        response.close()  # read1 leaves it open at its end, and the connection not ready for the next
        return b"".join(pieces)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        config = self._config
        if self._contexts is None:
            self._contexts = TlsContexts(
                Security(protocol="SSL", ca=config.ca_file, cert=config.cert_file, key=config.key_file)
            )
        try:
            context = self._contexts.of(self._contexts.read())
        except KafkaError as exc:
            raise ConfigError(str(exc), field="value.registry") from exc
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)

    def _headers(self) -> dict[str, str]:
        config = self._config
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if config.username_file is not None and config.password_file is not None:
            try:
                pair = ":".join(
                    (read_line("username", config.username_file), read_line("password", config.password_file))
                )
            except KafkaError as exc:
                raise ConfigError(str(exc), field="value.registry") from exc
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers

    def _away(self, exc: Exception) -> RegistryAwayError:
        said = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        return RegistryAwayError(f"{self._url}: {said}")

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._http is not None:
            self._http.close()
            self._http = None
