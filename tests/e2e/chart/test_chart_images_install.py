"""The Containerfiles' steps that need no container engine: the packages are built from what the build context
holds, installed into an environment of their own, and run from outside the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path, PurePosixPath

import pytest

from tests.support.operator import chart, containerfile

pytestmark = pytest.mark.timeout(600)  # pip builds both packages, one of them twice

OPT = "/opt/slackwater"
IMAGES = chart.ROOT / "images"
# The others install hundreds of megabytes that this environment has, or want to be root in a container.
RUN_HERE = ("-r requirements/build.txt", "pip install --no-deps", "records.COMPILED")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context: what .dockerignore lets through, and nothing else."""
    rules = (chart.ROOT / ".dockerignore").read_text(encoding="utf-8")
    target = tmp_path_factory.mktemp("context")
    for top in ("worker", "operator", "requirements"):
        for source in (chart.ROOT / top).rglob("*"):
            inside = source.relative_to(chart.ROOT)
            if source.is_file() and not containerfile.ignored(rules, PurePosixPath(inside)):
                (target / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / inside)
    return target


@pytest.fixture(scope="module")
def opt(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What becomes /opt/slackwater. The locked packages are lent by this environment (a path, so its own
    `slackwater` and `slackwater-operator`, which are links to the sources, are not found through it)."""
    folder = tmp_path_factory.mktemp("opt") / "slackwater"
    run([sys.executable, "-m", "venv", str(folder)], cwd=context)
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (inside / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("worker", "operator"):
        for stage in containerfile.read(IMAGES / f"{name}.Containerfile"):
            for step in stage.all("RUN"):
                if any(mark in step.rest for mark in RUN_HERE):
                    run(["sh", "-ec", step.rest.replace(OPT, str(folder))], cwd=context)
    return folder


def run(command: list[str], *, cwd: Path, path: str = "") -> str:
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))
    }
    env["PATH"] = f"{path}{os.pathsep if path else ''}{env['PATH']}"
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_the_image_imports_its_installed_packages(opt: Path, tmp_path: Path) -> None:
    where = "import slackwater, slackwater_operator as o; print(slackwater.__file__, o.__file__)"
    said = run([str(opt / "bin" / "python"), "-c", where], cwd=tmp_path)
    assert all(Path(file).is_relative_to(opt) for file in said.split()), said


def test_the_user_of_the_spark_image_has_a_name_and_a_home() -> None:
    """Java's user.home is `?` else, and Ivy and Hadoop fail: Spark does not start."""
    [stage] = [s for s in containerfile.read(IMAGES / "worker.Containerfile") if s.name == "spark"]
    [user] = stage.all("USER")
    uid = user.rest.partition(":")[0]
    assert any(f":x:{uid}:" in step.rest and "/etc/passwd" in step.rest for step in stage.all("RUN"))


@pytest.mark.parametrize("name", ["worker", "operator"])
def test_the_entry_point_runs_outside_the_source_tree(name: str, opt: Path, tmp_path: Path) -> None:
    for stage in containerfile.read(IMAGES / f"{name}.Containerfile"):
        for entry in stage.all("ENTRYPOINT"):
            said = run([*entry.words(), "--help"], cwd=tmp_path, path=str(opt / "bin"))
            assert f"usage: {entry.words()[0]}" in said


def test_the_commands_used_by_chart_and_operator_exist(opt: Path, tmp_path: Path) -> None:
    path = str(opt / "bin")
    assert "--config" in run(["slackwater", "worker", "--help"], cwd=tmp_path, path=path)
    assert "--preflight" in run(["slackwater", "worker", "--help"], cwd=tmp_path, path=path)
    assert "--selector" in run(["slackwater-operator", "check", "--help"], cwd=tmp_path, path=path)
    run(["kubectl-slackwater", "--help"], cwd=tmp_path, path=path)
    manifests = chart.template({"watchNamespaces": ["a"], "podMonitor.workers.enabled": True})
    pod = chart.only_manifest(manifests, "Deployment")["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    known = set(re.findall(r"--[a-z-]+", run(["slackwater-operator", "--help"], cwd=tmp_path, path=path)))
    assert {argument.partition("=")[0] for argument in arguments} <= known
