"""Whether a revision makes the group rebalance by itself: other topics, or another assignor.

A static member that returns with other topics gets its old assignment: the broker compares the name of the
assignor only (KAFKA-12759). So the member has to ask for a rebalance. A worker leaves that to the last one
that has to return with the new topics (`subscription_change_max_delay_ms`), so that the rollout costs one
rebalance; one that comes in between, for whatever reason, costs one more.

A revision that prefers another assignor makes the group rebalance when all members offer that one. The
assignor that the group uses has to be among those of the new revision, or the broker refuses its members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from slackwater_operator.model.group import GroupView

_NAMED = 5


def expected_rebalance(
    group: GroupView | None, topics: Collection[str] | None, assignors: Sequence[str]
) -> str:
    """Why the group rebalances when its members get a revision, in words; "" if it need not.

    Args:
        group: the group as its members are now; None when the broker did not say.
        topics: the topics that the revision reads; None when they are not known.
        assignors: the assignors that it offers, in order of preference.
    """
    if group is None:
        return ""
    reasons = [
        _topics_change(group, topics) if topics is not None else "",
        _assignor_changes(group, assignors),
    ]
    return "; ".join(filter(None, reasons))


def _topics_change(group: GroupView, topics: Collection[str]) -> str:
    wanted = frozenset(topics)
    others = [one.topics for one in group.members if one.topics is not None and one.topics != wanted]
    if not others:
        return ""
    before = frozenset().union(*others)
    changes = [
        f"{what} {_listed(names)}"
        for what, names in (("added:", wanted - before), ("removed:", before - wanted))
        if names
    ]
    return f"the topics change ({'; '.join(changes) or 'members subscribe to different topics'})"


def _assignor_changes(group: GroupView, assignors: Sequence[str]) -> str:
    if not group.assignor or not assignors or assignors[0] == group.assignor:
        return ""
    return f"the assignor changes from {group.assignor} to {assignors[0]}"


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more
