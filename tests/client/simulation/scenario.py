"""What a seed stands for: the cluster, the group's members, and what happens to them, when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from slackwater.devbroker.group import GroupConfig

EAGER = ("range", "roundrobin", "sticky")
UPGRADE = (("range",), ("cooperative-sticky", "range"), ("cooperative-sticky",))
"""The lists of assignors by which a live group goes from eager to cooperative, in two bounces (KIP-429)."""
COMMITS = ("auto", "sync", "async", "positions", "revoke")

TROUBLE = (
    "crash", "crash", "stop", "twin", "twin", "stall", "topics", "kill", "kill", "vanish", "shutdown",
    "shutdown", "hang", "move", "move", "lead", "cut", "cut", "slow", "far", "far", "loss",
    "grow", "remove",
)  # fmt: skip
"""What can happen, the likelier ones twice."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a member: what its pods are like, one after the other.

    ``commits``: ``auto`` (enable_auto_commit), ``sync`` (what was handled, after each poll), ``async`` (the
    same without waiting for it), ``positions`` (commit() without offsets), ``revoke`` (every third
    poll, and in the listener what is revoked).
    """

    name: str
    instance: str | None
    commits: str
    topics: tuple[str, ...]
    poll_ms: int
    max_records: int
    work_ms: int
    listener_ms: int


@dataclass(frozen=True, slots=True)
class Happening:
    """What is done at ``at_ms`` after the begin; :mod:`tests.client.simulation.site` has the words."""

    at_ms: int
    what: str
    who: str | int = ""
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One seed's story before it is told. All times in ms."""

    seed: int
    protocols: dict[str, str]
    """Of each slot's first pod, by the slot's name: ``classic`` or ``consumer`` (KIP-848)."""
    brokers: int
    age: str
    topics: dict[str, int]
    slots: tuple[Slot, ...]
    phases: tuple[tuple[str, ...], ...]
    session_ms: int
    heartbeat_ms: int
    max_poll_ms: int
    request_ms: int
    base_ms: float
    jitter_ms: float
    append_every_ms: int
    heal_at_ms: int
    happenings: tuple[Happening, ...] = field(repr=False)

    @property
    def settle_within_ms(self) -> int:
        """How long after the last fault the group may take: sessions of the vanished end, a rebalance waits
        for who does not come, a request is given up and repeated, and once more for the echo of a return.

        While members change their protocol, those that go in a classic group's first rebalance stay its
        members for ``GroupConfig.new_member_join_timeout_ms``, as in Kafka.
        """
        migrates = any(happening.what == "migrate" for happening in self.happenings)
        usual = 3 * self.session_ms + 4 * self.max_poll_ms + 3 * self.request_ms + 30_000
        return usual + GroupConfig().new_member_join_timeout_ms if migrates else usual

    def work_off_ms(self, records: int) -> float:
        """How long these records may take if they all come to the slowest member: a poll's work at its
        longest, and two trips there and back, for each poll."""
        trips_ms = 4 * (self.base_ms + self.jitter_ms)
        return max(-(-records // slot.max_records) * (slot.work_ms + trips_ms) for slot in self.slots)


def draw(seed: int, trouble: tuple[str, ...] = (), protocol: str = "classic") -> Scenario:
    """The scenario of a seed: the same one every time. ``trouble``: only these kinds of it, and more.
    ``protocol``: the group's, or ``mixed``: of some members each, and members change it; the story is the
    same otherwise."""
    rng = random.Random(seed)
    brokers = rng.choice((1, 2, 3, 3))
    topics = {"t": rng.randint(1, 6)}
    if rng.random() < 0.4:
        topics["u"] = rng.randint(1, 3)
    part = rng.random()
    if part < 0.6:
        phases: tuple[tuple[str, ...], ...] = (("cooperative-sticky",),)
    elif part < 0.85:
        phases = ((rng.choice(EAGER),),)
    else:
        phases = UPGRADE
    slots = _slots(rng, tuple(topics))
    heal_at_ms = rng.randint(12_000, 30_000)
    happenings = _life(rng, slots, heal_at_ms, phases)
    for _ in range(8 if trouble else rng.choice((0, 1, 2, 3, 4, 6))):
        kind = rng.choice(trouble or TROUBLE)
        happenings += _trouble(rng, kind, slots, brokers, topics, heal_at_ms)
    protocols = {slot.name: protocol for slot in slots}
    if protocol == "mixed":
        own = random.Random(f"protocols of {seed}")
        protocols = _mixture(own, slots)
        for _ in range(own.choice((1, 1, 2, 3))):
            happenings += _migration(own, slots, heal_at_ms)
    happenings.sort(key=lambda event: event.at_ms)
    max_poll_ms = rng.choice((6_000, 10_000, 20_000))
    return Scenario(
        seed=seed,
        protocols=protocols,
        brokers=brokers,
        age=rng.choice(("4.3", "4.3", "3.9", "2.8")) if protocol == "classic" else "4.3",
        topics=topics,
        slots=slots,
        phases=phases,
        session_ms=rng.choice((6_000, 8_000, 12_000)),
        heartbeat_ms=rng.choice((1_000, 2_000, 2_500)),
        max_poll_ms=max_poll_ms,
        request_ms=rng.choice((3_000, 6_000, 10_000)),
        base_ms=rng.choice((0.5, 1.0, 3.0)),
        jitter_ms=rng.choice((1.0, 10.0, 60.0)),
        append_every_ms=rng.choice((700, 1_500, 3_000)),
        heal_at_ms=heal_at_ms,
        happenings=tuple(happenings),
    )


def _slots(rng: random.Random, topics: tuple[str, ...]) -> tuple[Slot, ...]:
    static = rng.choice((0.0, 0.5, 1.0, 1.0))
    same = rng.choice((*COMMITS, ""))
    slots = []
    for number in range(rng.choice((1, 2, 2, 3, 3, 4, 5, 6))):
        chosen = topics if rng.random() < 0.8 else (rng.choice(topics),)
        slots.append(
            Slot(
                name=f"p{number}",
                instance=f"i{number}" if rng.random() < static else None,
                commits=same or rng.choice(COMMITS),
                topics=chosen,
                poll_ms=rng.choice((500, 1_000, 2_000)),
                max_records=rng.choice((1, 3, 500, 500)),
                work_ms=rng.choice((0, 0, 50, 400, 1_500)),
                listener_ms=rng.choice((0, 0, 0, 300, 2_000)),
            )
        )
    return tuple(slots)


def _life(
    rng: random.Random, slots: tuple[Slot, ...], until_ms: int, phases: tuple[tuple[str, ...], ...]
) -> list[Happening]:
    """Pods start at about the same time, or some later; an upgrade bounces them all, twice."""
    happenings = [
        Happening(rng.randint(0, 300) if rng.random() < 0.7 else rng.randint(0, until_ms), "start", s.name)
        for s in slots
    ]
    for phase in range(1, len(phases)):
        at = until_ms * phase // len(phases)
        happenings.append(Happening(at, "phase", "", phase))
        for slot in slots:
            at += rng.randint(100, max(200, until_ms // len(phases) // (len(slots) + 1)))
            happenings.append(Happening(at, rng.choice(("stop", "crash")), slot.name))
            happenings.append(Happening(at + rng.randint(200, 1_500), "start", slot.name))
    if len(phases) == 1 and rng.random() < 0.25:
        at = rng.randint(2_000, until_ms)
        for slot in slots:
            at += rng.randint(100, 3_000)
            happenings.append(Happening(at, "stop", slot.name))
            happenings.append(Happening(at + rng.randint(100, 2_000), "start", slot.name))
    return happenings


def _mixture(rng: random.Random, slots: tuple[Slot, ...]) -> dict[str, str]:
    share = rng.choice((0.0, 0.0, 0.5, 1.0))
    return {slot.name: "consumer" if rng.random() < share else "classic" for slot in slots}


def _migration(rng: random.Random, slots: tuple[Slot, ...], until_ms: int) -> list[Happening]:
    """Pods, one after the other, are restarted with one of the protocols, beside the old pod or after it.

    ``value`` of a ``migrate``: whether it is the consumer protocol.
    """
    some = slots if rng.random() < 0.6 else tuple(slot for slot in slots if rng.random() < 0.5)
    to_consumer = rng.random() < 0.6
    at = rng.randint(1_000, until_ms)
    happenings = []
    for slot in some:
        at += rng.choice((0, rng.randint(0, 300), rng.randint(0, 4_000)))
        happenings.append(Happening(at, "migrate", slot.name, to_consumer))
        how = rng.choice(("stop", "stop", "crash", "twin"))
        happenings.append(Happening(at + 1, how, slot.name))
        happenings.append(Happening(at + 1 + rng.choice((20, 200, 1_500)), "start", slot.name))
    return happenings


def _trouble(
    rng: random.Random,
    kind: str,
    slots: tuple[Slot, ...],
    brokers: int,
    topics: dict[str, int],
    until_ms: int,
) -> list[Happening]:
    at = rng.randint(500, until_ms)
    slot = rng.choice(slots)
    node = rng.randint(1, brokers)
    back = at + rng.choice((300, 1_500, 4_000, 9_000))
    if kind in ("crash", "stop"):
        again = [Happening(back, "start", slot.name)] if rng.random() < 0.8 else []
        return [Happening(at, kind, slot.name), *again]
    if kind == "stall":
        return [Happening(at, kind, slot.name, rng.choice((3_000, 9_000, 25_000)))]
    if kind == "topics":
        return [Happening(at, kind, slot.name, rng.randint(1, len(topics)))]
    if kind == "twin":
        return [Happening(at, kind, slot.name)]
    if kind in ("kill", "vanish", "shutdown"):
        return [Happening(at, kind, node, rng.choice((200, 1_000, 5_000))), Happening(back, "up", node)]
    if kind == "hang":
        return [Happening(at, kind, node), Happening(back, "up", node)]
    if kind == "slow":
        extra = rng.choice((200.0, 1_500.0, 4_000.0))
        return [Happening(at, kind, node, extra), Happening(back, "slow", node, 0.0)]
    if kind == "far":
        return [
            Happening(at, kind, slot.name, rng.choice((3_000.0, 9_000.0, 25_000.0))),
            Happening(back, "far", slot.name, 0.0),
        ]
    if kind == "loss":
        return [Happening(at, kind, "", rng.choice((0.05, 0.2))), Happening(back, "loss", "", 0.0)]
    if kind == "grow":
        return [Happening(at, kind, rng.choice(sorted(topics)))]
    if kind == "remove":
        return [Happening(at, kind, slot.name)]
    return [Happening(at, kind, node)]
