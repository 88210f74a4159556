"""What a query is sent to Prometheus with: credentials and TLS, from the Secrets that a group names."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.kafka.errors import KafkaError
from slackwater.kafka.net.security.settings import SSL, Security
from slackwater.kafka.net.security.tls import TlsContexts
from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity
from slackwater_operator.controller.execution.secret_values import (
    SecretProblem,
    check_pem,
    read_secret,
    secret_name,
)
from slackwater_operator.kubernetes.object_api import ObjectApi
from slackwater_operator.specs.worker_config import (
    CA,
    CERTIFICATE,
    KEY,
    PASSWORD,
    TOKEN,
    USERNAME,
    keys_by_secret,
)

FIELD = "spec.rollout.analysis.prometheus"
_HIDDEN = "***"


@dataclass(frozen=True)
class PrometheusAccess:
    """What a query is sent with. `repr` shows no secret.

    Attributes:
        headers: of the request.
        context: of TLS; None: the default one, which verifies the certificate by the CAs of the image.
        server_name: what the certificate must be valid for; "": the host of the URL.
        login: the Secret with the credentials and its keys, in words; "" without credentials.
        ca: the Secret with the CA, in words; "" without one.
        certificate: the Secret with the client certificate, in words; "" without one.
        confidential: texts that must not be shown.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str = ""
    login: str = ""
    ca: str = ""
    certificate: str = ""
    confidential: tuple[str, ...] = field(default=(), repr=False)

    def redacted(self, text: object) -> str:
        """The text without credentials: a server, or a proxy, may send back what it got."""
        shown = str(text)
        for secret in self.confidential:
            shown = shown.replace(secret, _HIDDEN)
        return shown


async def access_of(kube: ObjectApi, namespace: str, wanted: PrometheusSecurity) -> PrometheusAccess:
    """Reads the Secrets, each once.

    Args:
        kube: the API server.
        namespace: the group's.
        wanted: spec.rollout.analysis.prometheus.

    Raises:
        SecretProblem: a Secret is missing, lacks a key, or has a value that cannot be used.
    """
    keys: dict[str, list[str]] = {}
    for name, needed in keys_by_secret(wanted):
        keys.setdefault(name, []).extend(needed)  # cert-manager has CA and certificate in one Secret
    values = {name: await read_secret(kube, namespace, name, needed) for name, needed in keys.items()}
    headers, login, confidential = dict[str, str](), "", tuple[str, ...]()
    if wanted.token_secret:
        shown = secret_name(namespace, wanted.token_secret)
        headers, confidential = _bearer(shown, values[wanted.token_secret][TOKEN])
        login = f"{TOKEN} of {shown}"
    elif wanted.credentials_secret:
        shown = secret_name(namespace, wanted.credentials_secret)
        headers, confidential = _basic(shown, values[wanted.credentials_secret])
        login = f"{USERNAME} and {PASSWORD} of {shown}"
    return PrometheusAccess(
        headers,
        _context(namespace, wanted, values),
        wanted.server_name,
        login,
        f"{CA} of {secret_name(namespace, wanted.ca_secret)}" if wanted.ca_secret else "",
        f"{CERTIFICATE} of {secret_name(namespace, wanted.client_certificate_secret)}"
        if wanted.client_certificate_secret
        else "",
        confidential,
    )


def _bearer(secret: str, token: str) -> tuple[dict[str, str], tuple[str, ...]]:
    token = token.strip()
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise SecretProblem(
            f"{secret}: the value of {TOKEN} is no bearer token; it must be one word of ASCII characters"
        )
    return {"Authorization": f"Bearer {token}"}, (token,)


def _basic(secret: str, values: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    username, password = values[USERNAME], values[PASSWORD]
    if ":" in username or not username:
        raise SecretProblem(
            f"{secret}: the value of {USERNAME} is empty or has a colon, which basic authentication does not "
            "permit; correct it"
        )
    encoded = base64.b64encode(f"{username}:{password}".encode()).decode()
    hidden = (encoded, password) if password else (encoded,)
    return {"Authorization": f"Basic {encoded}"}, hidden


def _context(
    namespace: str, wanted: PrometheusSecurity, values: Mapping[str, Mapping[str, str]]
) -> ssl.SSLContext | None:
    ca = values[wanted.ca_secret][CA] if wanted.ca_secret else None
    context = None
    if ca is not None:
        context = _made(secret_name(namespace, wanted.ca_secret), {CA: ca}, ca=ca)
    if wanted.client_certificate_secret:
        mine = values[wanted.client_certificate_secret]
        cert, key = mine[CERTIFICATE], mine[KEY]
        shown = secret_name(namespace, wanted.client_certificate_secret)
        context = _made(shown, {CERTIFICATE: cert, KEY: key}, ca=ca, cert=cert, key=key)
    return context


def _made(
    secret: str, pem: Mapping[str, str], *, ca: str | None, cert: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """A context that verifies certificate and name. `pem` are the values of `secret` among the others."""
    for name, value in pem.items():
        check_pem(secret, name, value)
    try:
        contexts = TlsContexts(Security(protocol=SSL, ca=ca, cert=cert, key=key))
        return contexts.of(contexts.read())
    except KafkaError as error:
        raise SecretProblem(f"{secret}: {' and '.join(pem)} cannot be used: {error}; replace it") from None
