"""Faults of the operator: its planner, its policies and the conditions."""

from __future__ import annotations

from tests.mutants.fault import Fault

_POLICIES = "operator/slackwater_operator/policies"
_PLANNER = "operator/slackwater_operator/planner"
_UNIT = "tests/operator/unit"

FAULTS = (
    Fault(
        "settle-time-ends-a-moment-late",
        f"{_POLICIES}/scaling/decision.py",
        "    if observed.settled_for_ms < observed.settle_ms:",
        "    if observed.settled_for_ms <= observed.settle_ms:",
        (f"{_UNIT}/policies/scaling/test_scaling.py",),
    ),
    Fault(
        "step-up-that-costs-more-than-it-gains",
        f"{_POLICIES}/scaling/step_up.py",
        "    if gain < cost:",
        "    if gain > cost:",
        (f"{_UNIT}/policies/scaling/test_scaling.py",),
    ),
    Fault(
        "step-at-the-start-of-a-period-counts",
        f"{_POLICIES}/scaling/step_limits.py",
        "for at_ms, change in self._steps if at_ms > since_ms)",
        "for at_ms, change in self._steps if at_ms >= since_ms)",
        (f"{_UNIT}/policies/scaling/test_behavior.py",),
    ),
    Fault(
        "new-sessions-of-a-coordinator-are-not-considered",
        f"{_POLICIES}/rollout/restarts.py",
        "observed.now_ms - max(ended_ms, observed.sessions_since_ms)",
        "observed.now_ms - ended_ms",
        (f"{_UNIT}/policies/rollout/test_rollout.py",),
    ),
    Fault(
        "restart-before-all-members-have-synced",
        f"{_POLICIES}/rollout/restarts.py",
        "        if not member.synced:\n"
        '            return f"{worker.name} has not received its assignment yet"\n',
        "",
        (f"{_UNIT}/policies/rollout/test_rollout.py",),
    ),
    Fault(
        "measurement-of-another-step-counts",
        f"{_POLICIES}/rollout/steps.py",
        "measurement is None or measurement.step != state.key or measurement.at_ms <= state.measured_ms",
        "measurement is None or measurement.at_ms <= state.measured_ms",
        (f"{_UNIT}/policies/rollout/test_rollout_steps.py",),
    ),
    Fault(
        "successor-that-is-disowned-counts-as-the-member",
        f"{_POLICIES}/takeover/steps.py",
        "(not holder and (old_runs or case.disowned(new)))",
        "(not holder and old_runs)",
        (f"{_UNIT}/policies/takeover/test_takeover_moves.py",),
    ),
    Fault(
        "successor-takes-over-from-a-draining-predecessor",
        f"{_POLICIES}/takeover/steps.py",
        'old.phase in (HANDING_OVER, "draining"):',
        "old.phase == HANDING_OVER:",
        (f"{_UNIT}/policies/takeover/test_takeover_moves.py",),
    ),
    Fault(
        "member-is-removed-while-its-process-runs",
        f"{_POLICIES}/membership/joins_and_removals.py",
        "    leaving = sorted(set(alive) - set(wanted))\n",
        "    leaving = sorted(set(alive) & set(wanted))\n",
        (f"{_UNIT}/policies/rollout/test_rollout.py",),
    ),
    Fault(
        "larger-uid-keeps-the-group-id",
        f"{_POLICIES}/membership/group_id.py",
        "    if min(rivals) < uid:",
        "    if min(rivals) > uid:",
        (f"{_UNIT}/policies/groups/test_group_id_contest.py",),
    ),
    Fault(
        "ready-with-partitions-that-nobody-reads",
        f"{_POLICIES}/conditions.py",
        "    if observed.stopped:\n        named =",
        "    if observed.stopped and observed.troubles:\n        named =",
        (f"{_UNIT}/policies/groups/test_conditions.py",),
    ),
    Fault(
        "kafka-group-is-deleted-while-pods-run",
        f"{_PLANNER}/deletion.py",
        "    if snapshot.sets or snapshot.pods:\n",
        "    if snapshot.sets:\n",
        (f"{_UNIT}/planner/plans/test_plan_foreign_members.py",),
    ),
    Fault(
        "action-before-the-status-announces-it",
        f"{_PLANNER}/plan.py",
        "return (*written, *new, *news, *context.acts, *events)",
        "return (*context.acts, *written, *new, *news, *events)",
        (
            f"{_UNIT}/planner/plans/test_plan_killed.py::test_an_operation_completes_although_the_memory_is_lost_after_each_action",
        ),
    ),
    Fault(
        "workers-start-while-a-rewind-runs",
        f"{_PLANNER}/rewind/steps.py",
        "    if over and pods:\n",
        "    if over and len(pods) > 1:\n",
        (
            f"{_UNIT}/planner/plans/test_plan_rewind.py::test_workers_wait_for_a_pod_that_may_still_remove_rows",
        ),
    ),
    Fault(
        "rewind-beside-the-maintenance-of-a-table",
        f"{_PLANNER}/rewind/steps.py",
        "    if context.snapshot.maintenance_pods:",
        "    if len(context.snapshot.maintenance_pods) > 1:",
        (f"{_UNIT}/planner/plans/test_plan_maintenance.py::test_a_rewind_does_not_begin_beside_maintenance",),
    ),
    Fault(
        "maintenance-of-a-suspended-group",
        f"{_PLANNER}/maintenance/steps.py",
        "or context.snapshot.group.spec.suspend or rewinds",
        "or rewinds",
        (f"{_UNIT}/planner/plans/test_plan_maintenance.py::test_a_suspended_group_is_not_maintained",),
    ),
)
