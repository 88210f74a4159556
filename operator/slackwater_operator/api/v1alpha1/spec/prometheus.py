"""spec.rollout.analysis.prometheus of a ConsumerGroup: authentication and TLS of the analysis' queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slackwater import fields
from slackwater.fields import FieldError, Rule, spec
from slackwater_operator.api.v1alpha1.spec.kafka import SECRET

_HOST = r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?"
_ONE_LOGIN = "cannot be combined with credentialsSecret; remove one of them"


@dataclass(frozen=True, kw_only=True)
class PrometheusSecurity:
    """Authentication and TLS of the requests to Prometheus. The Secrets are in the group's namespace."""

    RULES: ClassVar[list[Rule]] = [
        Rule("!has(self.tokenSecret) || !has(self.credentialsSecret)", _ONE_LOGIN, ".tokenSecret")
    ]

    token_secret: str = spec(
        "tokenSecret",
        fields.text(pattern=SECRET, example="prometheus-token", max_length=253),
        "The Secret with the key token, which is sent as a bearer token. Not with credentialsSecret.",
        absent="",
    )
    credentials_secret: str = spec(
        "credentialsSecret",
        fields.text(pattern=SECRET, example="prometheus-user", max_length=253),
        "The Secret with the keys username and password, for HTTP basic authentication.",
        absent="",
    )
    ca_secret: str = spec(
        "caSecret",
        fields.text(pattern=SECRET, example="prometheus-ca", max_length=253),
        "The Secret with the key ca.crt: the CA certificates (PEM) that Prometheus' certificate is verified "
        "against. Defaults to the CAs that the operator's image trusts.",
        absent="",
    )
    client_certificate_secret: str = spec(
        "clientCertificateSecret",
        fields.text(pattern=SECRET, example="prometheus-client", max_length=253),
        "The Secret with the keys tls.crt and tls.key: the client certificate, for a Prometheus that "
        "requires one.",
        absent="",
    )
    server_name: str = spec(
        "serverName",
        fields.text(pattern=_HOST, example="prometheus.monitoring.svc", max_length=253),
        "The name that Prometheus' certificate must be valid for. Defaults to the host of --prometheus-url.",
        absent="",
    )

    @property
    def tls_fields(self) -> tuple[str, ...]:
        """The fields that are set and require TLS."""
        given = {
            "caSecret": self.ca_secret,
            "clientCertificateSecret": self.client_certificate_secret,
            "serverName": self.server_name,
        }
        return tuple(name for name, value in given.items() if value)


def check_prometheus(security: PrometheusSecurity) -> None:
    """Checks what the rule above checks on the API server.

    Raises:
        FieldError: names the field.
    """
    if security.token_secret and security.credentials_secret:
        raise FieldError("spec.rollout.analysis.prometheus.tokenSecret", _ONE_LOGIN)
