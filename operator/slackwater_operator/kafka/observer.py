"""What looks at one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slackwater_operator.model.kafka_snapshot import KafkaSnapshot


class Observer(Protocol):
    """Looks at one group, and removes members from it."""

    async def observe(self, topics: Sequence[str]) -> KafkaSnapshot:
        """What is now, with these topics. What could not be found out is missing in it, and told in
        `problems`."""
        ...

    async def remove_members(self, instance_ids: tuple[str, ...]) -> dict[str, str]:
        """Removes static members by one LeaveGroup; gives the error of each that it could not remove."""
        ...

    async def close(self) -> None:
        """Ends its connections."""
        ...
