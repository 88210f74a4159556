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
        simulation.runs_job = self._begin

    @property
    def jobs(self) -> list[str]:
        return sorted(name for kind, name in self.simulation.objects if kind == "Job" and "-rewind-" in name)

    @property
    def pods(self) -> list[str]:
        return sorted(name for kind, name in self.simulation.objects if kind == "Pod" and "-rewind-" in name)

    def _begin(self, job: Json) -> bool:
        name = job["metadata"]["name"]
        if "-rewind-" not in name:
            return False
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        self.commands.append(command)
        if self.outcome != "blocked" or "--check" in command:
            self.simulation._after(300, lambda: self._start(job))
        return True

    def _start(self, job: Json) -> None:
        simulation, name = self.simulation, job["metadata"]["name"]
        if not self._is_there(job):
            return
        template = job["spec"]["template"]
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": f"{name}-x",
                "namespace": job["metadata"]["namespace"],
                "uid": f"uid-{simulation.number()}",
                "labels": {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": name},
            },
            "spec": template["spec"],
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "worker", "state": {"running": {}}}],
            },
        }
        simulation.objects["Pod", f"{name}-x"] = pod
        simulation.touch(pod)
        simulation._after(1_500, lambda: self._finish(job, pod))

    def _finish(self, job: Json, pod: Json) -> None:
        simulation, command = self.simulation, job["spec"]["template"]["spec"]["containers"][0]["command"]
        checks = "--check" in command
        outcome = self.check if checks else self.outcome
        live = simulation.objects.get(("Pod", pod["metadata"]["name"]))
        if outcome == "hangs" or live is not pod or "deletionTimestamp" in pod["metadata"]:
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
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "worker", "state": {"terminated": terminated}}],
        }
        if self.sidecar:
            pod["status"]["phase"] = "Running"
            pod["status"]["containerStatuses"].append({"name": "proxy", "state": {"running": {}}})
        simulation.touch(pod)
        if self._is_there(job) and not self.sidecar:
            kind = "Failed" if code else "Complete"
            job["status"] = {"conditions": [{"type": kind, "status": "True"}]}
            simulation.touch(job)

    def _rewind(self, starts: list[str]) -> None:
        """What the command does; it refuses a group with members."""
        group = self.simulation.group
        assert not group.members, f"rewound with members: {sorted(group.members)}"
        assert not self.simulation.pods, "rewound while workers are there"
        self.done.append(starts)
        for start in starts:
            topic, partition, offset = start.split(":")
            group.positions[TopicPartition(topic, int(partition))] = int(offset)

    def _is_there(self, job: Json) -> bool:
        return self.simulation.objects.get(("Job", job["metadata"]["name"])) is job
