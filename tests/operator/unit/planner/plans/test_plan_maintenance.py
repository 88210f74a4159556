"""spec.maintenance, by the operator's own code in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.api.times import time_ms
from slackwater_operator.planner.actions import ApplyObject, DeletePod
from tests.operator.unit.planner.plans.test_plan_simulated import started
from tests.operator.unit.planner.simulation.killed import after_each_action, once_after_any_sixth_action
from tests.operator.unit.planner.simulation.simulated_cluster import NAME, Simulation, settled, spec
from tests.operator.unit.planner.simulation.simulated_maintenance import SimulatedMaintenance
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.simulated_rewind import SimulatedRewinds

TABLE = "/data/flights"
ENTRY = {"every": "10m", "compactTo": "64Mi", "expireAfter": "24h30m", "clusterBy": ["carrier", "day"]}
EVERY_MS = 600_000
TWICE_MS = 2 * EVERY_MS


def delta(**more: Any) -> dict[str, Any]:
    return {**spec()["pipeline"], "sink": {"format": "delta", "path": TABLE}, **more}


async def maintained(
    *entries: dict[str, Any], **changes: Any
) -> tuple[Simulation, SimulatedOperator, SimulatedMaintenance]:
    """A group that runs, with a Delta table that is maintained."""
    changes = {"pipeline": delta(), "maintenance": list(entries or [ENTRY]), **changes}
    simulation, operator = await started(**changes)
    return simulation, operator, SimulatedMaintenance(simulation)


async def run_now(simulation: Simulation, operator: SimulatedOperator, jobs: SimulatedMaintenance) -> None:
    """Has all tables maintained by the annotation."""
    request = str(simulation.now_ms)
    simulation.annotate(maintain=request)

    def done() -> bool:
        rows = simulation.status["maintenance"]
        return all(row.get("request") == request and row["phase"] != "Running" for row in rows)

    await operator.run(done)


async def test_a_table_is_maintained_when_it_is_due_and_no_worker_notices() -> None:
    simulation, operator, jobs = await maintained()
    rebalances = simulation.group.rebalances
    due_ms = time_ms(jobs.row()["nextScheduleTime"])
    assert due_ms is not None
    assert 0 < due_ms - simulation.now_ms <= EVERY_MS
    assert "phase" not in jobs.row(), "it has not run yet"
    await operator.run(lambda: jobs.row().get("phase") == "Succeeded", timeout_ms=TWICE_MS)
    assert 0 <= simulation.now_ms - due_ms < 70_000
    row = jobs.row()
    assert [row.get(name) for name in ("compacted", "written", "removed", "expired")] == [412, 3, 1630, 0]
    assert time_ms(row["nextScheduleTime"]) == due_ms + EVERY_MS
    assert jobs.commands == [
        [
            *("slackwater", "maintain", "--config", "/etc/slackwater/worker.yaml", "--output", "json"),
            *(f"--table={TABLE}", "--target-file-size=64Mi", "--expire-after=24h1800000ms"),
            *("--cluster-by=carrier", "--cluster-by=day"),
        ]
    ]
    await operator.run(lambda: not jobs.jobs and not jobs.pods)
    assert [action for action in operator.actions if isinstance(action, DeletePod)] == []
    assert simulation.group.rebalances == rebalances
    assert settled(simulation, 3)


async def test_the_job_is_a_workers_pod_with_resources_of_its_own_that_nothing_counts_as_a_worker() -> None:
    resources = {"requests": {"memory": "512Mi"}, "limits": {"memory": "1Gi"}}
    simulation, operator, jobs = await maintained({**ENTRY, "resources": resources})
    await run_now(simulation, operator, jobs)
    applied = [action.manifest for action in operator.actions if isinstance(action, ApplyObject)]
    job = next(manifest for manifest in applied if manifest["kind"] == "Job")
    pod = job["spec"]["template"]
    statefulset = simulation.objects["StatefulSet", NAME]["spec"]["template"]
    assert pod["spec"]["volumes"] == statefulset["spec"]["volumes"], "the same configuration and Secrets"
    assert pod["spec"]["containers"][0]["image"] == "slackwater/worker:v1"
    assert pod["spec"]["containers"][0]["resources"] == resources
    assert pod["spec"]["terminationGracePeriodSeconds"] < 30, "there is nothing to drain"
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "slackwater-maintenance"
    assert simulation.status["replicas"] == 3


async def test_each_table_has_its_own_entry_or_that_for_every_table_and_one_runs_at_a_time() -> None:
    other = "/data/letters"
    routes = [
        {"when": "kind = 'letter'", "sink": {"format": "delta", "path": other}},
        {"when": "kind = 'file'", "sink": {"format": "parquet", "path": "/data/files"}},
    ]
    simulation, operator, jobs = await maintained(
        {"every": "1h"}, {"table": other, "every": "24h", "compactTo": "1Gi"}, pipeline=delta(routes=routes)
    )
    await run_now(simulation, operator, jobs)
    assert {command[-3]: command[-2] for command in jobs.commands} == {
        f"--table={TABLE}": "--target-file-size=128Mi",
        f"--table={other}": "--target-file-size=1Gi",
    }
    assert jobs.most == 1


async def test_a_failure_is_an_event_and_the_second_in_a_row_degrades_the_group_which_stays_ready() -> None:
    simulation, operator, jobs = await maintained()
    jobs.code, jobs.message = 4, "the lock of the table is held"
    await run_now(simulation, operator, jobs)
    assert (jobs.row()["phase"], jobs.row()["failures"]) == ("Failed", 1)
    assert simulation.condition("Degraded")["status"] == "False"
    assert [message for reason, message in simulation.events.said if reason == "MaintenanceFailed"] == [
        f"table {TABLE}: the lock of the table is held (exit code 4)"
    ]
    await operator.pass_time(5_000)
    (kept,) = jobs.jobs  # for its log
    await run_now(simulation, operator, jobs)
    await operator.run(lambda: simulation.condition("Degraded")["status"] == "True")
    assert simulation.condition("Degraded")["reason"] == "MaintenanceFailed"
    assert TABLE in simulation.condition("Degraded")["message"]
    assert simulation.condition("Ready")["status"] == "True"
    await operator.run(lambda: kept not in jobs.jobs)
    jobs.code, jobs.message = 0, "not JSON"
    await run_now(simulation, operator, jobs)
    await operator.run(lambda: simulation.condition("Degraded")["status"] == "False")
    assert jobs.row()["failures"] == 0
    await operator.run(lambda: not jobs.jobs)


async def test_a_suspended_group_is_not_maintained() -> None:
    simulation, operator, jobs = await maintained()
    jobs.hangs = True
    simulation.annotate(maintain="1")
    await operator.run(lambda: jobs.pods)
    simulation.change(suspend=True)
    await operator.run(lambda: not jobs.pods and not jobs.jobs)
    assert jobs.row()["phase"] == "Interrupted"
    await operator.pass_time(TWICE_MS)
    assert len(jobs.commands) == 1


async def test_a_rewind_does_not_begin_beside_maintenance() -> None:
    """The pod's node is lost: it is being deleted and does not go."""
    simulation, operator = await started(pipeline=delta(), maintenance=[ENTRY])
    SimulatedRewinds(simulation)
    rewinds_runs = simulation.runs_job
    jobs = SimulatedMaintenance(simulation)
    simulation.runs_job = lambda pod: rewinds_runs(pod) or jobs.runs(pod)
    jobs.hangs = True
    simulation.annotate(maintain="1")
    await operator.run(lambda: jobs.pods)
    (pod,) = jobs.pods
    simulation.lost.add(pod)
    simulation.annotate(rewind="flights:1:40")
    await operator.pass_time(60_000)
    assert (jobs.jobs, jobs.pods) == ([], [pod])
    assert f"waits for the end of {pod}" in simulation.condition("Rewound")["message"]
    assert len(simulation.running) == 3
    simulation.gone("Pod", pod)
    await operator.run(lambda: simulation.status["rewind"]["phase"] == "Done")
    assert simulation.status["rewind"]["result"] == "Rewound"


async def test_a_table_that_is_not_maintained_any_more_has_neither_job_nor_row() -> None:
    simulation, operator, jobs = await maintained()
    jobs.hangs = True
    simulation.annotate(maintain="1")
    await operator.run(lambda: jobs.pods)
    simulation.change(maintenance=None)
    await operator.run(lambda: not jobs.pods and not jobs.jobs)
    assert "maintenance" not in simulation.status
    await operator.pass_time(TWICE_MS)
    assert len(jobs.commands) == 1


async def test_a_job_that_does_not_start_is_given_up() -> None:
    simulation, operator, jobs = await maintained({"every": "24h"})
    simulation.job_blocked = "exceeded quota"
    simulation.annotate(maintain="1")
    await operator.run(lambda: jobs.row().get("phase") == "Failed", timeout_ms=2_400_000)
    assert "its pod did not start within 30 min" in jobs.row()["message"]
    await operator.run(lambda: not jobs.jobs)


async def twice(simulation: Simulation, operator: SimulatedOperator) -> None:
    jobs = SimulatedMaintenance(simulation)
    for runs in (1, 2):
        await run_now(simulation, operator, jobs)
        await operator.pass_time(5_000)
        assert (len(jobs.commands), jobs.jobs) == (runs, [])


async def begun(**_: object) -> tuple[Simulation, SimulatedOperator]:
    return await started(pipeline=delta(), maintenance=[ENTRY])


@pytest.mark.parametrize("killed", [after_each_action, once_after_any_sixth_action])
async def test_an_operator_that_is_killed_runs_it_once(killed: Any) -> None:
    await killed(begun, twice)
