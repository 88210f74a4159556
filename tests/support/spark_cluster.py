"""A standalone cluster of Spark on loopback: a master, and workers of one core each."""

from __future__ import annotations

import os
import re
import signal
import site
import sys
from pathlib import Path

import pyspark

import slackwater
from slackwater.pipeline.engines.spark_session import prepare_java
from tests.support.processes import ServerProcess

_DEPLOY = "org.apache.spark.deploy"
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster:
    """``workers``: how many. Their executors have a Python whose path has installed packages and the package
    ``slackwater``, and nothing else of this repository. ``folder``: for what they write."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder, self._count = folder, workers
        self._processes: list[ServerProcess] = []
        self._python = folder / "python"
        self.master = ""
        """Its address."""

    @property
    def conf(self) -> dict[str, str]:
        """Settings of an application on it."""
        return {
            "spark.pyspark.python": str(self._python),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
        }

    def __enter__(self) -> SparkCluster:
        packages = self._folder / "packages"
        packages.mkdir(parents=True)
        (packages / "slackwater").symlink_to(Path(slackwater.__file__).parent)
        path = os.pathsep.join(["$PYTHONPATH", str(packages), *site.getsitepackages()])
        # Not the virtual environment's, whose path has this repository.
        base = getattr(sys, "_base_executable", sys.executable)
        self._python.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {base} "$@"\n')
        self._python.chmod(0o755)
        try:
            master = self._start("master", "master.Master", "--port", "0")
            master.await_ready(lambda: _STARTED.search(master.output))
            started = _STARTED.search(master.output)
            assert started
            self.master = started[1]
            for number in range(self._count):
                name, work = f"worker {number}", str(self._folder / f"work-{number}")
                self._start(
                    name, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", work, self.master
                )
            for worker in self._processes[1:]:
                worker.await_ready(lambda: "Successfully registered with master" in worker.output)  # noqa: B023
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()

    def kill_worker(self, number: int) -> None:
        """Ends a worker and its executors at once."""
        self._processes[1 + number].kill()

    def executors(self, number: int) -> list[int]:
        """The process ids of a worker's executors."""
        return [pid for pid in _children(self._processes[1 + number].pid) if _EXECUTOR in _command(pid)]

    def kill_executor(self, number: int) -> None:
        """Ends a worker's executor at once."""
        os.kill(self.executors(number)[0], signal.SIGKILL)

    def _start(self, name: str, main: str, *arguments: str) -> ServerProcess:
        home = Path(pyspark.__file__).parent
        process = ServerProcess(
            f"Spark's {name}",
            [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{main}", "--host", "127.0.0.1",
             "--webui-port", "0", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._folder),
                "JAVA_HOME": str(prepare_java().home),
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            },
        )  # fmt: skip
        self._processes.append(process)
        return process


def _children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
