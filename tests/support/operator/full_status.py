"""A status with every field that its schema names."""

from __future__ import annotations

from typing import Any

from slackwater_operator.api.v1alpha1.status import group_status, maintenance, rewind, rollout

_CHOICES = {
    "status.rollout.phase": rollout.ROLLING,
    "status.rollout.moving.by": rollout.RESTART,
    "status.maintenance.phase": maintenance.SUCCEEDED,
    "status.rewind.phase": rewind.DONE,
    "status.rewind.result": rewind.REWOUND,
}


def full_status() -> dict[str, Any]:
    """The status, with values that the operator accepts."""
    status: dict[str, Any] = _filled(group_status.schema(), "status")
    status["conditions"][0]["type"] = "Ready"
    return status


def _filled(schema: dict[str, Any], path: str) -> Any:
    name = path.rpartition(".")[2]
    if schema["type"] == "object" and "additionalProperties" in schema:
        return {name: _filled(schema["additionalProperties"], path)}
    if schema["type"] == "object":
        return {key: _filled(field, f"{path}.{key}") for key, field in schema["properties"].items()}
    if schema["type"] == "array":
        return [_filled(schema["items"], path)]
    if schema.get("format") == "date-time":
        return "2026-11-21T12:00:00Z"
    if "enum" in schema:
        return schema["enum"][0]
    return {"string": _CHOICES.get(path, name), "integer": 7, "number": 1.5, "boolean": True}[schema["type"]]
