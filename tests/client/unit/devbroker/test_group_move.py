"""A coordinator that restarts or moves: the store alone decides what is left."""

from __future__ import annotations

import pytest

from slackwater.devbroker.group.group import Group, GroupState, IllegalTransition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.devbroker.coordinator import DELAY_MS, Bench

E = ErrorCode


def move(bench: Bench) -> None:
    """The coordinator goes and comes back."""
    bench.coordinator.unload()
    bench.coordinator.start_loading()
    bench.coordinator.load(bench.now_ms)


def test_no_timer_survives_the_move() -> None:
    bench = Bench()
    bench.form_static("a")
    bench.coordinator.unload()
    assert bench.coordinator.poll(bench.now_ms) is None


def test_the_echo_is_forgotten_by_a_move() -> None:
    bench = Bench()
    joins = {name: bench.join(instance=name, session_ms=600_000) for name in "ab"}
    bench.advance(2 * DELAY_MS)
    ids = {name: call.answer.member_id for name, call in joins.items()}
    bench.sync(ids["a"], 1, "a", {})
    bench.join(instance="b", session_ms=600_000)
    move(bench)
    bench.advance(200_000)
    assert bench.state == "Stable"


def test_a_new_group_survives_as_an_empty_one() -> None:
    bench = Bench()
    bench.join(version=4)
    move(bench)
    assert (bench.state, bench.generation) == ("Empty", 0)


def test_a_group_of_offsets_alone_survives() -> None:
    bench = Bench()
    bench.commit(offset=5)
    move(bench)
    assert (bench.state, bench.committed()) == ("Empty", 5)


# -- while it does not serve

ALL = [
    m.JoinGroupRequest(group_id="g", session_timeout_ms=10_000),
    m.SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range"),
    m.HeartbeatRequest(group_id="g"),
    m.LeaveGroupRequest(group_id="g", members=[m.LeaveGroupRequestMember(member_id="x")]),
]


@pytest.mark.parametrize("request_", ALL, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("error", [E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS])
def test_requests_while_not_serving(request_: object, error: ErrorCode) -> None:
    bench = Bench()
    bench.form_static("a")
    _stop(bench, error)
    answer = bench.send(request_)  # type: ignore[arg-type]
    calm = isinstance(request_, m.HeartbeatRequest) and error is E.COORDINATOR_LOAD_IN_PROGRESS
    assert answer.error is (E.NONE if calm else error)


@pytest.mark.parametrize("error", [E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS])
def test_offsets_and_groups_while_not_serving(error: ErrorCode) -> None:
    bench = Bench()
    member_id = bench.form_static("a")["a"]
    bench.commit(member_id, 1, "a", offset=4)
    _stop(bench, error)
    assert bench.commit(member_id, 1, "a", offset=5) is error
    fetch = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert bench.ask(fetch, 9).groups[0].error_code == error
    old = m.OffsetFetchRequest(
        group_id="g", topics=[m.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    )
    assert bench.ask(old, 2).error_code == error
    assert bench.ask(old, 1).topics[0].partitions[0].error_code == error
    assert bench.ask(m.DescribeGroupsRequest(groups=["g"])).groups[0].error_code == error
    assert bench.ask(m.DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == error
    listed = bench.ask(m.ListGroupsRequest())
    # A broker that coordinates nothing has no groups to list, which is no error.
    assert listed.error_code == (E.NONE if error is E.NOT_COORDINATOR else error)
    assert listed.groups == []
    bench.coordinator.load(bench.now_ms)
    assert bench.committed() == 4


def _stop(bench: Bench, error: ErrorCode) -> None:
    if error is E.NOT_COORDINATOR:
        bench.coordinator.unload()
    else:
        bench.coordinator.start_loading()


def test_a_coordinator_loads_before_it_serves() -> None:
    bench = Bench()
    bench.coordinator.start_loading()
    assert bench.join(instance="a").error is E.COORDINATOR_LOAD_IN_PROGRESS


# -- the table of states


STEPS = {
    ("Empty", "PreparingRebalance"),
    ("PreparingRebalance", "CompletingRebalance"),
    ("PreparingRebalance", "Empty"),
    ("CompletingRebalance", "Stable"),
    ("CompletingRebalance", "PreparingRebalance"),
    ("Stable", "PreparingRebalance"),
    *((state.value, "Dead") for state in GroupState),
}


def test_the_steps_of_the_table_are_kafkas_and_all_others_raise() -> None:
    for old in GroupState:
        for new in GroupState:
            group = Group("g")
            group.state = old
            if (old.value, new.value) in STEPS:
                group.transition(new)
                assert (group.previous_state, group.state) == (old, new)
            else:
                with pytest.raises(IllegalTransition, match=f"'g': {old.value} -> {new.value}"):
                    group.transition(new)
                assert group.state is old
