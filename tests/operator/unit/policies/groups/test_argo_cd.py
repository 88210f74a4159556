"""The health check of docs/how-to/install/gitops.md, in the Lua that Argo CD runs it in (5.1)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.policies.conditions import ConditionsInput, Trouble, conditions
from tests.support.docs.blocks import blocks

KEY = "resource.customizations.health.slackwater.dev_ConsumerGroup"


def health(status: dict[str, Any], generation: int = 3) -> tuple[str, str]:
    """What Argo CD shows of a ConsumerGroup with this status, and the message."""
    (block,) = (block for block in blocks("yaml") if block.title == "argocd-cm.yaml")
    lua = LuaRuntime()
    resource = {"metadata": {"name": "flights", "generation": generation}, "status": status}
    lua.globals()["obj"] = lua.table_from(resource, recursive=True)
    result = lua.execute(yaml.safe_load(block.text)[KEY])
    return result["status"], result["message"]


def observed(**changes: Any) -> dict[str, Any]:
    """The status of a group with a worker, which is settled."""
    member = MemberView("m", "flights-0", frozenset(), True, "flights-0", "/10.0.0.1")
    seen: dict[str, Any] = {
        "generation": 3,
        "replicas": 1,
        "members": 1,
        "group": GroupView("Stable", (member,)),
        "lag_known": True,
        **changes,
    }
    made = conditions(ConditionsInput(**seen), [], now_ms=0)
    return {"observedGeneration": 3, "conditions": list(made)}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (observed(), "Healthy"),
        ({"observedGeneration": -1}, "Progressing"),
        ({**observed(), "observedGeneration": 2}, "Progressing"),
        (observed(unsettled="flights-0 is starting"), "Progressing"),
        (observed(rollout_phase="Rolling", rollout_reason="restart of flights-0"), "Progressing"),
        (observed(rollout_phase="Paused", rollout_reason="step 1 of 3"), "Suspended"),
        (observed(troubles=(Trouble("InvalidSpec", "spec.topics", stalls=True),)), "Degraded"),
        (observed(troubles=(Trouble("RecordsSkipped", "50 records"),)), "Healthy"),
        (observed(suspended=True, replicas=0, members=0, group=GroupView("Empty")), "Suspended"),
    ],
)
def test_argo_cd_shows_what_kstatus_does(status: dict[str, Any], expected: str) -> None:
    assert health(status)[0] == expected


def test_the_message_is_that_of_the_condition() -> None:
    status = observed(troubles=(Trouble("InvalidSpec", "spec.topics: is empty", stalls=True),))
    assert "spec.topics: is empty" in health(status)[1]
