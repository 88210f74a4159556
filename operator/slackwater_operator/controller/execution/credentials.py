"""The operator's credentials at a Kafka cluster: its groups', from the Secrets of spec.kafka.security."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.security.settings import Security
from slackwater_operator.api.v1alpha1.spec.kafka import Kafka
from slackwater_operator.controller.execution.secret_values import (
    SecretProblem,
    check_pem,
    read_secret,
    secret_name,
)
from slackwater_operator.kafka.cluster_dns import depends_on_namespace
from slackwater_operator.kafka.clusters import ClusterIdentity
from slackwater_operator.kubernetes.object_api import ObjectApi
from slackwater_operator.kubernetes.store import Store
from slackwater_operator.specs.worker_config import CA, CERTIFICATE, KEY, PASSWORD, USERNAME

_PROTOCOL, _MECHANISM = "security.protocol", "sasl.mechanism"
# Which Secret is for what; in a ClusterIdentity beside the properties by Java's names.
_CREDENTIALS, _CA, _CERTIFICATE = "secret.credentials", "secret.ca", "secret.certificate"
_PEM = frozenset({CA, CERTIFICATE, KEY})


def identity(kafka: Kafka, group_namespace: str, store: Store) -> ClusterIdentity:
    """The cluster of a group in that namespace, with the credentials to observe it."""
    security = kafka.security
    namespace = group_namespace if depends_on_namespace(kafka.bootstrap_servers) else ""
    if security.protocol == "PLAINTEXT":
        return ClusterIdentity(kafka.bootstrap_servers, namespace=namespace)
    settings = {
        _PROTOCOL: security.protocol,
        _MECHANISM: security.mechanism,
        _CREDENTIALS: security.credentials_secret,
        _CA: security.ca_secret,
        _CERTIFICATE: security.client_certificate_secret,
    }
    secrets = tuple(
        f"{group_namespace}/{name}@{store.secret_version(group_namespace, name)}" for name in security.secrets
    )
    properties = tuple(sorted((name, value) for name, value in settings.items() if value))
    return ClusterIdentity(kafka.bootstrap_servers, properties, secrets, namespace)


def options(kube: ObjectApi) -> Callable[[ClusterIdentity], Awaitable[Mapping[str, Any]]]:
    """A function for `Clusters` that returns the security settings of a cluster's connections."""

    async def give(cluster: ClusterIdentity) -> Mapping[str, Any]:
        """Reads the Secrets. Raises KafkaConfigurationError where one cannot be used; it says why."""
        properties = dict(cluster.properties)
        if not properties:
            return {}
        namespace = cluster.secrets[0].partition("/")[0] if cluster.secrets else ""
        settings: dict[str, Any] = {
            "protocol": properties[_PROTOCOL],
            "mechanism": properties.get(_MECHANISM),
        }
        for kind, fields in (
            (_CREDENTIALS, {"username": USERNAME, "password": PASSWORD}),
            (_CA, {"ca": CA}),
            (_CERTIFICATE, {"cert": CERTIFICATE, "key": KEY}),
        ):
            if kind in properties:
                settings |= await _read(kube, namespace, properties[kind], fields)
        return {"security": Security(**settings)}

    return give


async def _read(kube: ObjectApi, namespace: str, name: str, fields: Mapping[str, str]) -> dict[str, str]:
    """The values of a Secret's keys, by the name that `Security` has for them."""
    try:
        values = await read_secret(kube, namespace, name, [*fields.values()])
        for key, value in values.items():
            if key in _PEM:
                check_pem(secret_name(namespace, name), key, value)
    except SecretProblem as problem:
        raise KafkaConfigurationError(str(problem)) from None
    return {field: values[key] for field, key in fields.items()}
