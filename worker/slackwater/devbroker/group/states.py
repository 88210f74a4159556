"""The states of a classic group, and which may follow which.

Kafka's ``ClassicGroupState``. What older documents call AwaitingSync is CompletingRebalance.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """The values are the names that DescribeGroups and ListGroups answer."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

#: State -> the states that may come after it.
#:
#: Empty      no members; offsets may be kept
#: Preparing  JoinGroups are parked until all have joined or the rebalance timeout has passed
#: Completing the leader owes the assignment; SyncGroups are parked
#: Stable     everybody may have its assignment
#: Dead       deleted, or the coordinator has moved away
TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    _EMPTY: frozenset({_PREPARING, _DEAD}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY, _DEAD}),
    _COMPLETING: frozenset({_STABLE, _PREPARING, _DEAD}),
    _STABLE: frozenset({_PREPARING, _DEAD}),
    _DEAD: frozenset({_DEAD}),
}


class IllegalTransition(Exception):
    """A bug in the coordinator: a group was asked to take a step that the table does not have."""


def check_transition(group_id: str, old: GroupState, new: GroupState) -> None:
    """Raises :class:`IllegalTransition` unless ``new`` may follow ``old``."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"group {group_id!r}: {old.value} -> {new.value}")
