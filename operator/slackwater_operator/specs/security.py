"""How a worker gets at the Secrets of spec.kafka.security: as files, which it reads at each connection."""

from __future__ import annotations

from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import Security
from slackwater_operator.model import names

USERNAME, PASSWORD = "username", "password"
CA = "ca.crt"
CERTIFICATE, KEY = "tls.crt", "tls.key"


def keys_by_secret(security: Security) -> list[tuple[str, tuple[str, ...]]]:
    """The Secrets that are used, each with the keys that it must have."""
    wanted = [
        (security.credentials_secret, (USERNAME, PASSWORD)),
        (security.ca_secret, (CA,)),
        (security.client_certificate_secret, (CERTIFICATE, KEY)),
    ]
    return [(secret, keys) for secret, keys in wanted if secret]


def volume_sources(security: Security) -> list[dict[str, Any]]:
    """The sources of the worker's projected volume: each key as a file under `kafka/`."""
    return [
        {"secret": {"name": secret, "items": [{"key": key, "path": f"kafka/{key}"} for key in keys]}}
        for secret, keys in keys_by_secret(security)
    ]


def worker_section(security: Security, folder: str = names.SECRETS_FOLDER) -> dict[str, str]:
    """The section `security` of a worker's configuration; empty for plain text without a password.

    Args:
        security: spec.kafka.security.
        folder: where the files are.
    """
    if security.protocol == "PLAINTEXT":
        return {}
    section = {"protocol": security.protocol}
    if security.sasl:
        section["mechanism"] = security.mechanism
        section["usernameFile"] = f"{folder}/{USERNAME}"
        section["passwordFile"] = f"{folder}/{PASSWORD}"
    if security.ca_secret:
        section["caFile"] = f"{folder}/{CA}"
    if security.client_certificate_secret:
        section["certFile"] = f"{folder}/{CERTIFICATE}"
        section["keyFile"] = f"{folder}/{KEY}"
    return section
