"""The sticky assignors' plan, made from the partitions that members hold.

Three aims, in this order, as Java's assignors document theirs:

1. *Balance.* The sum, over all pairs of members, of the differences in partition counts is as low as the
   subscriptions allow (Java's "balance score"). Where all subscribe to the same topics no two members differ
   by more than one.
2. *Racks*, where they matter (KIP-881): as few partitions as possible are read across racks.
3. *Stickiness.* As many partitions as possible stay with who holds them.

Where all members subscribe to the same topics and no racks matter (Java's "constrained" case), all of this
follows from the counts, in linear time. Otherwise ("general"): a greedy start, then :mod:`local_search` mends
it, which for groups of ordinary size ends at the optimum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from slackwater.kafka.protocol.assignors.assignment_state import NOBODY, Board, lay_out
from slackwater.kafka.protocol.assignors.base import GroupSubscription, Plan, ordered
from slackwater.kafka.protocol.assignors.local_search import improve
from slackwater.kafka.protocol.assignors.racks import member_racks, racks_matter, racks_of
from slackwater.kafka.structs import TopicPartition

Owners = Mapping[TopicPartition, str]


def share_out(
    group: GroupSubscription, owners: Owners, withheld: Collection[TopicPartition] = frozenset()
) -> Plan:
    """The plan for a group in which ``owners`` hold what they hold, as if there were no ``withheld`` ones.

    Every member is in it; its partitions are sorted.
    """
    members, order = group.members, ordered(group.members)
    wants = {member: group.partitions.keys() & set(members[member].topics) for member in order}
    readers = [member for member in order if wants[member]]
    plan: Plan = {member: [] for member in order}
    topics = sorted(set().union(*wants.values()))
    if not topics:
        return plan
    near = member_racks({member: members[member] for member in readers})
    minded = racks_matter(near.values(), topics, group.partitions, group.racks)
    alike = all(len(wants[member]) == len(topics) for member in readers)
    partitions = [
        tp
        for topic in topics
        for tp in (TopicPartition(topic, number) for number in range(group.partitions[topic]))
        if tp not in withheld
    ]
    if alike and not minded:
        plan.update(_share_equally(partitions, readers, owners))
    else:
        plan.update(_share_by_topic(group, partitions, wants, owners, near if minded else {}))
    for mine in plan.values():
        mine.sort()
    return plan


def _share_equally(partitions: Sequence[TopicPartition], readers: Sequence[str], owners: Owners) -> Plan:
    """Everybody gets the floor or the ceiling of the share, and keeps of its own what fits in."""
    held: Plan = {member: [] for member in readers}
    free: list[TopicPartition] = []
    for tp in partitions:
        holder = held.get(owners.get(tp, ""))
        (free if holder is None else holder).append(tp)
    share, ceilings = divmod(len(partitions), len(readers))
    plan: Plan = {}
    for member in readers:
        keep = share
        if ceilings and len(held[member]) > share:
            keep, ceilings = share + 1, ceilings - 1
        plan[member] = held[member][:keep]
        free += held[member][keep:]
    free.sort()
    _deal(deque(free), plan, share, ceilings)
    return plan


def _deal(free: deque[TopicPartition], plan: Plan, share: int, ceilings: int) -> None:
    """One by one in turn, so that a topic's partitions spread: first up to the share, then one more each."""
    open_to = [member for member in plan if len(plan[member]) < share]
    while open_to:
        for member in open_to:
            plan[member].append(free.popleft())
        open_to = [member for member in open_to if len(plan[member]) < share]
    for member in plan:
        if free and ceilings and len(plan[member]) == share:
            plan[member].append(free.popleft())
            ceilings -= 1


def _share_by_topic(
    group: GroupSubscription,
    partitions: Sequence[TopicPartition],
    wants: Mapping[str, set[str]],
    owners: Owners,
    near: Mapping[str, str],
) -> Plan:
    """Keep, hand out the rest to the least loaded, even out, then mend. ``near``: racks that matter."""
    order = list(wants)
    rank = {member: index for index, member in enumerate(order)}
    ranks_by_topic: dict[str, list[int]] = {}
    for member in order:
        for topic in wants[member]:
            ranks_by_topic.setdefault(topic, []).append(rank[member])
    readers = {topic: tuple(ranks) for topic, ranks in ranks_by_topic.items()}
    in_use = frozenset(near.values())
    board = Board([near.get(member) for member in order])
    for tp in partitions:
        racks = racks_of(tp.topic, tp.partition, group.racks) & in_use
        board.add(tp, readers[tp.topic], racks, rank.get(owners.get(tp, ""), NOBODY))
    lay_out(board)
    improve(board)
    return {order[index]: mine for index, mine in enumerate(board.plan())}
