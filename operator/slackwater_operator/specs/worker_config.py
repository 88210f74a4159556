"""A worker's configuration file from a ConsumerGroup (docs/worker.md, "Configuration file")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup

DEFAULT_HEARTBEAT_INTERVAL_MS = 3_000
"""Kafka's default; with a short session it is a third of that."""
DRAIN_TIMEOUT_MS = 15_000
"""spec.delivery.drainTimeout where nothing is said."""


def worker_config(
    group: ConsumerGroup,
    *,
    handler_path: Sequence[str],
    sink_path: str,
    join_gate_ms: int,
    health_host: str = "127.0.0.1",
    health_port: int = 0,
    takeover_key_file: str = "",
) -> dict[str, Any]:
    """The document that `slackwater worker --config` reads.

    Args:
        group: the resource.
        handler_path: the folders to find the handler in, resolved.
        sink_path: the sink's path, resolved.
        join_gate_ms: how long a new worker that is warm waits to be let in.
        health_host: the address that the health endpoint listens on.
        health_port: its port, 0 for a free one.
        takeover_key_file: the file with the key that takeovers are signed with; empty: there are none.
    """
    kafka, pipeline, delivery = group.spec.kafka, group.spec.pipeline, group.spec.delivery
    session_ms = group.session_timeout_ms
    properties = {
        "session.timeout.ms": str(session_ms),
        "heartbeat.interval.ms": str(min(DEFAULT_HEARTBEAT_INTERVAL_MS, session_ms // 3)),
        **kafka.properties,
    }
    document: dict[str, Any] = {
        "groupId": group.group_id,
        **_topics(group),
        "bootstrapServers": kafka.bootstrap_servers,
        "properties": properties,
        "handler": pipeline.handler,
        "handlerPath": list(handler_path),
        "engine": pipeline.engine,
        "spark": {"remote": pipeline.spark.remote, "conf": dict(pipeline.spark.conf)},
        "sink": {"format": pipeline.sink.format, "path": sink_path},
        "retries": delivery.retries,
        "retryBackoffMs": delivery.retry_backoff_ms,
        "drainTimeoutMs": delivery.drain_timeout_ms,
        "joinGateMs": join_gate_ms,
        "health": {"host": health_host, "port": health_port},
    }
    # What has its default is left out where older workers do not know it: else an upgrade would restart them.
    if delivery.batch_interval_ms:
        document["batchIntervalMs"] = delivery.batch_interval_ms
    if takeover_key_file:
        document["takeover"] = {"keyFile": takeover_key_file}
    if pipeline.handler_timeout_ms is not None:
        document["handlerTimeoutMs"] = pipeline.handler_timeout_ms
    if pipeline.dead_letter_topic:
        document["deadLetterTopic"] = pipeline.dead_letter_topic
    return document


def _topics(group: ConsumerGroup) -> dict[str, Any]:
    if group.spec.topic_expression is not None:
        return {"topicPattern": group.spec.topic_expression}
    return {"topics": list(group.spec.topics)}
