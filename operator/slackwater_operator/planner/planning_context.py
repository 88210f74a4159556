"""The state of a plan while it is made. The planner's modules add to it one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from slackwater_operator.api.v1alpha1.status.group_status import DecisionRecord, Skip
from slackwater_operator.api.v1alpha1.status.maintenance import TableStatus
from slackwater_operator.api.v1alpha1.status.rewind import RewindStatus
from slackwater_operator.api.v1alpha1.status.rollout import RolloutStatus
from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.planner.actions import Action, EmitEvent
from slackwater_operator.planner.decision_log import remember
from slackwater_operator.planner.derived_state import DerivedState
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.conditions import Trouble
from slackwater_operator.policies.rollout.steps import StepsDecision
from slackwater_operator.policies.scaling.types import ScalingDecision

_SOON_MS = 1_000


@dataclass
class PlanningContext:
    """What has been decided so far in this reconciliation.

    Attributes:
        snapshot: the snapshot that is planned from.
        derived: the state derived from it.
        rollout: status.rollout as it will be written.
        gaps_ms: the measured durations of restarts.
        desired: the wanted number of workers.
        decisions: the decision records.
        acts: the actions after the status is written.
        news: Events about observations, emitted whatever becomes of `acts`.
        events: Events about `acts`, emitted after them.
        troubles: problems that need a person.
        scaling: the scaling decision.
        step: the scaling step that begins, as (before, after).
        held_at_zero: why no worker starts although workers are wanted and none run; "" if nothing holds them.
        unplanned: why the group rebalanced during a restart without the restart being the cause.
        needs_fresh: whether something would be done on a fresh snapshot.
        busy: whether something is in progress.
        rewind: status.rewind as it will be written; None without one.
        rewinding: whether the workers are stopped now for a rewind.
        rewind_waits: what the rewind waits for, in words; "" for nothing in particular.
        maintenance: status.maintenance as it will be written.
        maintenance_troubles: problems of the maintenance that need a person; the workers have none by them.
        hindered: whether another ConsumerGroup has the group.id, so that nothing is started.
        gives_way: whether that one keeps it, so that this group's workers are stopped.
        template_changes: whether the target StatefulSet (or the only one) gets another template now.
        takes_over: whether members move to another StatefulSet, so that the existing one keeps its template.
        steps: how far spec.rollout.steps lets the rollout go now, and whether it is given up.
        spans: by suffix, the ordinals that each StatefulSet is to have; a missing StatefulSet is created.
        skipped: the latest records that the workers have skipped.
        taken_over: the result of each takeover that has ended: `asked`, `forced`, `restarted`, or `stopped`.
        due_ms: when to plan again at the latest even if nothing is in progress (wall clock, ms); None for no
            such time.
    """

    snapshot: GroupSnapshot
    derived: DerivedState
    rollout: RolloutStatus
    gaps_ms: tuple[int, ...] = ()
    desired: int | None = None
    decisions: tuple[DecisionRecord, ...] = ()
    acts: list[Action] = field(default_factory=list)
    news: list[EmitEvent] = field(default_factory=list)
    events: list[EmitEvent] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    scaling: ScalingDecision | None = None
    step: tuple[int, int] | None = None
    held_at_zero: str = ""
    unplanned: str = ""
    needs_fresh: bool = False
    busy: bool = False
    rewind: RewindStatus | None = None
    rewinding: bool = False
    rewind_waits: str = ""
    maintenance: tuple[TableStatus, ...] = ()
    maintenance_troubles: list[Trouble] = field(default_factory=list)
    hindered: bool = False
    gives_way: bool = False
    template_changes: bool = False
    takes_over: bool = False
    steps: StepsDecision = field(default_factory=StepsDecision)
    spans: dict[str, Ordinals] = field(default_factory=dict)
    taken_over: list[str] = field(default_factory=list)
    skipped: tuple[Skip, ...] = ()
    due_ms: int | None = None

    @classmethod
    def of(cls, snapshot: GroupSnapshot, derived: DerivedState) -> PlanningContext:
        """A context without decisions."""
        memory = snapshot.memory
        return cls(
            snapshot,
            derived,
            rollout=memory.rollout,
            gaps_ms=memory.restart_gaps_ms,
            desired=memory.desired_replicas,
            decisions=memory.decisions,
            skipped=memory.skipped,
            rewind=memory.rewind,
            maintenance=memory.maintenance,
            spans={suffix: statefulset.span for suffix, statefulset in snapshot.sets.items()},
        )

    def change_rollout(self, **fields: Any) -> None:
        """Changes fields of status.rollout; a new phase begins now."""
        phase = fields.get("phase", self.rollout.phase)
        if phase != self.rollout.phase:
            fields["since_ms"] = self.snapshot.now_ms
        if any(getattr(self.rollout, name) != value for name, value in fields.items()):
            self.rollout = replace(self.rollout, **fields)

    def decided(self, kind: str, action: str, reason: str) -> bool:
        """Stores a decision if it differs from the previous one of its kind. Returns whether it does."""
        before = self.decisions
        self.decisions = remember(before, self.snapshot.now_ms, kind, action, reason)
        return self.decisions is not before

    def emit_after(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Emits an Event after the actions."""
        self.events.append(EmitEvent(reason, message, warning))

    def emit_before(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Emits an Event about an observation."""
        self.news.append(EmitEvent(reason, message, warning))

    def needs_attention(self, reason: str, message: str, *, stalls: bool = False) -> None:
        """Notes a problem that needs a person."""
        self.troubles.append(Trouble(reason, message, stalls))

    def wake(self, at_ms: int) -> None:
        """Plans again at `at_ms` (wall clock) at the latest, whether or not something is in progress."""
        self.due_ms = at_ms if self.due_ms is None else min(self.due_ms, at_ms)

    @property
    def stopped(self) -> bool:
        """Whether no worker may run: spec.suspend, or a rewind."""
        assert self.snapshot.group is not None
        return self.snapshot.group.spec.suspend or self.rewinding

    @property
    def wake_ms(self) -> int:
        """When to plan again at the latest while something is in progress (wall clock, ms)."""
        return self.snapshot.now_ms + _SOON_MS
