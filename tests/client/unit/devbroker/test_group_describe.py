"""DescribeGroups, ListGroups, DeleteGroups and the state as plain values."""

from __future__ import annotations

import json

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, SESSION_MS, Bench

E = ErrorCode


def test_the_protocol_and_metadata_show_only_in_stable() -> None:
    bench = Bench()
    bench.form_static("a", "b")
    bench.leave(("", "b"))
    answer = bench.ask(m.DescribeGroupsRequest(groups=["g"])).groups[0]
    assert (answer.group_state, answer.protocol_type) == ("PreparingRebalance", "consumer")
    assert (answer.protocol_data, answer.members[0].member_metadata) == ("", b"")
    assert answer.members[0].member_assignment == b"a-a"


def test_operations_only_when_asked_for() -> None:
    bench = Bench()
    bench.form_static("a")
    plain = bench.ask(m.DescribeGroupsRequest(groups=["g"])).groups[0]
    assert plain.authorized_operations == -(2**31)
    asked = m.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    assert bench.ask(asked).groups[0].authorized_operations & (1 << 8)


def groups_in_all_states() -> Bench:
    bench = Bench(group="Stable")
    bench.form_static("a", session_ms=600_000)
    bench.group = "Empty"
    bench.form_static("a")
    bench.advance(SESSION_MS)
    bench.group = "CompletingRebalance"
    bench.join(instance="a", session_ms=600_000)
    bench.advance(DELAY_MS)
    bench.group = "PreparingRebalance"
    bench.join(instance="a")
    bench.group = "simple"
    bench.commit()
    return bench


@pytest.mark.parametrize(
    ("states", "names"),
    [
        ([], {"Stable", "Empty", "CompletingRebalance", "PreparingRebalance", "simple"}),
        (["Stable"], {"Stable"}),
        (["stable", " EMPTY "], {"Stable", "Empty", "simple"}),
        (["PreparingRebalance", "CompletingRebalance"], {"PreparingRebalance", "CompletingRebalance"}),
        (["Dead"], set()),
        (["nonsense"], set()),
    ],
)
def test_list_by_state(states: list[str], names: set[str]) -> None:
    answer = groups_in_all_states().ask(m.ListGroupsRequest(states_filter=states))
    assert {group.group_id for group in answer.groups} == names
    for group in answer.groups:
        assert group.group_state == (group.group_id if group.group_id != "simple" else "Empty")
        assert group.protocol_type == ("consumer" if group.group_id != "simple" else "")
        assert group.group_type == "classic"


@pytest.mark.parametrize(
    ("types", "count"),
    [([], 5), (["classic"], 5), (["Classic", "consumer"], 5), (["consumer"], 0), (["x"], 0)],
)
def test_list_by_type(types: list[str], count: int) -> None:
    assert len(groups_in_all_states().ask(m.ListGroupsRequest(types_filter=types)).groups) == count


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_only_when_they_are_empty(version: int) -> None:
    bench = groups_in_all_states()
    bench.group = "Empty"
    bench.commit(offset=5)
    names = ["Stable", "Empty", "CompletingRebalance", "PreparingRebalance", "no", "Empty"]
    answer = bench.ask(m.DeleteGroupsRequest(groups_names=names), version)
    assert {result.group_id: result.error_code for result in answer.results} == {
        "Stable": E.NON_EMPTY_GROUP,
        "Empty": E.NONE,
        "CompletingRebalance": E.NON_EMPTY_GROUP,
        "PreparingRebalance": E.NON_EMPTY_GROUP,
        "no": E.GROUP_ID_NOT_FOUND,
    }
    assert bench.committed() == -1
    bench.coordinator.unload()
    bench.coordinator.load(bench.now_ms)
    assert "Empty" not in {group["group"] for group in bench.coordinator.describe()}
    assert bench.committed() == -1


def test_a_deleted_group_leaves_no_timer_behind() -> None:
    bench = Bench()
    pending = bench.join().answer.member_id
    assert bench.ask(m.DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == E.NONE
    assert bench.coordinator.poll(bench.now_ms) is None
    assert bench.join(pending).error is E.UNKNOWN_MEMBER_ID


def test_the_snapshot_is_json_and_shows_who_is_parked() -> None:
    bench = Bench()
    ids = bench.form_static("a", "b")
    bench.commit(ids["a"], 1, "a", offset=5)
    bench.join(ids["b"], "b", protocols=[("range", b"x")])
    group = json.loads(json.dumps(bench.coordinator.describe()))[0]
    assert group["state"] == "PreparingRebalance"
    assert group["last_rebalance_reason"].startswith(f"a member rejoined: {ids['b']}")
    assert group["offsets"] == {"t": {"0": 5}}
    parked = {member["instance_id"]: member["parked"] for member in group["members"]}
    assert parked == {"a": None, "b": "join"}
    assert group["members"][0]["assignment_bytes"] == 3
    assert group["members"][0]["session_timeout_ms"] == SESSION_MS
    assert group["members"][0]["session_deadline_ms"] == bench.now_ms + SESSION_MS
