"""How long a plan takes, ours and Java's (kafka-clients 4.4.0), for groups of growing size.

Each group is planned twice: from nothing, and after a tenth of its members have gone and one has come, when
all tell what they hold. Groups: all members subscribe to all topics (`constrained`), each to nine tenths of
them (`general`), or all to all in three racks (`racks`). A topic has 100 partitions. Both plan on one
thread, and its CPU time is what counts; Java's is taken after it has warmed up, without the time to read
the group.

    python -m benchmarks assignors
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks import without_arguments
from slackwater.kafka.protocol.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    GroupSubscription,
    MemberSubscription,
    Plan,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from slackwater.kafka.protocol.assignors.ownership import encode_sticky
from tests.support.java.assignors import JavaAssignors

SIZES = ((125, 2_500), (250, 5_000), (500, 10_000), (1_000, 20_000))
"""Members and partitions."""
JAVA_LIMIT_MS = 60_000
"""Where Java took longer for a group, larger ones of the kind are not asked of it."""
RACKS = ("east", "north", "west")
KINDS = ("constrained", "general", "racks")
ASSIGNORS: tuple[Assignor, ...] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Times in ms: from nothing, and after members have come and gone."""

    first: float
    after: float

    def __str__(self) -> str:
        return f"{self.first:9.0f} {self.after:9.0f}"


def main() -> None:
    """Prints a table."""
    print(f"{'assignor':20}{'group':12}{'members':>8}{'partitions':>11}   ", end="")
    print(f"{'ours, ms':>19}   {'Java, ms':>19}")
    print(f"{'':54}{'first':>9} {'after':>9}   {'first':>9} {'after':>9}")
    with JavaAssignors() as java:
        for assignor in ASSIGNORS:
            warm_up(java, assignor.name)
            for kind in KINDS:
                slow = False
                for members, partitions in SIZES:
                    theirs, mine = None, measure(None, assignor, kind, members, partitions)
                    if not slow:
                        theirs = measure(java, assignor, kind, members, partitions)
                        slow = max(theirs.first, theirs.after) > JAVA_LIMIT_MS
                    line = f"{assignor.name:20}{kind:12}{members:8}{partitions:11}   {mine}"
                    print(line, "", theirs if theirs is not None else "not asked", flush=True)


def warm_up(java: JavaAssignors, name: str) -> None:
    """Until its compiler has seen the assignor."""
    for kind in KINDS:
        for _ in range(20):
            java.plan(name, group(kind, 20, 400))


def measure(java: JavaAssignors | None, assignor: Assignor, kind: str, members: int, partitions: int) -> Row:
    """Both plans; Java's assignor of that name if ``java`` is given."""
    fresh = group(kind, members, partitions)
    first, plan = timed(java, assignor, fresh)
    after, _ = timed(java, assignor, changed(fresh, plan))
    return Row(first, after)


def timed(
    java: JavaAssignors | None, assignor: Assignor, subscription: GroupSubscription
) -> tuple[float, Plan]:
    """A plan, and how many ms it took."""
    if java is not None:
        java_plan = java.plans([assignor.name], subscription)[assignor.name]
        return java_plan.nanos / 1e6, java_plan.partitions
    started = time.thread_time()
    plan = assignor.assign_group(subscription).partitions
    return (time.thread_time() - started) * 1e3, plan


def group(kind: str, members: int, partitions: int) -> GroupSubscription:
    """A group in which nobody holds anything."""
    rng = random.Random(members)
    topics = {f"topic-{number:03}": 100 for number in range(partitions // 100)}

    def subscription() -> MemberSubscription:
        chosen = rng.sample(sorted(topics), len(topics) * 9 // 10) if kind == "general" else sorted(topics)
        return MemberSubscription(tuple(chosen), rack=rng.choice(RACKS) if kind == "racks" else None)

    racks = {t: list(replicas(rng, count)) for t, count in topics.items()} if kind == "racks" else {}
    return GroupSubscription(topics, {f"member-{n:04}": subscription() for n in range(members)}, racks, 1)


def replicas(rng: random.Random, count: int) -> Iterator[frozenset[str]]:
    """Two of the three racks for each partition."""
    return (frozenset(rng.sample(RACKS, 2)) for _ in range(count))


def changed(before: GroupSubscription, plan: Plan) -> GroupSubscription:
    """A tenth is gone, one is new, and all others say what they hold."""
    stay = [member for number, member in enumerate(before.members) if number % 10]
    members = {
        member: replace(
            before.members[member],
            owned=tuple(plan[member]),
            generation=1,
            user_data=encode_sticky(plan[member], 1),
        )
        for member in stay
    }
    members["newcomer"] = replace(before.members[stay[0]])
    return replace(before, members=members, generation=2)


if __name__ == "__main__":
    without_arguments(main, __doc__)
