"""spec.kafka of a ConsumerGroup: its connection to Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slackwater import fields
from slackwater.fields import FieldError, Rule, required, spec
from slackwater.runtime.config.worker_config import GROUP_PROTOCOLS, OF_CLASSIC_ALONE
from slackwater_operator.api.v1alpha1 import validation
from slackwater_operator.api.v1alpha1.validation import (
    DEFAULT_SESSION_TIMEOUT_MS,
    MAX_SESSION_TIMEOUT_MS,
    MIN_SESSION_TIMEOUT_MS,
    RESERVED_PROPERTIES,
)

SECRET = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_SERVER = r"([A-Za-z][A-Za-z0-9._-]*://)?(\[[^\s,\[\]]+\]|[^\s,:]+):[0-9]{1,5}"
_SERVERS = rf"{_SERVER}(,\s*{_SERVER})*"

_RESERVED_RULES = [
    Rule(
        f"!('{name}' in self)",
        f"{name} is set by Slackwater; remove it ({advice})",
    )
    for name, advice in sorted(RESERVED_PROPERTIES.items())
]


def _number_rule(name: str) -> Rule:
    value = f"self['{name}']"
    return Rule(
        f"!('{name}' in self) || {value}.matches('^[0-9]{{1,9}}$')",
        f'{name} must be a number of milliseconds in quotes, such as "45000"',
    )


def _if_number(name: str, rule: str) -> str:
    """The CEL rule, which also holds if the property is left out or is not a number (another rule
    checks that)."""
    return f"!('{name}' in self) || !self['{name}'].matches('^[0-9]{{1,9}}$') || ({rule})"


_PROPERTY_RULES = [
    *_RESERVED_RULES,
    Rule(
        "!self.exists(name, "
        + " || ".join(f"name.startsWith('{prefix}')" for prefix in validation.RESERVED_PREFIXES)
        + ")",
        "properties that begin with sasl., security. or ssl. are not allowed here; use spec.kafka.security",
    ),
    *(_number_rule(name) for name in validation.TIMES),
    Rule(
        _if_number(
            "session.timeout.ms",
            f"int(self['session.timeout.ms']) >= {MIN_SESSION_TIMEOUT_MS} && "
            f"int(self['session.timeout.ms']) <= {MAX_SESSION_TIMEOUT_MS}",
        ),
        f"session.timeout.ms must be {MIN_SESSION_TIMEOUT_MS} to {MAX_SESSION_TIMEOUT_MS} milliseconds, "
        "the range that brokers accept by default",
    ),
    Rule(
        _if_number(
            "heartbeat.interval.ms",
            "'session.timeout.ms' in self ? !self['session.timeout.ms'].matches('^[0-9]{1,9}$') || "
            "int(self['heartbeat.interval.ms']) * 3 <= int(self['session.timeout.ms']) : "
            f"int(self['heartbeat.interval.ms']) * 3 <= {DEFAULT_SESSION_TIMEOUT_MS}",
        ),
        "heartbeat.interval.ms must be at most a third of session.timeout.ms (default "
        f"{DEFAULT_SESSION_TIMEOUT_MS}), so that a member survives a lost heartbeat; lower "
        "heartbeat.interval.ms, or raise session.timeout.ms",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Security:
    """Authentication and encryption. All values are names of Secrets."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "!self.protocol.startsWith('SASL_') || has(self.mechanism)",
            "is missing, but the protocol uses SASL; set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
            ".mechanism",
        ),
        Rule(
            "!self.protocol.startsWith('SASL_') || has(self.credentialsSecret)",
            "is missing, but the protocol uses SASL; name a Secret with the keys username and password",
            ".credentialsSecret",
        ),
        Rule(
            "self.protocol.startsWith('SASL_') || (!has(self.mechanism) && !has(self.credentialsSecret))",
            "mechanism and credentialsSecret require a SASL protocol; set protocol to SASL_SSL (or "
            "SASL_PLAINTEXT), or remove them",
        ),
        Rule(
            "self.protocol.endsWith('SSL') || (!has(self.caSecret) && !has(self.clientCertificateSecret))",
            "caSecret and clientCertificateSecret require TLS; set protocol to SSL or SASL_SSL, or remove "
            "them",
        ),
    ]

    protocol: str = spec(
        "protocol",
        fields.text(choices=["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]),
        "The security protocol of the brokers' listener, as in Kafka.",
        default="PLAINTEXT",
    )
    mechanism: str = spec(
        "mechanism",
        fields.text(choices=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
        "The SASL mechanism.",
        absent="",
    )
    credentials_secret: str = spec(
        "credentialsSecret",
        fields.text(pattern=SECRET, example="kafka-user", max_length=253),
        "The Secret with the keys username and password. Workers read it at each connection, so a new "
        "password requires no restart.",
        absent="",
    )
    ca_secret: str = spec(
        "caSecret",
        fields.text(pattern=SECRET, example="kafka-ca", max_length=253),
        "The Secret with the key ca.crt: the CA certificates (PEM) that the brokers' certificates are "
        "verified against. Defaults to the CAs that the image trusts.",
        absent="",
    )
    client_certificate_secret: str = spec(
        "clientCertificateSecret",
        fields.text(pattern=SECRET, example="kafka-client", max_length=253),
        "The Secret with the keys tls.crt and tls.key: the worker's client certificate, for brokers "
        "that require one.",
        absent="",
    )

    @property
    def sasl(self) -> bool:
        """Whether a user name and a password are given."""
        return self.protocol.startswith("SASL_")

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the Secrets, each once."""
        named = (self.credentials_secret, self.ca_secret, self.client_certificate_secret)
        return tuple(dict.fromkeys(name for name in named if name))


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """The group's connection to Kafka."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "self.groupProtocol != 'Consumer' || !has(self.properties) || "
            f"!self.properties.exists(name, name in {[*OF_CLASSIC_ALONE]})",
            validation.OF_CLASSIC_ALONE_ADVICE,
            ".properties",
        ),
    ]

    bootstrap_servers: str = required(
        "bootstrapServers",
        fields.text(pattern=_SERVERS, example="kafka.kafka.svc:9092"),
        "The brokers to connect to first, as HOST:PORT or [IPV6]:PORT, separated by commas.",
    )
    security: Security = spec(
        "security",
        fields.nested(Security),
        "Authentication and encryption of connections to the brokers. A local run reads the Secrets from "
        "files (--secrets).",
        default={},
    )
    group_protocol: str = spec(
        "groupProtocol",
        fields.text(choices=[*GROUP_PROTOCOLS]),
        "How the workers are members of the group: by the classic protocol, or by Kafka's consumer protocol "
        "(KIP-848; Kafka 4.0 or later). A change restarts them one after another, and no partition moves on "
        "the way to Consumer.",
        default="Classic",
    )
    properties: dict[str, str] = spec(
        "properties",
        fields.text_map(rules=_PROPERTY_RULES),
        "Kafka consumer properties by their Java names, such as session.timeout.ms (milliseconds). All "
        "values are text.",
        default={},
    )

    @property
    def consumer_protocol(self) -> bool:
        """Whether the workers are members by Kafka's consumer protocol."""
        return self.group_protocol == "Consumer"


def check_security(security: Security) -> None:
    """Refuses settings that exclude each other, as the CEL rules do.

    Raises:
        FieldError: names the field.
    """
    path = "spec.kafka.security"
    if security.sasl and not security.mechanism:
        raise FieldError(
            f"{path}.mechanism",
            "is missing, but the protocol uses SASL; set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
        )
    if security.sasl and not security.credentials_secret:
        raise FieldError(
            f"{path}.credentialsSecret",
            "is missing, but the protocol uses SASL; name a Secret with the keys username and password",
        )
    sasl = {"mechanism": security.mechanism, "credentialsSecret": security.credentials_secret}
    tls = {"caSecret": security.ca_secret, "clientCertificateSecret": security.client_certificate_secret}
    for fits, given, wants in (
        (security.sasl, sasl, "SASL_SSL (or SASL_PLAINTEXT)"),
        (security.tls, tls, "SSL or SASL_SSL"),
    ):
        for name, value in given.items():
            if value and not fits:
                raise FieldError(
                    f"{path}.{name}",
                    f"requires protocol {wants}, but the protocol is {security.protocol}; change the "
                    "protocol or remove this field",
                )
