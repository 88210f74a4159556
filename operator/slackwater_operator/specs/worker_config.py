"""What a worker reads: its configuration file, the ConfigMap with that file, and the Secrets beside it.

A worker's pod mounts all three as one projected volume. docs/reference/worker.md, "Configuration file",
describes the file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from slackwater.fields import FieldError, file_document
from slackwater.runtime.config.pipeline_config import sinks_of, with_paths
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, Registry, Security
from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity
from slackwater_operator.model import names

JOIN_GATE_MS = 600_000
"""How long a warm new worker waits for the operator's permission to join before it joins without it."""

DEFAULT_HEARTBEAT_INTERVAL_MS = 3_000
"""Kafka's default of heartbeat.interval.ms; a third of the session timeout where that is less."""

USERNAME, PASSWORD = "username", "password"
CA = "ca.crt"
CERTIFICATE, KEY = "tls.crt", "tls.key"
TOKEN = "token"
"""The keys of the Secrets that a resource names."""

KEY_BYTES = 32
"""The length of a takeover key: SHA-256's output, beyond which a longer HMAC key gains nothing (RFC 2104,
section 3)."""

_ORDER = (
    "groupId topics topicPattern bootstrapServers properties handler handlerPath engine spark sink retries "
    "retryBackoffMs drainTimeoutMs joinGateMs health batchIntervalMs batchDurationMs maxBatchBytes "
    "transientErrorTimeoutMs maxDeadLettersPerMinute takeover handlerTimeoutMs refreshEveryMs concurrency "
    "lineage value deadLetterTopic telemetry"
)
"""The order of the file's fields, which must not change: the ConfigMap with the same fields, which an earlier
operator has written, is immutable. Newer fields follow."""

_HEX = re.compile(r"[0-9a-f]{64}")


# -- the file ------------------------------------------------------------------------------------------------


def worker_config(
    group: ConsumerGroup,
    *,
    handler_path: Sequence[str],
    resolved: Callable[[str], str] | None = None,
    join_gate_ms: int,
    health_host: str = "127.0.0.1",
    health_port: int = 0,
    takeover_key_file: str = "",
) -> dict[str, Any]:
    """The document that `slackwater worker --config` reads.

    Args:
        group: the resource.
        handler_path: the folders that contain the handler, resolved.
        resolved: resolves the path of a sink; None: all are absolute.
        join_gate_ms: how long a warm new worker waits for permission to join.
        health_host: the address that the health endpoint listens on.
        health_port: its port; 0 for a free one.
        takeover_key_file: the file with the key that signs takeover requests; "" without takeovers.
    """
    kafka, given = group.spec.kafka, group.spec.pipeline
    # The image is no part of the file: with its default it is left out.
    pipeline = replace(given, image="", handler_path=tuple(handler_path))
    if resolved is not None:
        pipeline = with_paths(pipeline, resolved)
    document: dict[str, Any] = {
        "groupId": group.group_id,
        **_topics(group),
        "bootstrapServers": kafka.bootstrap_servers,
        **_membership(group),
        **file_document(pipeline),
        **file_document(group.spec.delivery),
        "joinGateMs": join_gate_ms,
        "health": {"host": health_host, "port": health_port},
    }
    for column, value in pipeline.decoded.items():
        if value.registry is not None:
            document[column]["registry"] = _registry(value.registry, names.REGISTRY_FOLDERS[column])
    if takeover_key_file:
        document["takeover"] = {"keyFile": takeover_key_file}
    if telemetry := file_document(group.spec.telemetry):
        document["telemetry"] = telemetry
    return {name: document[name] for name in [*_ORDER.split(), *document] if name in document}


def _membership(group: ConsumerGroup) -> dict[str, Any]:
    given, session_ms = group.spec.kafka.properties, group.session_timeout_ms
    if group.spec.kafka.consumer_protocol:
        return {"properties": given, "groupProtocol": "Consumer"}
    times = {
        "session.timeout.ms": str(session_ms),
        "heartbeat.interval.ms": str(min(DEFAULT_HEARTBEAT_INTERVAL_MS, session_ms // 3)),
    }
    return {"properties": {**times, **given}}


def _registry(registry: Registry, folder: str) -> dict[str, Any]:
    folder = f"{names.CONFIG_FOLDER}/{folder}"
    section: dict[str, Any] = {"url": registry.url}
    if registry.subject:
        section |= {"subject": registry.subject, "version": registry.version}
    if registry.subjects:
        section |= {"subjects": registry.subjects, "version": registry.version}
    if registry.credentials_secret:
        section |= {"usernameFile": f"{folder}/{USERNAME}", "passwordFile": f"{folder}/{PASSWORD}"}
    if registry.ca_secret:
        section["caFile"] = f"{folder}/{CA}"
    if registry.client_certificate_secret:
        section |= {"certFile": f"{folder}/{CERTIFICATE}", "keyFile": f"{folder}/{KEY}"}
    return section


def _topics(group: ConsumerGroup) -> dict[str, Any]:
    if group.spec.topic_expression is not None:
        return {"topicPattern": group.spec.topic_expression}
    return {"topics": list(group.spec.topics)}


def security_section(
    security: Security, folder: str = names.SECRETS_FOLDER, *, by_secret: bool = False
) -> dict[str, str]:
    """The section `security` of the file; empty for PLAINTEXT.

    Args:
        security: spec.kafka.security.
        folder: the folder with the files of the Secrets.
        by_secret: whether each Secret has a folder of its own in it, by its name.
    """

    def file(secret: str, key: str) -> str:
        return f"{folder}/{secret}/{key}" if by_secret else f"{folder}/{key}"

    if security.protocol == "PLAINTEXT":
        return {}
    section = {"protocol": security.protocol}
    if security.sasl:
        section["mechanism"] = security.mechanism
        section["usernameFile"] = file(security.credentials_secret, USERNAME)
        section["passwordFile"] = file(security.credentials_secret, PASSWORD)
    if security.ca_secret:
        section["caFile"] = file(security.ca_secret, CA)
    if security.client_certificate_secret:
        section["certFile"] = file(security.client_certificate_secret, CERTIFICATE)
        section["keyFile"] = file(security.client_certificate_secret, KEY)
    return section


# -- in a pod ------------------------------------------------------------------------------------------------


def config_map(group: ConsumerGroup) -> dict[str, Any]:
    """The ConfigMap with the group's present configuration: immutable, the configuration's hash in its name.

    Raises:
        FieldError: a path is relative.
    """
    document = pod_config(group)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(group, names.config_map(group.name, names.short_hash(document))),
        "immutable": True,
        # JSON is YAML, and parses faster: a restarted worker has to be back within its session.
        "data": {names.CONFIG_KEY: json.dumps(document, indent=2) + "\n"},
    }


def pod_config(group: ConsumerGroup) -> dict[str, Any]:
    """The configuration of a worker in a pod.

    Raises:
        FieldError: a path is relative.
    """
    pipeline = group.spec.pipeline
    for name, sink in sinks_of(pipeline).items():
        if sink.path and not sink.path.startswith("/") and "://" not in sink.path:
            raise FieldError(
                f"spec.pipeline.{name}.path",
                f"{sink.path!r} is relative, which means nothing in a pod; give an absolute path on a "
                "volume that spec.template mounts",
            )
    for index, folder in enumerate(pipeline.handler_path):
        if not folder.startswith("/"):
            raise FieldError(
                f"spec.pipeline.handlerPath[{index}]",
                f"{folder!r} is relative, which means nothing in a pod; give the folder's absolute path in "
                "the image, such as /app",
            )
    for column, value in pipeline.decoded.items():
        if value.schema_file and not value.schema_file.startswith("/"):
            raise FieldError(
                f"spec.pipeline.{column}.schemaFile",
                f"{value.schema_file!r} is relative, which means nothing in a pod; give the file's "
                "absolute path in the image, such as /app/flight.avsc",
            )
    document = worker_config(
        group,
        handler_path=pipeline.handler_path,
        join_gate_ms=JOIN_GATE_MS,
        health_host="::",  # all addresses: probes use the pod's, kubectl port-forward uses loopback
        health_port=names.PORT,
        takeover_key_file=names.KEY_FILE if group.spec.rollout.takes_over else "",
    )
    section = security_section(group.spec.kafka.security)
    return {**document, "security": section} if section else document


def config_volume(group: ConsumerGroup, config_map_name: str) -> dict[str, Any]:
    """The pod's volume with the configuration and the Secrets.

    One projected volume, since a mount inside a read-only mount is not reliable.
    """
    items = [{"key": names.CONFIG_KEY, "path": names.CONFIG_KEY}]
    sources: list[dict[str, Any]] = [{"configMap": {"name": config_map_name, "items": items}}]
    for folder, settings in _with_secrets(group).items():
        for secret, keys in keys_by_secret(settings):
            files = [{"key": key, "path": f"{folder}/{key}"} for key in keys]
            sources.append({"secret": {"name": secret, "items": files}})
    if group.spec.rollout.takes_over:
        files = [{"key": names.TAKEOVER_KEY, "path": names.KEY_PATH}]
        sources.append({"secret": {"name": names.takeover_secret(group.name), "items": files}})
    return {"name": names.CONFIG_VOLUME, "projected": {"defaultMode": 0o444, "sources": sources}}


# -- Secrets -------------------------------------------------------------------------------------------------


def secrets_of(group: ConsumerGroup) -> list[tuple[str, str, tuple[str, ...]]]:
    """The Secrets that the workers need: the section of the resource that names one, its name, and the keys
    that it must have."""
    sections = {
        folder: f"spec.pipeline.{column}.registry" for column, folder in names.REGISTRY_FOLDERS.items()
    }
    sections["kafka"] = "spec.kafka.security"
    return [
        (sections[folder], secret, keys)
        for folder, settings in _with_secrets(group).items()
        for secret, keys in keys_by_secret(settings)
    ]


def secrets_of_analysis(group: ConsumerGroup) -> list[tuple[str, str, tuple[str, ...]]]:
    """As `secrets_of`, the Secrets that the operator needs for the queries of spec.rollout.analysis."""
    analysis = group.spec.rollout.analysis
    if analysis.prometheus is None or not any(metric.query for metric in analysis.metrics):
        return []
    named = keys_by_secret(analysis.prometheus)
    return [("spec.rollout.analysis.prometheus", secret, keys) for secret, keys in named]


def keys_by_secret(settings: Security | Registry | PrometheusSecurity) -> list[tuple[str, tuple[str, ...]]]:
    """The Secrets that ``settings`` name, each with the keys that it must have."""
    secrets: list[tuple[str, tuple[str, ...]]] = [
        (settings.credentials_secret, (USERNAME, PASSWORD)),
        (settings.ca_secret, (CA,)),
        (settings.client_certificate_secret, (CERTIFICATE, KEY)),
    ]
    if isinstance(settings, PrometheusSecurity):
        secrets.append((settings.token_secret, (TOKEN,)))
    return [(secret, keys) for secret, keys in secrets if secret]


def _with_secrets(group: ConsumerGroup) -> dict[str, Security | Registry]:
    """The settings that name Secrets, by the folder of the volume that their files are in."""
    settings: dict[str, Security | Registry] = {"kafka": group.spec.kafka.security}
    for column, value in group.spec.pipeline.decoded.items():
        if value.registry is not None:
            settings[names.REGISTRY_FOLDERS[column]] = value.registry
    return settings


def takeover_secret(group: ConsumerGroup, key: str) -> dict[str, Any]:
    """The Secret with the key that signs takeover requests; created once and never written again.

    It is immutable: all pods of a group need the same key, and a pod that starts after a change would read
    another one.

    Args:
        group: the resource.
        key: `KEY_BYTES` random bytes in hex.

    Raises:
        ValueError: `key` has another length, or is not lower-case hex.
    """
    if not _HEX.fullmatch(key):
        raise ValueError(f"a takeover key is {KEY_BYTES} bytes in hex")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(group, names.takeover_secret(group.name)),
        "type": "Opaque",
        "immutable": True,
        "data": {names.TAKEOVER_KEY: base64.b64encode(key.encode()).decode()},
    }
