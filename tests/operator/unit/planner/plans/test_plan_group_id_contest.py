"""Two operators of two clusters whose ConsumerGroups have one group.id on one Kafka, and see members only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slackwater_operator.planner.actions import DeleteKafkaGroup, EmitEvent, RemoveMembers
from slackwater_operator.policies.membership.group_id import EXCLUSIVE_AFTER_MS, FREE_AFTER_MS
from tests.operator.unit.planner.simulation.simulated_cluster import TICK_MS, Simulation, settled, spec
from tests.operator.unit.planner.simulation.simulated_kafka_group import SimulatedKafkaGroup
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator


class SharedGroup(SimulatedKafkaGroup):
    """One Kafka group that two clusters' workers join."""

    def __init__(self, simulations: list[Simulation]) -> None:
        group = simulations[0].group
        super().__init__(len(group.partitions), group.session_ms)
        self.simulations = simulations

    def tick(self, now_ms: int, alive: object) -> None:
        every = {process for simulation in self.simulations for process in simulation.heartbeating}
        super().tick(now_ms, every)


class OperatedCluster:
    """A Kubernetes cluster with an operator of its own and a ConsumerGroup `flights`."""

    def __init__(self, uid: str, **changes: object) -> None:
        self.simulation = Simulation(spec(**changes), uid=uid)
        self.uid = self.simulation.resource["metadata"]["uid"]
        self.operator = SimulatedOperator(self.simulation)
        self.next_ms = 0
        self.begins_ms = 0

    @property
    def gave_way(self) -> bool:
        degraded = self.simulation.condition("Degraded")
        in_use = (degraded.get("status"), degraded.get("reason")) == ("True", "GroupIdInUse")
        return in_use and not self.simulation.pods and set(self.simulation.spans().values()) <= {(0, 0)}

    @property
    def settled(self) -> bool:
        wanted = self.simulation.resource["spec"]["replicas"]
        marks = {member.owner for member in self.simulation.group.members.values()}
        return settled(self.simulation, wanted) and marks == {self.uid}

    @property
    def message(self) -> str:
        return str(self.simulation.condition("Degraded").get("message"))

    async def step(self) -> None:
        simulation = self.simulation
        simulation.tick()
        if simulation.now_ms >= max(self.next_ms, self.begins_ms):
            self.next_ms = simulation.now_ms + self.operator.every_ms
            await self.operator.turn()


class TwoClusters:
    """Both; time passes for both at once."""

    def __init__(self, first: OperatedCluster, second: OperatedCluster) -> None:
        self.first, self.second = first, second
        self.group = SharedGroup([first.simulation, second.simulation])
        first.simulation.group = second.simulation.group = self.group

    async def run(self, until: Callable[[], object], *, timeout_ms: int = 600_000) -> None:
        deadline = self.first.simulation.now_ms + timeout_ms
        while not until():
            assert self.first.simulation.now_ms < deadline, (
                f"not reached: {self.first.uid}: {self.first.message}; "
                f"{self.second.uid}: {self.second.message}; {self.group.view()}"
            )
            await self.first.step()
            await self.second.step()

    async def pass_time(self, ms: int) -> None:
        end = self.first.simulation.now_ms + ms
        await self.run(lambda: self.first.simulation.now_ms >= end, timeout_ms=ms + TICK_MS)

    def nobody_was_removed(self) -> bool:
        acts = [*self.first.operator.actions, *self.second.operator.actions]
        return not any(isinstance(act, RemoveMembers | DeleteKafkaGroup) for act in acts)


def two_clusters(**changes: object) -> TwoClusters:
    """The first one's uid is the smaller."""
    return TwoClusters(OperatedCluster("uid-a", **changes), OperatedCluster("uid-b", **changes))


@pytest.mark.parametrize(
    ("replicas", "later_ms", "smaller_is_later"),
    [
        (3, 0, False),
        (1, 700, True),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(1, 0, False), (3, 700, False), (3, 1_500, True)]
        ),
    ],
)
async def test_of_two_that_start_at_the_same_moment_one_runs_and_the_other_waits(
    replicas: int, later_ms: int, smaller_is_later: bool
) -> None:
    both = two_clusters(replicas=replicas)
    late = both.first if smaller_is_later else both.second
    late.begins_ms = both.first.simulation.now_ms + later_ms
    await both.run(
        lambda: (
            (both.first.settled and both.second.gave_way) or (both.second.settled and both.first.gave_way)
        ),
        timeout_ms=120_000,
    )
    owner, other = (both.first, both.second) if both.first.settled else (both.second, both.first)
    if later_ms == 0:
        assert owner is both.first
    assert f"of the ConsumerGroup with uid {owner.uid}" in other.message
    await both.pass_time(60_000)  # and it stays so
    assert owner.settled
    assert other.gave_way
    assert both.nobody_was_removed()


async def test_who_gave_way_says_so_and_runs_again_when_the_group_id_is_free() -> None:
    both = two_clusters()
    await both.run(lambda: both.first.settled and both.second.gave_way)
    owner = f"of the ConsumerGroup with uid {both.first.uid})"
    assert f"flights-0 (client id flights-0, at 10.0.0.1, {owner}" in both.second.message
    assert "delete one of the two" in both.second.message
    assert "kafka" not in both.second.simulation.status
    acts = both.second.operator.actions
    (event,) = [act for act in acts if isinstance(act, EmitEvent) and act.reason == "GroupIdInUse"]
    assert event.warning
    both.first.simulation.change(suspend=True)
    await both.run(lambda: both.second.settled, timeout_ms=FREE_AFTER_MS + 180_000)
    assert both.second.simulation.condition("Degraded")["status"] == "False"
    both.first.simulation.change(suspend=False)  # and now it is the other one's
    await both.pass_time(60_000)
    assert both.second.settled
    assert not both.first.simulation.running


async def test_an_operator_that_starts_anew_still_gives_way() -> None:
    both = two_clusters()
    await both.run(lambda: both.first.settled and both.second.gave_way)
    both.second.operator.die()
    await both.pass_time(60_000)
    assert both.first.settled
    assert both.second.gave_way


@pytest.mark.long
async def test_a_group_that_has_run_alone_for_long_keeps_its_group_id_whatever_the_uids() -> None:
    both = two_clusters()
    smaller, larger = both.first, both.second
    smaller.begins_ms = 2**62
    await both.run(lambda: larger.simulation.status.get("kafka", {}).get("exclusive"), timeout_ms=900_000)
    hide = both.group.view  # the newcomer's first look is at a rebalance, which does not show the marks
    both.group.view = lambda: SimulatedKafkaGroup(6, 45_000).view()  # type: ignore[method-assign]
    smaller.begins_ms = 0
    while not smaller.simulation.pods:
        await smaller.step()
    both.group.view = hide  # type: ignore[method-assign]
    await both.run(lambda: smaller.gave_way)
    await both.run(lambda: larger.settled)
    larger.operator.die()
    await both.pass_time(60_000)
    assert larger.settled
    assert smaller.gave_way
    assert both.nobody_was_removed()


async def test_the_smaller_uid_gives_way_to_one_that_does_not() -> None:
    """The other one has run alone for long; and this one has joined before it saw that."""
    both = two_clusters()
    smaller, larger = both.first, both.second
    smaller.begins_ms = 2**62
    await both.run(lambda: larger.settled)
    larger.simulation.merge(larger.simulation.resource, {"status": {"kafka": {"exclusive": True}}})
    await both.pass_time(2_000)
    view = both.group.view
    both.group.view = lambda: SimulatedKafkaGroup(6, 45_000).view()  # type: ignore[method-assign]
    smaller.begins_ms = 0
    while smaller.uid not in {member.owner for member in both.group.members.values()}:
        await smaller.step()
    both.group.view = view  # type: ignore[method-assign]
    await both.run(lambda: smaller.gave_way and larger.settled)
    assert both.nobody_was_removed()


async def test_the_deletion_of_who_gave_way_leaves_the_offsets_of_the_other_one() -> None:
    both = two_clusters(deletionPolicy="Delete")
    await both.run(lambda: both.first.settled and both.second.gave_way)
    second = both.second.simulation
    both.group.members.clear()  # the owner's workers are away, and its offsets are all that there is of it
    second.merge(second.resource, {"status": {"rollout": {"good": "flights-1"}}})  # it ran once
    second.delete("ConsumerGroup", "flights")
    await both.run(lambda: second.deleted)
    await both.run(lambda: both.first.settled)
    assert both.nobody_was_removed()


def test_how_long_alone_is_longer_than_a_fenced_worker_stays_away() -> None:
    """Else both sides could have been alone, and neither would give way."""
    assert EXCLUSIVE_AFTER_MS > FREE_AFTER_MS > 300_000
