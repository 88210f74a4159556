"""What a Kafka client costs before the first record: installed size, and the time of its import.

Each client is installed from the package index into an empty environment, in the version of the lock file;
ours is built from this checkout. Sizes are of all packages that pip brought, without bytecode. Times are CPU
time of a new process that imports the consumer, less that of one that imports nothing: the least of the
rounds, as other work on the machine only adds to it.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
CLIENTS = {
    "slackwater": "from slackwater.kafka import KafkaConsumer",
    "slackwater[arrow]": "from slackwater.kafka import KafkaConsumer",
    "confluent-kafka": "from confluent_kafka import Consumer",
    "aiokafka": "from aiokafka import AIOKafkaConsumer",
    "kafka-python": "from kafka import KafkaConsumer",
}
"""What pip installs, and a program's first line."""


def wheel_of_ours(target: Path) -> Path:
    """Builds the wheel of this checkout into the folder."""
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        target,
        _ROOT / "worker",
    )
    (wheel,) = target.glob("slackwater-*.whl")
    return wheel


def _run(*command: str | Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, cwd=_ROOT, env=clean, check=True, stdout=subprocess.DEVNULL)


def size_bytes(environment: Path) -> int:
    """Of what is installed in it: pip is no part of it, as it is run from outside."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    return sum(
        path.stat().st_size for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"
    )


def cpu_s(python: Path, code: str, rounds: int) -> float:
    """The least CPU time of a process that runs ``code``. The first run writes bytecode and is left out."""
    least = float("inf")
    for turn in range(rounds + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _run(python, "-I", "-c", code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if turn:
            least = min(least, took)
    return least


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="runs of each import (%(default)s)")
    rounds = parser.parse_args(arguments or []).rounds
    print(f"{'client':<34}{'installed, MB':>14}{'import, CPU ms':>16}")
    with tempfile.TemporaryDirectory() as scratch:
        wheel = wheel_of_ours(Path(scratch))
        for number, (client, code) in enumerate(CLIENTS.items()):
            name, _, extra = client.partition("[")
            ours = name == "slackwater"
            environment = Path(scratch) / str(number)
            wanted = f"{wheel}{'[' if extra else ''}{extra}" if ours else f"{name}=={version(name)}"
            _run(sys.executable, "-m", "venv", "--without-pip", environment)
            python = environment / "bin" / "python"
            _run(
                sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", wanted
            )
            size = size_bytes(environment)
            took = cpu_s(python, code, rounds) - cpu_s(python, "pass", rounds)
            shown = client if ours else f"{name} {version(name)}"
            print(f"{shown:<34}{size / 1e6:>14.1f}{took * 1000:>16.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
