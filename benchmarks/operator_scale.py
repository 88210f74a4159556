"""What 1,000 ConsumerGroups cost one operator, and whether its decisions are on time.

A real control plane and the real operator process; the brokers' side, the kubelet and the workers are hollow
(`_hollow.py`), in this process. Each group has a topic of 12 partitions and one worker. All are brought up;
then nothing happens for a while but that records are produced and consumed (in a tenth of the groups the lag
changes all the time); then the lag of some groups with automatic scaling jumps up, and the time is taken
until their StatefulSets have more replicas.

    python -m benchmarks operator_scale          # SLACKWATER_GROUPS=200 for fewer
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import without_arguments
from benchmarks._hollow import HollowBroker, HollowGroup, HollowPods
from tests.support.controlplane import ControlPlane, path_of
from tests.support.controlplane.async_api import AsyncApi
from tests.support.processes import OwnedProcess

GROUPS = int(os.environ.get("SLACKWATER_GROUPS", "1000"))
STEADY_S = float(os.environ.get("SLACKWATER_STEADY_S", "120"))
PARTITIONS = 12
SCALED = 20
"""How many groups scale by their lag."""
NAMESPACE = "scale"
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints a table."""
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-scale-") as folder,
        ControlPlane.start(Path(folder), nodes=()) as plane,
    ):
        asyncio.run(_Bench(plane, Path(folder)).run())


class Process:
    """CPU and memory of a process, from /proc."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mib(self) -> tuple[float, float]:
        """Resident now, and at most so far."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        matches = [re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM")]
        now, most = (int(match[1]) / 1024 if match else 0.0 for match in matches)
        return now, most


class _Bench:
    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane, self._folder = plane, folder
        self._groups = {f"g{n:04}": self._group(n) for n in range(GROUPS)}
        self._broker = HollowBroker({group.group_id: group for group in self._groups.values()})
        self._scaled = list(self._groups)[:SCALED]

    @staticmethod
    def _group(n: int) -> HollowGroup:
        return HollowGroup(f"group-{n}", f"topic-{n}", PARTITIONS, produced_per_s=10.0)

    async def run(self) -> None:
        api = AsyncApi(self._plane.kubeconfig)
        await self._broker.start()
        await self._prepare(api)
        pods = HollowPods(api, NAMESPACE, self._groups)
        tasks = [asyncio.create_task(pods.run()), asyncio.create_task(self._vary())]
        owned, log = self._operator()
        try:
            await self._measure(api, Process(owned.pid))
        finally:
            owned.kill()
            print(f"operator's log: {Counter(_levels(log.read_text()))}", flush=True)
            if os.environ.get("SLACKWATER_KEEP_LOG"):
                Path(os.environ["SLACKWATER_KEEP_LOG"]).write_text(log.read_text())
            for task in tasks:
                task.cancel()
            pods.close()
            self._broker.close()
            await api.close()

    async def _prepare(self, api: AsyncApi) -> None:
        await asyncio.to_thread(self._plane.define)
        await api.insist("POST", path_of("v1", "namespaces"), {"metadata": {"name": NAMESPACE}})
        places = asyncio.Semaphore(20)

        async def create(name: str) -> None:
            async with places:
                path = path_of("slackwater.dev/v1alpha1", "consumergroups", NAMESPACE)
                await api.insist("POST", path, self._manifest(name))

        await asyncio.gather(*(create(name) for name in self._groups))

    def _manifest(self, name: str) -> dict[str, Any]:
        group = self._groups[name]
        scaling = {"scaling": {"lagPerReplica": 1000, "minReplicas": 1, "maxReplicas": 4}}
        return {
            "apiVersion": "slackwater.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "groupId": group.group_id,
                "kafka": {"bootstrapServers": f"127.0.0.1:{self._broker.port}"},
                "topics": [group.topic],
                "pipeline": {
                    "handler": "m:f",
                    "engine": "arrow",
                    "image": "hollow/worker:1",
                    "sink": {"path": "/out"},
                },
                "replicas": 1,
                "rollout": {
                    "preflight": {"enabled": False}
                },  # a Job a group more, before anything is measured
                **(scaling if name in self._scaled else {}),
            },
        }

    def _operator(self) -> tuple[OwnedProcess, Path]:
        log = self._folder / "operator.log"
        environment = self._plane.environment(self._plane.kubeconfig)
        command = [
            *(sys.executable, *os.environ.get("SLACKWATER_PYTHON_OPTIONS", "").split()),
            *("-m", "slackwater_operator.cli.operator", "--namespace", NAMESPACE, "--no-leader-election"),
            *("--http-host", "127.0.0.1", "--http-port", "0"),
        ]
        with log.open("ab") as output:
            return OwnedProcess(command, env=environment, output=output), log

    async def _vary(self) -> None:
        """The lag of a tenth of the groups is another every few seconds."""
        varied = [group for n, group in enumerate(self._groups.values()) if n % 10 == 9]
        at = 0
        while True:
            at += 1
            for group in varied:
                group.backlog = 37 * (at % 5)
            await asyncio.sleep(3)

    # -- measuring

    async def _measure(self, api: AsyncApi, operator: Process) -> None:
        began = time.monotonic()
        while (ready := await self._ready(api)) < GROUPS:
            print(
                f"  {time.monotonic() - began:4.0f} s: {ready} of {GROUPS} ready, operator's CPU "
                f"{operator.cpu_s():.0f} s, {operator.memory_mib()[0]:.0f} MiB",
                file=sys.stderr,
                flush=True,
            )
            await asyncio.sleep(10)
        print(f"| | {GROUPS} groups x {PARTITIONS} partitions |\n|---|---|")
        print(
            f"| all Ready after | {time.monotonic() - began:.0f} s, {operator.cpu_s():.0f} s of CPU |",
            flush=True,
        )
        await asyncio.sleep(30)
        await self._steady(operator)
        await self._decisions(api)
        now, most = operator.memory_mib()
        print(f"| memory at the end, at most | {now:.0f} MiB, {most:.0f} MiB |", flush=True)

    async def _ready(self, api: AsyncApi) -> int:
        listed = await api.insist("GET", path_of("slackwater.dev/v1alpha1", "consumergroups", NAMESPACE))
        return sum(
            any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in item.get("status", {}).get("conditions", [])
            )
            for item in listed["items"]
        )

    async def _steady(self, operator: Process) -> None:
        shares = []
        before = Counter(self._broker.requests)
        for _ in range(max(1, round(STEADY_S / 10))):
            cpu, at = operator.cpu_s(), time.monotonic()
            await asyncio.sleep(10)
            shares.append((operator.cpu_s() - cpu) / (time.monotonic() - at))
        asked = Counter(self._broker.requests) - before
        mean = sum(shares) / len(shares)
        print(f"| core, mean of {STEADY_S:.0f} s (10 s at most) | {mean:.3f} ({max(shares):.3f}) |")
        now, most = operator.memory_mib()
        print(f"| memory, at most | {now:.0f} MiB, {most:.0f} MiB |")
        rates = ", ".join(f"{name} {60 * count / STEADY_S:.0f}" for name, count in sorted(asked.items()))
        print(f"| requests to the broker a minute | {rates} |", flush=True)

    async def _decisions(self, api: AsyncApi) -> None:
        """The lag of the groups that scale jumps up, one after another."""
        took: list[float] = []
        for name in self._scaled:
            self._groups[name].backlog = 500  # 6,000 records of 1,000 a replica: as many as there may be
            began = time.monotonic()
            path = path_of("apps/v1", "statefulsets", NAMESPACE, name)
            while (await api.insist("GET", path))["spec"]["replicas"] == 1:
                if time.monotonic() - began > 60:
                    print(f"{name} was not scaled within 60 s", file=sys.stderr)
                    break
                await asyncio.sleep(0.1)
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.37)
        print(
            f"| lag up to the StatefulSet's replicas, {len(took)} groups | median {median(took):.1f} s, "
            f"at most {max(took):.1f} s |",
            flush=True,
        )


def _levels(log: str) -> list[str]:
    return re.findall(r"\b(WARNING|ERROR|CRITICAL)\b", log, re.IGNORECASE)


if __name__ == "__main__":
    without_arguments(main, __doc__)
