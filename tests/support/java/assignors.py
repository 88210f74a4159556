"""Apache Kafka's own assignors, in one JVM: the oracle for ours."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slackwater.kafka.protocol.assignors import GroupSubscription, Plan
from slackwater.kafka.structs import TopicPartition
from tests.support.java.programs import JavaOracle


class JavaFailed(Exception):
    """Java's assignor threw an exception."""


@dataclass(frozen=True, slots=True)
class JavaPlan:
    """What Java's assignor gave, in how much time of its thread's CPU; or what it threw."""

    partitions: Plan
    nanos: int = 0
    error: str = ""


class JavaAssignors(JavaOracle):
    """Asks the assignors of the kafka-clients jar of the tests' broker."""

    def __init__(self) -> None:
        super().__init__("AssignorOracle", heap_mb=512)

    def plans(self, assignors: Iterable[str], group: GroupSubscription) -> dict[str, JavaPlan]:
        """The plans of several of Java's assignors, each a new one."""
        answers = self.ask(
            {
                "assignors": list(assignors),
                "partitions": {
                    topic: [sorted(racks) for racks in group.racks.get(topic, [frozenset()] * count)]
                    for topic, count in group.partitions.items()
                },
                "members": {
                    member: {
                        "topics": list(subscription.topics),
                        "owned": subscription.owned,
                        "generation": subscription.generation,
                        "userData": _base64(subscription.user_data),
                        "rack": subscription.rack,
                        "instance": subscription.instance_id,
                    }
                    for member, subscription in group.members.items()
                },
            }
        )
        return {name: _plan(answer) for name, answer in answers.items()}

    def plan(self, assignor: str, group: GroupSubscription) -> Plan:
        """One plan. Raises :class:`JavaFailed`."""
        plan = self.plans([assignor], group)[assignor]
        if plan.error:
            raise JavaFailed(plan.error)
        return plan.partitions

    def user_data(self, assignor: str, owned: list[TopicPartition], generation: int) -> bytes:
        """What a member's assignor of Java's tells after it was given ``owned`` in ``generation``."""
        asked = {"encode": {"assignor": assignor, "owned": owned, "generation": generation}}
        return base64.b64decode(self.ask(asked)["userData"])


def _plan(answer: dict[str, Any]) -> JavaPlan:
    if "error" in answer:
        return JavaPlan({}, error=answer["error"])
    plan = {member: [TopicPartition(*tp) for tp in given] for member, given in answer["plan"].items()}
    return JavaPlan(plan, answer["nanos"])


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
