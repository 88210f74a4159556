"""The table of seeded faults, by area."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutants import client, delivery, operator, sinks, values
from tests.mutants.fault import Fault

AREAS: Mapping[str, tuple[Fault, ...]] = {
    "client": client.FAULTS,
    "delivery": delivery.FAULTS,
    "sinks": sinks.FAULTS,
    "values": values.FAULTS,
    "operator": operator.FAULTS,
}
FAULTS = tuple(fault for faults in AREAS.values() for fault in faults)
