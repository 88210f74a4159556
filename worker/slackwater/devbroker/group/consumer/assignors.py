"""The broker's assignors of the consumer protocol: ``uniform``, which moves little, and ``range``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slackwater.devbroker.group.consumer.group import NO_PARTITIONS, ConsumerGroup, Part, Parts


def uniform(group: ConsumerGroup) -> dict[str, Parts]:
    """Equal numbers, as far as subscriptions allow; a member keeps what it has where that is equal, too."""
    readable = {member_id: _readable(group, member_id) for member_id in group.members}
    owner: dict[Part, str] = {}
    load = dict.fromkeys(group.members, 0)
    for member_id, held in group.targets.items():
        for part in held & readable.get(member_id, NO_PARTITIONS):
            owner[part] = member_id
            load[member_id] += 1
    able = {part: [m for m in group.members if part in readable[m]] for part in _all_parts(group)}

    def give(part: Part, member_id: str) -> None:
        if part in owner:
            load[owner[part]] -= 1
        owner[part] = member_id
        load[member_id] += 1

    for part, members in able.items():
        if part not in owner and members:
            give(part, min(members, key=load.__getitem__))
    while (move := _best_move(owner, able, load)) is not None:
        give(*move)
    return _by_member(group, owner)


def _best_move(
    owner: Mapping[Part, str], able: Mapping[Part, list[str]], load: Mapping[str, int]
) -> tuple[Part, str] | None:
    """A partition of a member that has most, for one that has at least two less; None: all is equal."""
    held: dict[str, list[Part]] = {}
    for part, member_id in owner.items():
        held.setdefault(member_id, []).append(part)
    for giver in sorted(held, key=lambda each: -load[each]):
        for part in held[giver]:
            least = min(able[part], key=load.__getitem__)
            if load[least] < load[giver] - 1:
                return part, least
    return None


def range_(group: ConsumerGroup) -> dict[str, Parts]:
    """Of each topic a range for each member, in the order of their instance ids or member ids."""
    owner: dict[Part, str] = {}
    for topic, (topic_id, count) in sorted(group.counts.items()):
        members = sorted(
            (m for m in group.members.values() if topic in m.topics),
            key=lambda each: each.instance_id or each.member_id,
        )
        for index, member in enumerate(members):
            each, more = divmod(count, len(members))
            start = index * each + min(index, more)
            for number in range(start, start + each + (index < more)):
                owner[topic_id, number] = member.member_id
    return _by_member(group, owner)


SERVER_ASSIGNORS: Mapping[str, Callable[[ConsumerGroup], dict[str, Parts]]] = {
    "uniform": uniform,
    "range": range_,
}
"""By name."""
DEFAULT_ASSIGNOR = "uniform"
"""Where no member names one."""


def _readable(group: ConsumerGroup, member_id: str) -> Parts:
    topics = group.members[member_id].topics
    return frozenset(
        (topic_id, number)
        for topic, (topic_id, count) in group.counts.items()
        if topic in topics
        for number in range(count)
    )


def _all_parts(group: ConsumerGroup) -> list[Part]:
    return [
        (topic_id, number) for _, (topic_id, count) in sorted(group.counts.items()) for number in range(count)
    ]


def _by_member(group: ConsumerGroup, owner: Mapping[Part, str]) -> dict[str, Parts]:
    return {
        member_id: frozenset(part for part, who in owner.items() if who == member_id)
        for member_id in group.members
    }
