"""Finds the API server and the credentials: KUBECONFIG, a pod's service account, or ~/.kube/config."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import aiohttp

from slackwater_operator.kubernetes import kubeconfig
from slackwater_operator.kubernetes.credential_plugin import credentials
from slackwater_operator.kubernetes.errors import KubeConfigError
from slackwater_operator.kubernetes.kubeconfig import KubeConfig
from slackwater_operator.kubernetes.object_api import MANAGER

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
        context: the kubeconfig's that it is from, whatever becomes the current one; empty in a pod.
    """

    server: str
    tls: ssl.SSLContext | None
    server_name: str
    proxy: str
    namespace: str
    context: str


class Access:
    """One API server's address and the credentials of each request. More than one event loop may use it."""

    def __init__(self, endpoint: _Endpoint, authorization: str, *, token_file: Path | None) -> None:
        """Use `find`."""
        self.server = endpoint.server
        self.namespace = endpoint.namespace
        self._endpoint = endpoint
        self._authorization = authorization
        self._token_file = token_file
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
        endpoint, authorization, token_file = await _from_kubeconfig(context)
        return cls(endpoint, authorization, token_file=token_file)

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
        endpoint = _Endpoint(f"https://{shown}:{port}", tls, "", "", namespace, "")
        return cls(endpoint, token, token_file=SERVICE_ACCOUNT / "token")

    async def authorization(self) -> str:
        """The header `Authorization`; empty with a client certificate."""
        if self._token_file and time.monotonic() - self._read_at_s > TOKEN_MAX_AGE_S:
            await self.renew()
        return self._authorization

    async def renew(self) -> None:
        """Reads the credentials again: the token's file, or the kubeconfig with its plugin."""
        self._read_at_s = time.monotonic()
        if self._token_file is None:
            _, self._authorization, _ = await _from_kubeconfig(self._endpoint.context)
            return
        try:
            self._authorization = _token(self._token_file)
        except OSError as error:
            raise KubeConfigError(f"{self._token_file} cannot be read: {error}") from error

    def session(self, *, timeout_s: float | None, user_agent: str = MANAGER) -> aiohttp.ClientSession:
        """A pool of connections with these credentials, for the running loop. The caller closes it.

        Args:
            timeout_s: of a whole request; None: no limit but the request's own.
            user_agent: what the API server's audit log shows.
        """
        connector = aiohttp.TCPConnector(limit=POOL_SIZE if timeout_s else 0, ssl=self._endpoint.tls or True)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            proxy=self._endpoint.proxy or None,
            headers={"User-Agent": user_agent},
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


async def _from_kubeconfig(context: str) -> tuple[_Endpoint, str, Path | None]:
    """The endpoint, the header `Authorization`, and the file with its token."""
    named = os.environ.get(KUBECONFIG, "")
    paths = named or str(Path.home() / ".kube" / "config")
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        hint = "" if named else f"; set {KUBECONFIG}"
        raise KubeConfigError(f"no Kubernetes configuration: {paths} does not exist{hint}")
    try:
        config = await asyncio.to_thread(kubeconfig.read, paths, context)
        if config.plugin is not None and not config.token and config.token_file is None:
            by_plugin = await credentials(config)
            config = replace(
                config,
                token=by_plugin.token,
                certificate=by_plugin.certificate or config.certificate,
                key=by_plugin.key or config.key,
            )
        tls = await asyncio.to_thread(_tls, config) if config.server.startswith("https") else None
        authorization = _header(config)
    except (OSError, ssl.SSLError, ValueError, KeyError, TypeError) as error:
        which = f", context {context}" if context else ""
        raise KubeConfigError(f"{paths}{which} cannot be used: {' '.join(str(error).split())}") from error
    where = (config.server, tls, config.server_name, config.proxy, config.namespace, config.context)
    return _Endpoint(*where), authorization, None if config.token else config.token_file


def _header(config: KubeConfig) -> str:
    if config.token:
        return f"Bearer {config.token}"
    if config.token_file is not None:
        return _token(config.token_file)
    if config.basic is not None:
        return "Basic " + base64.b64encode(":".join(config.basic).encode()).decode()
    return ""


def _tls(config: KubeConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=config.ca or None)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.certificate:
        # Python reads a certificate and its key from files alone.
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
            for path, text in ((certificate, config.certificate), (key, config.key)):
                path.touch(mode=0o600)
                path.write_text(text, encoding="utf-8")
            context.load_cert_chain(certificate, key)
    return context
