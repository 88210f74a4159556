"""Which members of the group are workers of a run on this machine."""

from __future__ import annotations

from slackwater_operator.local.events import WorkerEvent
from slackwater_operator.local.state import RunState
from slackwater_operator.model.group import GroupView, MemberView
from tests.unit.local.local_bench import FAST, resource


def member(member_id: str, name: str) -> MemberView:
    return MemberView(member_id, name, frozenset(), True)


def test_only_what_a_worker_of_the_run_has_joined_as_is_its_own() -> None:
    """Another run, or a cluster, may have members of the same names."""
    state = RunState(resource(2), FAST)
    for member_id, name in (("id-1", "flights-0"), ("id-2", "flights-1"), ("id-3", "flights-1")):
        state.take(WorkerEvent(1, "joined", name, {"member_id": member_id, "generation": 1}))
    group = GroupView(
        "Stable", (member("id-1", "flights-0"), member("id-3", "flights-1"), member("another's", "flights-7"))
    )
    assert state.own_members(group) == ["flights-0", "flights-1"]
    taken = GroupView("Stable", (member("another's", "flights-0"),))
    assert state.own_members(taken) == []
    assert state.own_members(None) == []
