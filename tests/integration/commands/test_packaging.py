"""The package builds on a machine without a C compiler, and runs there on the pure-Python parser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
WORKER = Path(__file__).resolve().parents[3] / "worker"


def build(folder: Path, **environment: str) -> list[Path]:
    """Builds a copy of the package in place and gives the compiled modules that stand in it then."""
    shutil.copytree(WORKER, folder, ignore=shutil.ignore_patterns("*.so", "*.c", "build", "*.egg-info"))
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, **environment},
        check=True,
        timeout=500,
    )
    return list((folder / "slackwater").rglob("*.so"))


def test_the_package_builds_without_a_c_compiler(tmp_path: Path) -> None:
    assert build(tmp_path / "worker", CC="no-such-compiler") == []
    asked = "from slackwater.kafka import records; print(records.COMPILED, records.__file__)"
    ended = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path / "worker",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "worker")},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout.split() == ["False", str(tmp_path / "worker/slackwater/kafka/records/__init__.py")]


def test_the_package_uses_an_available_c_compiler(tmp_path: Path) -> None:
    assert [path.name.split(".")[0] for path in build(tmp_path / "worker")] == ["_parser"]
