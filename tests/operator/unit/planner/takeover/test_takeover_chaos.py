"""Rollouts by takeover while pods crash, hang and go, the coordinator moves, and the operator is killed.

A seed draws the group, its next revision, and what goes wrong in the first minute. The rules of `_check` hold
before each action; in the end one set serves every member, and nothing is left over.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from slackwater_operator.planner.actions import Action, RequestTakeover, SetReplicas
from tests.operator.unit.planner.simulation.simulated_cluster import NAME, Simulation, image, settled
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.takeovers import outcomes, rollout, taking_over

CHUNK = 8
"""How many seeds `make test` runs; the `long` tests run 200."""
TROUBLE_MS = 60_000
PATIENCE_MS = 900_000
WENT_WRONG = ("crashed", "hung", "evicted", "moved", "away", "killed", "refused", "turned round", "scaled")
WAYS = ("told", "told to join", "asked", "forced", "fallback", "restarted", "stopped")
REVISIONS = ("v2", "v2", "v2", "crashes", "breaks", "slow", "hangs")


class Chaos:
    """A rollout in which everything goes wrong for a while.

    Attributes:
        counts: how often each thing went wrong, and how each takeover went.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.wild = self.rng.choice((0.0, 0.3, 1.0))
        self.revision = self.rng.choice(REVISIONS)
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """The rollout, to its end."""
        rng = self.rng
        fallback = rng.choice(("Restart", "Stop"))
        simulation, operator = await taking_over(
            replicas=rng.choice((1, 2, 3, 4)), rollout=rollout(warmTimeout="20s", fallback=fallback)
        )
        simulation.room = len(simulation.pods) + (rng.random() < 0.85)
        operator.before_act.append(lambda action, _: self._check(simulation, action))
        until_ms = simulation.now_ms + TROUBLE_MS
        simulation.each_tick.append(
            lambda _: self._trouble(simulation, operator) if simulation.now_ms < until_ms else None
        )
        operator.dies = lambda action, number: (
            simulation.now_ms < until_ms and rng.random() < 0.05 * self.wild and self._count("killed")
        )
        simulation.kube.fail = lambda verb, kind: (
            verb not in ("get", "list")
            and simulation.now_ms < until_ms
            and rng.random() < 0.02 * self.wild
            and self._count("refused")
        )
        simulation.change(pipeline=image(self.revision))
        await operator.pass_time(TROUBLE_MS)
        simulation.clusters.away = False
        simulation.room = None  # a node more: on the way back, `Stop` waits for it
        await operator.run(lambda: self._over(simulation), timeout_ms=PATIENCE_MS)
        await operator.pass_time(20_000)
        assert self._over(simulation), "it did not stay as it was"
        self.counts.update(outcomes(operator))

    def _over(self, simulation: Simulation) -> bool:
        """Whether one set serves all, with the wanted revision or, after a stop, with the one before."""
        spec = simulation.resource["spec"]
        rolled = simulation.status["rollout"]["phase"] == "Idle"
        return (
            settled(simulation, spec["replicas"], phase="Idle" if rolled else "Stopped")
            and len(simulation.spans()) == 1
            and len(simulation.serving) == len(simulation.pods) == spec["replicas"]
            and (set(simulation.images().values()) == {spec["pipeline"]["image"]}) is rolled
        )

    def _trouble(self, simulation: Simulation, operator: SimulatedOperator) -> None:
        """Now and then a pod crashes, hangs or is evicted, the coordinator moves, the user turns round."""
        rng, often = self.rng, 0.004 * self.wild
        for process in list(simulation.processes.values()):
            if process.phase == "draining" or rng.random() >= 2 * often:
                continue
            what = rng.choice(("crashed", "crashed", "hung", "evicted"))
            self._count(what)
            if what == "crashed":
                simulation.kill(process.pod)
            elif what == "hung":
                process.hung_until_ms = simulation.now_ms + rng.choice((3_000, 20_000, 60_000))
            else:
                simulation.evict(process.pod)
        if rng.random() < often:
            self._count("moved")
            forgets = rng.choice(sorted(simulation.group.members)) if simulation.group.members else ""
            simulation.group.move_coordinator(simulation.now_ms, forgets if rng.random() < 0.5 else "")
        if rng.random() < 5 * often:
            simulation.clusters.away = not simulation.clusters.away and self._count("away")
        if rng.random() < often / 4 and self.revision == "v2":
            self._count("turned round")
            there = simulation.resource["spec"]["pipeline"]["image"]
            simulation.change(pipeline=image("v2" if there.endswith(":v1") else "v1"))
        if rng.random() < often / 4:
            self._count("scaled")
            simulation.change(replicas=max(1, simulation.resource["spec"]["replicas"] + rng.choice((-1, 1))))

    def _count(self, what: str) -> bool:
        self.counts[what] += 1
        return True

    def _check(self, simulation: Simulation, action: Action) -> None:
        """What must hold at each action."""
        moving = simulation.status["rollout"].get("moving") or {}
        if isinstance(action, RequestTakeover):
            member = f"{NAME}-{action.pod.rpartition('-')[2]}"
            self._count("told" if action.predecessor else "told to join")
            assert action.predecessor or member not in simulation.serving, f"{member} taken from its server"
        if not isinstance(action, SetReplicas):
            return
        spans = {name: _ordinals(*span) for name, span in simulation.spans().items()}
        before = spans.get(action.name, set())
        start = action.start if action.start is not None else min(before, default=0)
        after = spans[action.name] = _ordinals(start, action.replicas)
        assert len(before ^ after) <= 1 or len(spans) == 1, f"{before} to {after} at once"
        wanted = set(range(min(simulation.resource["spec"]["replicas"], len(simulation.group.members))))
        away = wanted - set().union(*spans.values())
        restarts = {int(moving["ordinal"])} if moving.get("by") == "restart" else set()
        assert away <= restarts, f"{away} in no set"
        for ordinal in (before - after) & wanted - restarts:
            server = simulation.serving.get(f"{NAME}-{ordinal}", "")
            assert not server.startswith(f"{action.name}-"), f"{server} ends while it serves"
        if len(spans) > 1:
            assert len(set.intersection(*spans.values())) <= 1, f"two members move at once: {spans}"


def _ordinals(start: int, replicas: int) -> set[int]:
    return set(range(start, start + replicas))


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(CHUNK, 200, CHUNK))]
)
async def test_a_rollout_ends_whatever_goes_wrong(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        chaos = Chaos(seed)
        try:
            await chaos.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        counts += chaos.counts
    assert first or all(counts[event] for event in (*WENT_WRONG, *WAYS)), counts
