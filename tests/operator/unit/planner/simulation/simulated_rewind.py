"""Jobs of rewinds in the simulated cluster: a pod for each, and what `slackwater rewind` does in it."""

from __future__ import annotations

from slackwater.kafka.structs import TopicPartition
from tests.operator.unit.planner.simulation.simulated_cluster import Json, Simulation, stamp


class SimulatedRewinds:
    """Runs the Jobs of rewinds.

    Attributes:
        check: what the Job that checks does: `passes`, `fails` or `hangs`.
        outcome: the same for the Job that rewinds; `blocked`: its pod is not created.
        sidecar: whether a container that a webhook has added keeps the pods running.
        done: the starts of each rewind that was carried out.
        checked: the starts of each that was only checked.
        commands: the commands of all Jobs.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.check = self.outcome = "passes"
        self.sidecar = False
        self.done: list[list[str]] = []
        self.checked: list[list[str]] = []
        self.commands: list[list[str]] = []
        simulation.starts_job, simulation.runs_job = self._starts, self._runs

    @property
    def jobs(self) -> list[str]:
        return sorted(name for kind, name in self.simulation.objects if kind == "Job" and "-rewind-" in name)

    @property
    def pods(self) -> list[str]:
        return sorted(name for kind, name in self.simulation.objects if kind == "Pod" and "-rewind-" in name)

    def _starts(self, job: Json) -> bool:
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        if "-rewind-" in job["metadata"]["name"]:
            self.commands.append(command)
            return self.outcome != "blocked" or "--check" in command
        return True

    def _runs(self, pod: Json) -> bool:
        if "-rewind-" not in pod["metadata"]["name"]:
            return False
        self.simulation.call_later(0.3, self._run, pod)
        return True

    def _run(self, pod: Json) -> None:
        if (live := self._live(pod)) is not None:
            state = {"name": "worker", "state": {"running": {}}}
            self.simulation.set_status(live, {"phase": "Running", "containerStatuses": [state]})
            self.simulation.call_later(1.5, self._finish, pod)

    def _live(self, pod: Json) -> Json | None:
        """The pod as it is now; None where it is gone, or is to go."""
        live = self.simulation.objects.get(("Pod", pod["metadata"]["name"]))
        return live if live is not None and "deletionTimestamp" not in live["metadata"] else None

    def _finish(self, pod: Json) -> None:
        simulation, command = self.simulation, pod["spec"]["containers"][0]["command"]
        checks = "--check" in command
        outcome = self.check if checks else self.outcome
        live = self._live(pod)
        if outcome == "hangs" or live is None:
            return
        starts = command[command.index("--") + 1 :]
        code, message = 0, "removed 7 rows; flights-1: the group continues at offset 40"
        if outcome == "fails":
            code, message = 4, "the sink cannot remove rows from a topic"
        elif checks:
            self.checked.append(starts)
        else:
            self._rewind(starts)
        terminated = {"exitCode": code, "finishedAt": stamp(simulation.now_ms), "message": message}
        states: list[Json] = [{"name": "worker", "state": {"terminated": terminated}}]
        phase = "Failed" if code else "Succeeded"
        if self.sidecar:
            phase = "Running"
            states.append({"name": "proxy", "state": {"running": {}}})
        simulation.set_status(live, {"phase": phase, "containerStatuses": states})

    def _rewind(self, starts: list[str]) -> None:
        """What the command does; it refuses a group with members."""
        group = self.simulation.group
        assert not group.members, f"rewound with members: {sorted(group.members)}"
        assert not self.simulation.pods, "rewound while workers are there"
        self.done.append(starts)
        for start in starts:
            topic, partition, offset = start.split(":")
            group.positions[TopicPartition(topic, int(partition))] = int(offset)
