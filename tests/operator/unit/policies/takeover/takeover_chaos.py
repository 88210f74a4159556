"""A rollout by takeover in a `World` in which everything goes wrong for a while."""

from __future__ import annotations

import random
from dataclasses import dataclass

from slackwater_operator.policies.takeover.decision import decide_takeover
from tests.operator.unit.policies.takeover.takeover_operator import Broken, Decide, Operator, policy
from tests.operator.unit.policies.takeover.takeover_snapshot import TICK_MS, Revision, World

TROUBLE_MS = 60_000
MORE_ROOM_MS = 400_000
PATIENCE_MS = 900_000
AFTER_MS = 70_000
GOOD = Revision()
KINDS = ("good", "good", "good", "crashes", "fails", "slow", "stuck")


@dataclass(frozen=True)
class Ending:
    """How it ended.

    Attributes:
        operator: with what it decided.
        world: as it is then.
        took_ms: how long it took.
    """

    operator: Operator
    world: World
    took_ms: int


def rollout(seed: int, decide: Decide = decide_takeover) -> Ending:
    """A rollout with up to five members, most things by chance, to its end.

    Raises:
        Broken: a rule did not hold, or it came to no end.
    """
    rng = random.Random(seed)
    members = rng.choice((0, 1, 1, 2, 3, 3, 4, 5))
    old = Revision(keyed=rng.random() < 0.85)
    new = Revision(rng.choice(KINDS), rng.random() < 0.9, rng.choice((2_000, 4_000, 8_000)))
    world = World(rng, members, old, new, room=members + (rng.random() < 0.85))
    rules = policy(fallback=rng.choice(("Restart", "Stop")), hands_over=new.keyed)
    gaps = (40_000,) if rng.random() < 0.1 else (8_000,)
    operator = Operator(world, rng, rules, decide, gaps, watching_since_ms=world.now_ms)
    wild = rng.choice((0.0, 0.3, 1.0))
    began_ms = world.now_ms
    while not operator.done:
        troubled = world.now_ms - began_ms < TROUBLE_MS
        if troubled:
            _trouble(operator, rng, wild)
        _go_on(operator, wild if troubled else 0.0)
        if operator.refused and not troubled:
            break
        if world.now_ms - began_ms == MORE_ROOM_MS:
            world.room += 1  # a node more: on the way back, `Stop` waits for it
        if world.now_ms - began_ms > PATIENCE_MS:
            raise Broken(f"no end: {operator.last}")
    took_ms = world.now_ms - began_ms
    _settle(operator)
    return Ending(operator, world, took_ms)


def quiet(
    seed: int,
    members: int,
    new: Revision,
    *,
    old: Revision = GOOD,
    room: int = 1,
    fallback: str = "Restart",
    killed: float = 0.0,
    decide: Decide = decide_takeover,
) -> Ending:
    """A rollout in which nothing goes wrong but what the revisions bring with them, and the operator's end.

    Raises:
        Broken: a rule did not hold, or it came to no end.
    """
    rng = random.Random(seed)
    world = World(rng, members, old, new, room=members + room)
    rules = policy(fallback=fallback, hands_over=new.keyed)
    operator = Operator(world, rng, rules, decide, (8_000,), watching_since_ms=world.now_ms)
    began_ms = world.now_ms
    while not operator.done:
        world.tick()
        operator.turn(killed=killed, lost=killed / 2)
        if world.now_ms - began_ms > PATIENCE_MS:
            raise Broken(f"no end: {operator.last}")
    took_ms = world.now_ms - began_ms
    _settle(operator)
    return Ending(operator, world, took_ms)


def _go_on(operator: Operator, wild: float) -> None:
    operator.world.tick()
    if operator.rng.random() >= 0.2 * wild:  # a turn that comes late
        operator.turn(blind=0.2 * wild, deaf=0.1 * wild, killed=0.05 * wild, lost=0.1 * wild)


def _trouble(operator: Operator, rng: random.Random, wild: float) -> None:
    """Now and then: a pod crashes, hangs or is evicted, the coordinator moves, the user turns round."""
    world, often = operator.world, 0.02 * wild
    for pod in list(world.pods.values()):
        if pod.alive and pod.ending_ms is None and rng.random() < often:
            world.crash(pod, failed=rng.random() < 0.3)
        elif pod.alive and rng.random() < often / 2:
            pod.hung_until_ms = world.now_ms + rng.choice((3_000, 20_000, 60_000))
        elif pod.ending_ms is None and rng.random() < often / 2:
            pod.ending_ms = world.now_ms
    if rng.random() < often:
        operator.forced.append(world.now_ms)
        operator.sessions_since_ms = world.now_ms
        for member in world.group.members.values():
            member.heartbeat_ms = world.now_ms
        if world.members and rng.random() < 0.5:
            world.forget_member(f"f-{rng.randrange(world.members)}")
        if rng.random() < 0.5:
            world.group.rebalance()
    good = all(revision.kind == "good" and revision.keyed for revision in world.revisions.values())
    if good and not operator.stops and rng.random() < often / 4:
        operator.old, operator.new = operator.new, operator.old  # the spec is what it was before
        operator.counts["swapped"] += 1
    if rng.random() < often / 4:
        _scale(operator, rng.choice((-1, 1)))


def _scale(operator: Operator, by: int) -> None:
    """The set with the highest ordinals grows or shrinks, when nobody is between the sets."""
    world = operator.world
    if operator.note is not None or not 0 < world.members + by <= 6:
        return
    last = max(world.sets.values(), key=lambda statefulset: statefulset.ordinals.top)
    both = sum(len(statefulset.ordinals) for statefulset in world.sets.values()) != world.members
    if both or any(pod.ordinal >= world.members for pod in world.pods.values()):
        return
    top = world.members if by > 0 else world.members - 1
    world.sets[last.name] = last.having(top) if by > 0 else last.lacking(top)
    world.members += by
    world.room += by
    operator.counts["scaled"] += 1
    if by < 0:
        world.group.members.pop(f"f-{top}", None)
        world.group.rebalance()
        operator.forced.append(world.now_ms)


def _settle(operator: Operator) -> None:
    """Afterwards every member is served, by the set that was filled, and nothing is left over."""
    world = operator.world
    for _ in range(AFTER_MS // TICK_MS):
        world.tick()
    for number in range(world.members):
        server = world.server(f"f-{number}")
        if server is None:
            raise Broken(f"f-{number} is served by nobody in the end: {world.pods}")
        if operator.done and server.set_name != operator.new:
            raise Broken(f"f-{number} is served by {server.name} in the end")
    if operator.done and len(world.sets[operator.new].ordinals) != world.members:
        raise Broken(f"the sets in the end: {world.sets}")
    if operator.done and len(world.pods) != world.members:
        raise Broken(f"pods that are left over: {sorted(world.pods)}")
