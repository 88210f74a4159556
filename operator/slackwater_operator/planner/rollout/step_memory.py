"""The form of `StepState` in the status."""

from __future__ import annotations

from typing import Any

from slackwater_operator.model.status_values import mapping, text, whole
from slackwater_operator.policies.rollout.steps import StepState


def dump_step(state: StepState) -> dict[str, Any]:
    """The form in the status."""
    fields = {
        "revision": state.revision,
        "steps": state.version,
        "index": state.index,
        "sinceMs": state.since_ms,
        "promoted": state.promoted or None,
        "heldSinceMs": state.held_since_ms,
        "measuredMs": state.measured_ms,
        "failures": state.failures or None,
        "inconclusive": state.inconclusive or None,
        "message": state.message or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def parse_step(stored: object) -> StepState | None:
    """Reads it from the status; None where it is not valid."""
    fields = mapping(stored)
    revision, version, index = fields.get("revision"), fields.get("steps"), whole(fields.get("index"))
    if not isinstance(revision, str) or not isinstance(version, str) or index is None or index < 0:
        return None
    return StepState(
        revision,
        version,
        index,
        whole(fields.get("sinceMs")) or 0,
        text(fields.get("promoted")),
        whole(fields.get("heldSinceMs")),
        whole(fields.get("measuredMs")) or 0,
        max(0, whole(fields.get("failures")) or 0),
        max(0, whole(fields.get("inconclusive")) or 0),
        text(fields.get("message")),
    )
