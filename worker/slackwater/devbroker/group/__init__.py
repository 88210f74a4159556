"""The group coordinator: the group protocols as pure state machines, and what they store."""

from slackwater.devbroker.group.config import GroupConfig, TopicLookup
from slackwater.devbroker.group.coordinator import GroupCoordinator
from slackwater.devbroker.group.group import GroupState, IllegalTransition
from slackwater.devbroker.group.store import (
    FileGroupStore,
    GroupStore,
    GroupStoreError,
    MemoryGroupStore,
    StoreImage,
)

__all__ = [
    "FileGroupStore",
    "GroupConfig",
    "GroupCoordinator",
    "GroupState",
    "GroupStore",
    "GroupStoreError",
    "IllegalTransition",
    "MemoryGroupStore",
    "StoreImage",
    "TopicLookup",
]
