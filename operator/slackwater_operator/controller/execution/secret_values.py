"""Reads values of a Secret by its name."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from slackwater.kafka.net.security.tls import is_text
from slackwater_operator.kubernetes.errors import KubeError
from slackwater_operator.kubernetes.object_api import ObjectApi


class SecretProblem(Exception):
    """A Secret that cannot be used. The message names it, says why and what to do, and shows no value."""


def secret_name(namespace: str, name: str) -> str:
    """A Secret in messages; in a local run there are no namespaces."""
    return f"Secret {namespace}/{name}" if namespace else f"Secret {name}"


async def read_secret(kube: ObjectApi, namespace: str, name: str, keys: Sequence[str]) -> dict[str, str]:
    """The values of a Secret's keys, as text without a line end after it.

    Raises:
        SecretProblem: the Secret cannot be read, lacks a key, or a value is not text.
    """
    shown = secret_name(namespace, name)
    try:
        secret = await kube.get("v1", "Secret", namespace, name)
    except KubeError as error:
        raise SecretProblem(f"{shown} cannot be read: {error}") from None
    if secret is None:
        raise SecretProblem(f"{shown} does not exist; create it with {' and '.join(keys)}")
    data, values = secret.get("data") or {}, {}
    for key in keys:
        if key not in data:
            raise SecretProblem(f"{shown} has no key {key}; add it")
        try:
            values[key] = base64.b64decode(data[key]).decode().rstrip("\r\n")
        except (binascii.Error, UnicodeDecodeError):
            raise SecretProblem(f"{shown}: the value of {key} is not UTF-8 text; replace it") from None
    return values


def check_pem(secret: str, key: str, value: str) -> None:
    """Refuses a value that the TLS settings would take for the path of a file in this process' file system.

    Args:
        secret: the Secret in messages (:func:`secret_name`).
        key: its key.
        value: of the key.

    Raises:
        SecretProblem: the value is not PEM text.
    """
    if not is_text(value):
        raise SecretProblem(f"{secret}: the value of {key} is not PEM (-----BEGIN ...); replace it")
