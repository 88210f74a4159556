"""The file of a ConsumerGroup, for tests of local runs."""

from __future__ import annotations

from typing import Any


def manifest(replicas: int | None = None, *, rollout: object = None, **spec: object) -> dict[str, Any]:
    """A ConsumerGroup `flights`, as a user's file has it."""
    made: dict[str, Any] = {
        "kafka": {"bootstrapServers": "127.0.0.1:1"},
        "topics": ["flights"],
        "pipeline": {"handler": "flights.pipeline:transform", "sink": {"path": "out"}},
        "delivery": {"drainTimeout": "1s"},
        "rollout": rollout or {},
        **({} if replicas is None else {"replicas": replicas}),
        **spec,
    }
    document = {"apiVersion": "slackwater.dev/v1alpha1", "kind": "ConsumerGroup", "spec": made}
    return {**document, "metadata": {"name": "flights"}}
