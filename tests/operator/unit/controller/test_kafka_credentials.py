"""The credentials with which the operator observes a group's Kafka, from the Secrets that the group names."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater_operator.controller.execution.credentials import options
from slackwater_operator.kafka.clusters import ClusterIdentity
from tests.support.kafka.certificates import Authority

AUTHORITY = Authority("kafka-ca")
CLIENT = AUTHORITY.issue("operator")
PEM = {"ca.crt": AUTHORITY.pem, "tls.crt": CLIENT.cert, "tls.key": CLIENT.key}


class Secrets:
    """The API server with the Secret kafka/tls."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return {"data": self.data} if (namespace, name) == ("kafka", "tls") else None


def cluster(*kinds: str) -> ClusterIdentity:
    properties = {"security.protocol": "SSL", **dict.fromkeys(kinds, "tls")}
    return ClusterIdentity("kafka:9093", tuple(properties.items()), ("kafka/tls@1",))


async def test_certificates_come_from_the_secrets() -> None:
    given = await options(Secrets(PEM))(cluster("secret.ca", "secret.certificate"))  # type: ignore[arg-type]
    security = given["security"]
    assert (security.ca, security.cert) == (PEM["ca.crt"].rstrip(), PEM["tls.crt"].rstrip())


@pytest.mark.parametrize("key", PEM)
async def test_a_value_is_not_taken_for_a_file_of_the_operator(key: str) -> None:
    """A path would let the author of a group read a certificate or a key from the operator's own pod."""
    read = options(Secrets({**PEM, key: "/var/run/secrets/tls.crt"}))  # type: ignore[arg-type]
    with pytest.raises(KafkaConfigurationError, match=rf"Secret kafka/tls: the value of {key} is not PEM"):
        await read(cluster("secret.ca", "secret.certificate"))
