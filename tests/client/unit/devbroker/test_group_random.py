"""Random requests, pauses, moves and full disks: what must hold whatever happens."""

from __future__ import annotations

import random

import pytest

from slackwater.devbroker.group import GroupState
from slackwater.devbroker.group.group import Group
from tests.support.devbroker.coordinator import Bench, Call, FlakyStore
from tests.support.devbroker.group_requests import GroupRequests

STEPS = 400
TIMEOUT_MS = 10_000


def check(group: Group) -> None:
    """What holds of every group between two calls."""
    members = group.members
    assert group.static_ids == {x.instance_id: i for i, x in members.items() if x.instance_id is not None}
    assert not group.pending_joins & members.keys()
    assert (group.leader in members) if members else (group.leader is None)
    assert bool(members) or group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)
    for member in members.values():
        assert member.join_reply is None or group.state is GroupState.PREPARING_REBALANCE
        assert member.sync_reply is None or group.state is GroupState.COMPLETING_REBALANCE
        assert not member.is_new or member.join_reply is not None
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        assert group.protocol is not None
        assert all(member.metadata(group.protocol) for member in members.values())
    if group.state is GroupState.COMPLETING_REBALANCE:
        assert group.pending_syncs
    if group.state is GroupState.EMPTY:
        assert group.protocol is None


@pytest.mark.parametrize("seed", range(12))
def test_the_rules_hold_for_random_requests(seed: int) -> None:
    rng = random.Random(seed)
    store = FlakyStore()
    bench = Bench(store=store)
    requests = GroupRequests(rng, bench, timeout_ms=TIMEOUT_MS)
    calls: list[Call] = []
    states: set[str] = set()
    for _ in range(STEPS):
        store.full = rng.random() < 0.03
        request, version = requests.next()
        calls.append(bench.send(request, version))
        if rng.random() < 0.2:
            bench.advance(rng.choice([1, 500, 3_000, 9_000]))
        if rng.random() < 0.01:
            store.full = False
            bench.coordinator.unload()
            assert all(
                not group.members or not any(x.join_reply or x.sync_reply for x in group.members.values())
                for group in bench.coordinator._groups.values()
            )
            bench.coordinator.load(bench.now_ms)
        for group in bench.coordinator._groups.values():
            check(group)
            states.add(group.state.value)
    store.full = False
    assert states == {"Empty", "PreparingRebalance", "CompletingRebalance", "Stable"}
    # Left alone, every group ends up empty and no timer goes on for ever.
    bench.advance(20 * TIMEOUT_MS + 600_000)
    assert {group["state"] for group in bench.coordinator.describe()} <= {"Empty"}
    assert bench.coordinator.poll(bench.now_ms) is None
    assert sum(not call.parked for call in calls) > STEPS * 0.8


@pytest.mark.parametrize("seed", range(4))
def test_a_coordinator_over_the_same_store_agrees_whenever_the_group_is_at_rest(seed: int) -> None:
    rng = random.Random(1_000 + seed)
    bench = Bench()
    requests = GroupRequests(rng, bench, timeout_ms=TIMEOUT_MS)
    compared = 0
    for _ in range(STEPS):
        bench.send(*requests.next())
        bench.coordinator.poll(bench.now_ms)
        if rng.random() < 0.1:
            bench.advance(3_000)
        group = bench.coordinator._groups.get("g")
        if group is None or group.state not in (GroupState.STABLE, GroupState.EMPTY):
            continue
        other = Bench(store=bench.store).described()
        mine = bench.described()
        compared += group.state is GroupState.STABLE
        for key in ("state", "generation", "protocol", "leader", "offsets"):
            assert other[key] == mine[key], key
        assert [x["member_id"] for x in other["members"]] == [x["member_id"] for x in mine["members"]]
        sizes = [[x["assignment_bytes"] for x in group["members"]] for group in (other, mine)]
        assert sizes[0] == sizes[1]
    assert compared > 5
