"""Asks Prometheus for one number: an instant query of its HTTP API, limited in time and bytes."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from slackwater.kafka.untrusted import json_object, one_line
from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity
from slackwater_operator.controller.execution.secret_values import SecretProblem
from slackwater_operator.controller.prometheus_access import FIELD, PrometheusAccess, access_of
from slackwater_operator.kubernetes.object_api import ObjectApi
from slackwater_operator.policies.rollout.analysis import MetricValue
from slackwater_operator.workers.bounded_http import Answer, BadAnswer, bounded_session, request

TIMEOUT_S = 10.0
LARGEST_BYTES = 256 * 1024
"""Of an answer. One number makes about a hundred bytes; more is a query that must be aggregated."""
NO_ADDRESS = "the operator has no --prometheus-url"
_LONGEST_ERROR = 300
_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH, _EXPIRED, _NOT_YET_VALID = 62, 64, 10, 9
"""OpenSSL's X509_V_ERR_* numbers (x509_vfy.h)."""
_CERTIFICATE = f"{FIELD}.clientCertificateSecret"
_NOT_ENCRYPTED = b"HTTP request to an HTTPS server"
"""What Go's HTTP server sends, with the status 400, to a client without TLS (net/http/server.go)."""


class Prometheus:
    """One Prometheus. Its methods raise nothing: what is wrong is the answer."""

    def __init__(self, url: str, kube: ObjectApi, *, timeout_s: float = TIMEOUT_S) -> None:
        """Opens nothing yet.

        Args:
            url: of Prometheus, such as `http://prometheus:9090`; "" without one.
            kube: gives the Secrets that a group names.
            timeout_s: bounds each query, with connecting.
        """
        self._url, self._kube, self._timeout_s = url.rstrip("/"), kube, timeout_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def _where(self) -> str:
        """Prometheus in messages; a URL may have a password, which is left out."""
        parts = urlsplit(self._url)
        return f"Prometheus at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    async def values(
        self, namespace: str, security: PrometheusSecurity | None, queries: Sequence[str]
    ) -> list[MetricValue]:
        """The results of queries, or for each why there is no number.

        Args:
            namespace: of the group that asks; its Secrets are there.
            security: spec.rollout.analysis.prometheus. The Secrets are read anew each time, and not kept.
            queries: in PromQL.
        """
        if not self._url:
            return [MetricValue(None, NO_ADDRESS) for _ in queries]
        if security is None:
            if self._session is None:
                self._session = bounded_session(self._timeout_s)
            return await self._ask(self._session, PrometheusAccess(), queries)
        if security.tls_fields and not self._url.startswith("https://"):
            problem = (
                f"{self._where} is asked without TLS, but {FIELD} has {' and '.join(security.tls_fields)}; "
                "change the operator's --prometheus-url to https://, or remove these fields"
            )
            return [MetricValue(None, problem) for _ in queries]
        try:
            access = await access_of(self._kube, namespace, security)
        except SecretProblem as error:
            problem = one_line(f"Prometheus is not asked: {error}", _LONGEST_ERROR)
            return [MetricValue(None, problem) for _ in queries]
        connector = aiohttp.TCPConnector(ssl=access.context or True)
        session = bounded_session(self._timeout_s, connector=connector)
        try:
            return await self._ask(session, access, queries)
        finally:
            await session.close()

    async def close(self) -> None:
        """Closes its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self, session: aiohttp.ClientSession, access: PrometheusAccess, queries: Sequence[str]
    ) -> list[MetricValue]:
        return await asyncio.gather(*(self._value(session, access, query) for query in queries))

    async def _value(
        self, session: aiohttp.ClientSession, access: PrometheusAccess, query: str
    ) -> MetricValue:
        url = f"{self._url}/api/v1/query?{urlencode({'query': query})}"
        try:
            answer = await request(
                session,
                "GET",
                url,
                most_bytes=LARGEST_BYTES,
                headers=access.headers,
                server_name=access.server_name,
            )
        except (BadAnswer, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return MetricValue(None, one_line(access.redacted(self._failure(error, access)), _LONGEST_ERROR))
        refused = self._refused(answer, access)
        if refused:
            return MetricValue(None, one_line(access.redacted(refused), _LONGEST_ERROR))
        return _number(answer, access)

    def _failure(self, error: Exception, access: PrometheusAccess) -> str:
        """Why there is no answer."""
        reason = _tls_error(error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return self._verification(reason, access)
        if reason is None:
            # The alert that says so is lost where the server closes the connection with our request unread.
            cut = isinstance(error, aiohttp.ServerDisconnectedError) or _is_reset(error)
            asked_for = cut and self._url.startswith("https://") and not access.certificate
            advice = f"; if it requires a client certificate, set {_CERTIFICATE}" if asked_for else ""
            return f"Prometheus: {str(error) or f'no answer within {self._timeout_s:g} s'}{advice}"
        words = str(reason.reason or reason).lower().replace("_", " ")
        if "alert" in words and any(word in words for word in ("certificate", "unknown ca", "handshake")):
            if access.certificate:
                return f"{self._where} refuses {access.certificate} ({words}); replace it"
            return f"{self._where} requires a client certificate ({words}); set {_CERTIFICATE}"
        return (
            f"no TLS connection to {self._where} ({words}); if it has no TLS, change the operator's "
            "--prometheus-url to http://"
        )

    def _verification(self, reason: ssl.SSLCertVerificationError, access: PrometheusAccess) -> str:
        certificate, code = f"the certificate of {self._where}", reason.verify_code
        words = str(reason.verify_message).rstrip(".")
        if code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
            advice = f"set {FIELD}.serverName to a name that it has"
            return f"{certificate} is for another name ({words}); {advice}"
        if code in (_EXPIRED, _NOT_YET_VALID):
            return f"{certificate} is not valid now ({words}); renew it"
        if access.ca:
            return f"{certificate} is not trusted by {access.ca} ({words}); correct that CA"
        return f"{certificate} is not trusted ({words}); name a Secret with its CA in {FIELD}.caSecret"

    def _refused(self, answer: Answer, access: PrometheusAccess) -> str:
        """Why an answer is none to a query that Prometheus has read; "" if it is one."""
        if answer.status == 400 and _NOT_ENCRYPTED in answer.body:
            return f"{self._where} requires TLS; change the operator's --prometheus-url to https://"
        status = f"HTTP status {answer.status}"
        if answer.status == 401 and access.login:
            return f"{self._where} refuses {access.login} ({status}); correct the Secret"
        if answer.status == 401:
            return (
                f"{self._where} requires authentication ({status}); set {FIELD}.tokenSecret or "
                "credentialsSecret"
            )
        if answer.status == 403:
            sender = access.login or "a request without credentials"
            advice = "grant it the right to read"
            return f"{self._where} does not permit the query with {sender} ({status}); {advice}"
        return ""


def _is_reset(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """The failure of TLS that a client's error is about; None if it is about something else."""
    known = (
        getattr(error, "certificate_error", None),
        getattr(error, "os_error", None),
        error.__cause__,
        error.__context__,
        error,
    )
    return next((reason for reason in known if isinstance(reason, ssl.SSLError)), None)


def _number(answer: Answer, access: PrometheusAccess) -> MetricValue:
    """The number of an answer; a vector must have one element."""
    try:
        document: Any = json_object(answer.body)
    except (ValueError, json.JSONDecodeError):
        document = {}
    if answer.status != 200 or document.get("status") != "success":
        said = access.redacted(document.get("error") or f"HTTP status {answer.status}")
        return MetricValue(None, f"Prometheus refuses the query: {one_line(said, _LONGEST_ERROR)}")
    data = document.get("data")
    kind = data.get("resultType") if isinstance(data, Mapping) else None
    result = data.get("result") if isinstance(data, Mapping) else None
    if kind == "vector" and isinstance(result, list):
        if len(result) != 1:
            problem = "no series" if not result else f"{len(result)} series; aggregate them, such as by sum()"
            return MetricValue(None, f"the query returns {problem}")
        result = result[0].get("value") if isinstance(result[0], Mapping) else None
    elif kind != "scalar":
        shown = one_line(access.redacted(kind), 50)
        return MetricValue(None, f"the query returns a {shown}, not one number")
    try:
        value = float(result[1])  # type: ignore[index]
    except (IndexError, TypeError, ValueError, KeyError):
        return MetricValue(None, "Prometheus' answer has no number")
    if not math.isfinite(value):
        return MetricValue(None, f"the query returns {value}")
    return MetricValue(value)
