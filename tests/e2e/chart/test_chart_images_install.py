"""The Containerfiles' steps that need no container engine.

Our code is built from what the build context holds, installed as in the image, and run from outside the
source tree; the packages are this environment's, which has the locked versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from tests.support.operator import chart, containerfile
from tests.support.operator.containerfile import Stage
from tests.support.waiting import HANG_S

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # pip builds both packages, one of them twice

IMAGES = chart.ROOT / "images"
HERE = re.compile(r"(?<![\w.])/(?=(opt/slackwater|own|wheels)\b)")
"""The folders of an image that steps name; they are made below a folder of the test's."""
LIMITS_MB = {"operator": 200, "worker": 300}
"""What an image may have over its base."""


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context: what .dockerignore lets through, and nothing else."""
    rules = (chart.ROOT / ".dockerignore").read_text(encoding="utf-8")
    target = tmp_path_factory.mktemp("context")
    for top in ("LICENSE", "images", "worker", "operator", "requirements"):
        path = chart.ROOT / top
        for source in path.rglob("*") if path.is_dir() else [path]:
            inside = source.relative_to(chart.ROOT)
            if source.is_file() and not containerfile.ignored(rules, PurePosixPath(inside)):
                (target / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / inside, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def opt(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What becomes /opt/slackwater, with the code of both images. The locked packages are lent by this
    environment (a path, so its own `slackwater` and `slackwater-operator`, which are links to the sources,
    are not found through it)."""
    root = tmp_path_factory.mktemp("both")
    for name in ("worker", "operator"):
        add_own_code(name, context, root)
    (site_packages(root) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root / "opt" / "slackwater"


def stage(name: str, stage_name: str) -> Stage:
    stages = containerfile.read(IMAGES / f"{name}.Containerfile")
    return next(stage for stage in stages if stage.name == stage_name)


def add_own_code(name: str, context: Path, root: Path) -> None:
    """Runs the steps of the stage `own` below `root`, and copies what they make to where the image has it."""
    make_environment(name, context, root)
    for step in stage(name, "own").all("RUN"):
        if "build.txt" not in step.rest:  # this environment has what builds
            run_step(step.rest, context, root)
    made = root / "own" / root.relative_to("/")
    shutil.copytree(made, root, dirs_exist_ok=True)
    shutil.rmtree(root / "own")
    shutil.rmtree(root / "wheels")


def make_environment(name: str, context: Path, root: Path) -> None:
    if not (root / "opt").exists():
        (step,) = [step for step in stage(name, "build").all("RUN") if "-m venv" in step.rest]
        run_step(step.rest, context, root)


def run_step(command: str, context: Path, root: Path) -> None:
    programs = str(Path(sys.executable).parent)
    run(["sh", "-ec", HERE.sub(f"{root}/", command)], cwd=context, path=programs)


def site_packages(root: Path) -> Path:
    folder = str(root / "opt" / "slackwater")
    return Path(sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder}))


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
        timeout=HANG_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_the_image_imports_its_installed_packages(opt: Path, tmp_path: Path) -> None:
    where = "import slackwater, slackwater_operator as o; print(slackwater.__file__, o.__file__)"
    said = run([str(opt / "bin" / "python"), "-c", where], cwd=tmp_path)
    assert all(Path(file).is_relative_to(opt) for file in said.split()), said


def test_the_images_have_the_compiled_parser_and_bytecode(opt: Path, tmp_path: Path) -> None:
    code = (
        "import slackwater.cli as c; from slackwater.kafka import records; "
        "print(records.COMPILED, open(c.__cached__, 'rb').read(8)[4:].hex())"
    )
    # The second word of a .pyc: 1 is a hash in place of the source's time, without a comparison (PEP 552).
    assert run([str(opt / "bin" / "python"), "-c", code], cwd=tmp_path).split() == ["True", "01000000"]
    assert not (opt / "bin" / "pip").exists()


def test_the_user_of_the_spark_image_has_a_name_and_a_home() -> None:
    """Java's user.home is `?` else, and Ivy and Hadoop fail: Spark does not start."""
    [stage] = [s for s in containerfile.read(IMAGES / "worker.Containerfile") if s.name == "spark"]
    [user] = stage.all("USER")
    uid = user.rest.partition(":")[0]
    assert any(f":x:{uid}:" in step.rest and "/etc/passwd" in step.rest for step in stage.all("RUN"))


@pytest.mark.parametrize("name", ["worker", "operator"])
def test_the_entry_point_runs_outside_the_source_tree(name: str, opt: Path, tmp_path: Path) -> None:
    for each in containerfile.read(IMAGES / f"{name}.Containerfile"):
        for entry in each.all("ENTRYPOINT"):
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


def test_libraries_of_a_slim_environment_load(tmp_path: Path) -> None:
    """strip breaks what patchelf has changed: Spark's worker could not import numpy."""
    folder = site_packages(tmp_path) / "numpy.libs"
    shutil.copytree(Path(sysconfig.get_path("purelib")) / "numpy.libs", folder)
    (tmp_path / "opt" / "slackwater" / "bin").mkdir()
    (tmp_path / "opt" / "slackwater" / "bin" / "python").symlink_to(sys.executable)
    run(["sh", str(IMAGES / "slim.sh"), str(tmp_path / "opt" / "slackwater")], cwd=tmp_path)
    (library,) = folder.glob("*openblas*")
    run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(library)!r})"], cwd=tmp_path)


USED = {
    "operator": (
        "slackwater.tracing.sdk slackwater_operator.cli.kubectl.plugin slackwater_operator.cli.local "
        "slackwater_operator.cli.operator slackwater_operator.controller.controller"
    ),
    "worker": (
        "fastavro google.protobuf obstore.store psycopg pyarrow.compute pyarrow.csv pyarrow.dataset "
        "pyarrow.fs pyarrow.parquet pyiceberg.catalog.sql pyiceberg.io.pyarrow pyiceberg.table re2 yaml "
        "slackwater.kafka.records.compression slackwater.runtime.telemetry.metrics slackwater.runtime.worker "
        "slackwater.tracing.sdk"
    ),
}
"""What the image's programs import, at the latest when a group needs it."""


@pytest.mark.long
@pytest.mark.parametrize("name", ["operator", "worker"])
def test_an_image_is_small_and_runs_without_anything_else(name: str, context: Path, tmp_path: Path) -> None:
    make_environment(name, context, tmp_path)
    (lock,) = [step.words()[0] for step in stage(name, "packages").all("COPY") if "requirements" in step.rest]
    for line in (context / lock).read_text(encoding="utf-8").splitlines():
        if re.match(r"[a-z0-9]", line, re.IGNORECASE):
            copy_package(Requirement(line.removesuffix("\\").strip()), site_packages(tmp_path))
    for step in stage(name, "packages").all("RUN"):
        if "slim.sh" in step.rest:
            run_step(step.rest, context, tmp_path)
    add_own_code(name, context, tmp_path)
    opt = tmp_path / "opt" / "slackwater"
    run([str(opt / "bin" / "python"), "-c", f"import {', '.join(USED[name].split())}"], cwd=context)
    size = sum(path.lstat().st_blocks * 512 for path in opt.rglob("*"))
    print(f"{name}: {size / 1e6:.0f} MB")
    assert size < LIMITS_MB[name] * 1e6


def copy_package(requirement: Requirement, target: Path) -> None:
    """Copies the modules of a locked package from this environment, if its marker holds here."""
    if requirement.marker is not None and not requirement.marker.evaluate():
        return
    package = distribution(requirement.name)
    assert requirement.specifier.contains(package.version), f"{requirement.name}: {package.version} is here"
    for file in package.files or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(file.locate()), target / file)
