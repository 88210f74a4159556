"""Finds the API server and the credentials: KUBECONFIG, a pod's service account, or ~/.kube/config."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_kube_config

from slackwater_operator.kubernetes.errors import KubeConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE_S = 60.0
"""The kubelet replaces a projected token long before it ends; client-go reads it every minute, too."""
KUBECONFIG = "KUBECONFIG"
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
POOL_SIZE = 32


@dataclass(frozen=True)
class _Endpoint:
    """An API server's address and TLS settings, from a configuration.

    Attributes:
        server: its URL, without a slash at the end.
        tls: how to reach it; None for plain HTTP.
        server_name: the name in its certificate where that is not the URL's; else empty.
        proxy: URL of an HTTP proxy; else empty.
        namespace: the default one.
    """

    server: str
    tls: ssl.SSLContext | None
    server_name: str
    proxy: str
    namespace: str


class Access:
    """One API server's address and the credentials of each request. More than one event loop may use it."""

    def __init__(
        self, endpoint: _Endpoint, authorization: str, *, token_file: Path | None, context: str
    ) -> None:
        """Use `find`."""
        self.server = endpoint.server
        self.namespace = endpoint.namespace
        self._endpoint = endpoint
        self._authorization = authorization
        self._token_file = token_file
        self._context = context
        self._read_at_s = time.monotonic()

    @classmethod
    async def find(cls, context: str = "") -> Self:
        """Looks where kubectl looks: KUBECONFIG where it is set, else in the pod, else ~/.kube/config.

        Args:
            context: the kubeconfig's context; empty: its current one. With it, the pod's account is not
                looked at.

        Raises:
            KubeConfigError: nothing there, or not usable.
        """
        if not context and not os.environ.get(KUBECONFIG) and os.environ.get(HOST):
            return cls._in_pod()
        endpoint, authorization = await _from_kubeconfig(context)
        return cls(endpoint, authorization, token_file=None, context=context)

    @classmethod
    def _in_pod(cls) -> Self:
        host, port = os.environ[HOST], os.environ.get(PORT, "443")
        shown = f"[{host}]" if ":" in host else host
        try:
            token = _token(SERVICE_ACCOUNT / "token")
            tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
            namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        except (OSError, ssl.SSLError) as error:
            raise KubeConfigError(
                f"the service account files in {SERVICE_ACCOUNT} cannot be used: {error}; check "
                "automountServiceAccountToken"
            ) from error
        endpoint = _Endpoint(f"https://{shown}:{port}", tls, "", "", namespace)
        return cls(endpoint, token, token_file=SERVICE_ACCOUNT / "token", context="")

    async def authorization(self) -> str:
        """The header `Authorization`; empty with a client certificate."""
        if self._token_file and time.monotonic() - self._read_at_s > TOKEN_MAX_AGE_S:
            await self.renew()
        return self._authorization

    async def renew(self) -> None:
        """Reads the credentials again: the token's file, or the kubeconfig with its plugin."""
        self._read_at_s = time.monotonic()
        if self._token_file is None:
            _, self._authorization = await _from_kubeconfig(self._context)
            return
        try:
            self._authorization = _token(self._token_file)
        except OSError as error:
            raise KubeConfigError(f"{self._token_file} cannot be read: {error}") from error

    def session(self, *, timeout_s: float | None) -> aiohttp.ClientSession:
        """A pool of connections with these credentials, for the running loop. The caller closes it.

        Args:
            timeout_s: of a whole request; None: no limit but the request's own.
        """
        connector = aiohttp.TCPConnector(limit=POOL_SIZE if timeout_s else 0, ssl=self._endpoint.tls or True)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            proxy=self._endpoint.proxy or None,
            headers={"User-Agent": "slackwater-operator"},
            middlewares=(self._authorize,),
        )

    async def _authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if self._endpoint.server_name:
            request.server_hostname = self._endpoint.server_name
        response = await self._send(request, handler)
        if response.status == 401:  # expired earlier than expected: once more with fresh credentials
            response.release()
            await self.renew()
            response = await self._send(request, handler)
        return response

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        authorization = await self.authorization()
        if authorization:
            request.headers["Authorization"] = authorization
        return await handler(request)


def _token(path: Path) -> str:
    token = path.read_text().strip()
    if not token:
        raise OSError(f"{path} is empty")
    return f"Bearer {token}"


async def _from_kubeconfig(context: str) -> tuple[_Endpoint, str]:
    named = os.environ.get(KUBECONFIG, "")
    paths = named or str(Path.home() / ".kube" / "config")
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        hint = "" if named else f"; set {KUBECONFIG}"
        raise KubeConfigError(f"no Kubernetes configuration: {paths} does not exist{hint}")
    settings = Configuration()
    try:
        loader = await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=paths, context=context or None, client_configuration=settings, persist_config=False
        )
        namespace = str(loader.current_context["context"].get("namespace") or "default")
        tls = await asyncio.to_thread(_tls, settings) if settings.host.startswith("https") else None
    except (
        ConfigException,
        OSError,
        ssl.SSLError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        yaml.YAMLError,
    ) as error:
        which = f", context {context}" if context else ""
        raise KubeConfigError(f"{paths}{which} cannot be used: {' '.join(str(error).split())}") from error
    endpoint = _Endpoint(
        settings.host.rstrip("/"), tls, settings.tls_server_name or "", settings.proxy or "", namespace
    )
    return endpoint, await _header(settings)


async def _header(settings: Configuration) -> str:
    key = await settings.get_api_key_with_prefix("BearerToken")
    if key:
        return str(key)
    if settings.username and settings.password:
        pair = f"{settings.username}:{settings.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()
    return ""


def _tls(settings: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context
