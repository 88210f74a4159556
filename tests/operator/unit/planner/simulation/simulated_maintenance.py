"""Jobs of maintenance in the simulated cluster: a pod for each, and what it reports."""

from __future__ import annotations

from tests.operator.unit.planner.simulation.simulated_cluster import Json, Simulation, stamp

DONE = '{"compacted": 412, "written": 3, "expired": 0, "removed": 1630}'


class SimulatedMaintenance:
    """Runs the Jobs of maintenance.

    Attributes:
        code: the exit code of the next runs.
        message: their termination message.
        hangs: whether they do not end.
        commands: the commands of all Jobs.
        most: how many have run at a time, at most.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.code, self.message, self.hangs = 0, DONE, False
        self.commands: list[list[str]] = []
        self.most = 0
        simulation.starts_job, simulation.runs_job = self._starts, self.runs

    @property
    def jobs(self) -> list[str]:
        return self._names("Job")

    @property
    def pods(self) -> list[str]:
        return self._names("Pod")

    @property
    def tables(self) -> list[str]:
        """The table of each run."""
        named = (argument for command in self.commands for argument in command if "--table=" in argument)
        return [argument.removeprefix("--table=") for argument in named]

    def row(self, table: str = "/data/flights") -> Json:
        rows = self.simulation.status.get("maintenance", ())
        return next((dict(row) for row in rows if row["table"] == table), {})

    def runs(self, pod: Json) -> bool:
        """Runs a pod, if it is one of maintenance."""
        if "-maintenance-" not in pod["metadata"]["name"]:
            return False
        self.simulation.call_later(0.3, self._run, pod)
        return True

    def _names(self, kind: str) -> list[str]:
        there = self.simulation.objects
        return sorted(name for each, name in there if each == kind and "-maintenance-" in name)

    def _starts(self, job: Json) -> bool:
        if "-maintenance-" in job["metadata"]["name"]:
            self.commands.append(job["spec"]["template"]["spec"]["containers"][0]["command"])
        return True

    def _run(self, pod: Json) -> None:
        if (live := self._live(pod)) is not None:
            self.most = max(self.most, len(self.pods))
            self._report(live, "Running", {"running": {}})
            self.simulation.call_later(1.5, self._finish, pod)

    def _finish(self, pod: Json) -> None:
        if (live := self._live(pod)) is not None and not self.hangs:
            finished = stamp(self.simulation.now_ms)
            ended = {"exitCode": self.code, "finishedAt": finished, "message": self.message}
            self._report(live, "Failed" if self.code else "Succeeded", {"terminated": ended})

    def _report(self, live: Json, phase: str, state: Json) -> None:
        containers = [{"name": "worker", "state": state}]
        self.simulation.set_status(live, {"phase": phase, "containerStatuses": containers})

    def _live(self, pod: Json) -> Json | None:
        """The pod as it is now; None where it is gone, or is to go."""
        live = self.simulation.objects.get(("Pod", pod["metadata"]["name"]))
        return live if live is not None and "deletionTimestamp" not in live["metadata"] else None
