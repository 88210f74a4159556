"""The distributions: what sdist and wheel hold, and that they work where nothing else is installed."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

from slackwater.version import VERSION
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[4]
WORKER = ROOT / "worker"
NOT_SOURCES = shutil.ignore_patterns("*.so", "*.c", "build", "*.egg-info", "__pycache__")
CLIENT = {"cramjam", "crc32c", "google-re2", "lz4", "zstandard"}
"""What `pip install slackwater` brings: with its own code less than 50 MB, most of it zstandard's."""


@dataclass(frozen=True)
class Built:
    """One distribution's archives."""

    sdist: Path
    wheel: Path

    def sdist_names(self) -> set[str]:
        """The files, without the archive's own folder."""
        with tarfile.open(self.sdist) as archive:
            return {name.partition("/")[2] for name in archive.getnames()}

    def wheel_names(self) -> list[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def metadata(self) -> Message:
        (name,) = [name for name in self.wheel_names() if name.endswith(".dist-info/METADATA")]
        with zipfile.ZipFile(self.wheel) as archive:
            return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Both distributions by their folders: an sdist of the sources, and a wheel of the sdist."""
    scratch = tmp_path_factory.mktemp("built")
    made = {}
    for folder in ("worker", "operator"):
        shutil.copytree(ROOT / folder, scratch / folder, ignore=NOT_SOURCES)
        sdist = call_backend("build_sdist", scratch / folder, scratch / "dist")
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch / "unpacked", filter="data")
        (top,) = (scratch / "unpacked").glob(f"{sdist.name.removesuffix('.tar.gz')}")
        made[folder] = Built(sdist, call_backend("build_wheel", top, scratch / "dist"))
    return made


def call_backend(hook: str, source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; build_meta.{hook}({str(target)!r})"
    before = set(target.iterdir())
    run([sys.executable, "-c", code], cwd=source)
    (made,) = set(target.iterdir()) - before
    return made


def run(command: list[str | Path], *, cwd: Path, code: int = 0, **environment: str) -> str:
    """Runs it without anything of this environment but what its path names. Returns all that it printed."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == code, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def test_the_package_builds_without_a_c_compiler(tmp_path: Path) -> None:
    folder = tmp_path / "worker"
    shutil.copytree(WORKER, folder, ignore=NOT_SOURCES)
    run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=folder, CC="no-such-compiler")
    assert list((folder / "slackwater").rglob("*.so")) == []
    asked = "from slackwater.kafka import records; print(records.COMPILED, records.__file__)"
    said = run([sys.executable, "-c", asked], cwd=folder, PYTHONPATH=str(folder))
    assert said.split() == ["False", str(folder / "slackwater/kafka/records/__init__.py")]


@pytest.mark.parts("parser")
def test_a_wheel_holds_code_types_and_licence_and_nothing_else(built: dict[str, Built]) -> None:
    for folder, package in (("worker", "slackwater"), ("operator", "slackwater_operator")):
        names = built[folder].wheel_names()
        info = f"{package}-{VERSION}.dist-info"
        assert {PurePosixPath(name).parts[0] for name in names} == {package, info}
        assert {f"{package}/py.typed", f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= set(names)
        code = [PurePosixPath(name) for name in names if not name.startswith(info)]
        assert {path.suffix for path in code if path.name != "py.typed"} <= {".py", ".pyi", ".so"}
        assert not [path for path in code if {"tests", "test", "__pycache__"} & set(path.parts)]
        sources = {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder / package).rglob("*.py")}
        assert {str(path) for path in code if path.suffix == ".py"} == sources
    compiled = [name for name in built["worker"].wheel_names() if name.endswith(".so")]
    assert [name.split(".")[0] for name in compiled] == ["slackwater/kafka/records/_parser"]
    assert "slackwater/kafka/records/_parser.pyi" in built["worker"].wheel_names()
    assert built["operator"].wheel.name.endswith("-py3-none-any.whl")


def test_an_sdist_holds_what_builds_the_wheel(built: dict[str, Built]) -> None:
    for distribution in built.values():
        names = distribution.sdist_names()
        assert {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= names
        assert not [name for name in names if name.endswith((".c", ".so", ".pyc"))]
    assert {"setup.py", "slackwater/kafka/records/_parser.pyx"} <= built["worker"].sdist_names()


def test_the_metadata_are_complete(built: dict[str, Built]) -> None:
    for folder, distribution in built.items():
        metadata = distribution.metadata()
        assert metadata["Version"] == VERSION
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert metadata.get_payload() == (ROOT / folder / "README.md").read_text(encoding="utf-8")
        urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
        assert {"Homepage", "Documentation", "Source", "Changelog"} == set(urls)
        assert "Typing :: Typed" in metadata.get_all("Classifier", [])
        # The index shows no other pages' files, so links out of a README are whole addresses.
        assert re.findall(r"\]\((?!https://)[^)]*\)", str(metadata.get_payload())) == []


def required(metadata: Message) -> set[str]:
    """What is installed without any extra."""
    return {line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}


def test_only_the_client_is_required_and_the_operator_pins_it(built: dict[str, Built]) -> None:
    assert required(built["worker"].metadata()) == CLIENT
    operator = required(built["operator"].metadata())
    assert f"slackwater=={VERSION}" in operator
    assert not {"pyarrow", "kubernetes", "pandas", "pyspark"} & {
        re.split(r"[=<>~]", name)[0] for name in operator
    }


CLIENT_ALONE = """
import asyncio

from pathlib import Path

from slackwater.devbroker import DevBroker
from slackwater.kafka import AsyncConsumer, AsyncProducer, records


async def main():
    assert records.COMPILED
    async with DevBroker(Path("broker")) as broker:
        where = {"bootstrap_servers": broker.bootstrap}
        async with AsyncProducer(**where, compression_type="zstd") as producer:
            await producer.send_and_wait("flights", b"N14228")
        async with AsyncConsumer("flights", **where, group_id="g", auto_offset_reset="earliest") as consumer:
            print((await anext(aiter(consumer))).value)
            try:
                await consumer.poll_arrow()
            except ImportError as error:
                print(error)


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def environment(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with `pip install slackwater`, what it needs coming from the index."""
    folder = tmp_path_factory.mktemp("empty") / "environment"
    run([sys.executable, "-m", "venv", folder], cwd=folder.parent)
    run([folder / "bin/pip", "install", "--quiet", built["worker"].wheel], cwd=folder)
    return folder


def installed(environment: Path) -> set[str]:
    said = run([environment / "bin/pip", "list", "--format=freeze"], cwd=environment)
    return {line.partition("==")[0] for line in said.splitlines() if "==" in line}


def test_the_client_works_in_an_empty_environment(environment: Path, tmp_path: Path) -> None:
    assert installed(environment) - {"pip", "setuptools"} == {*CLIENT, "slackwater"}
    said = run([environment / "bin/python", "-c", CLIENT_ALONE], cwd=tmp_path).splitlines()
    assert said[0] == "b'N14228'"
    assert said[-1] == "poll_arrow() needs pyarrow, which is not installed: pip install 'slackwater[arrow]'"


def test_commands_work_in_an_empty_environment_or_name_an_extra(environment: Path, tmp_path: Path) -> None:
    program = environment / "bin/slackwater"
    assert run([program, "--version"], cwd=tmp_path).strip() == VERSION
    assert "devbroker" in run([program, "--help"], cwd=tmp_path)
    (tmp_path / "worker.yaml").write_text("groupId: g\n", encoding="utf-8")
    for arguments, extra in (
        (["worker", "--config", "worker.yaml"], "worker"),
        (["try", "--config", "worker.yaml", "--from", "flights:start"], "cli"),
    ):
        said = run(
            [program, *arguments], cwd=tmp_path, code=2 if extra == "cli" else 1, SLACKWATER_INSTANCE_ID="w-0"
        )
        assert f"pip install 'slackwater[{extra}]'" in said, said


def test_the_operator_works_in_an_empty_environment(built: dict[str, Built], tmp_path: Path) -> None:
    """What it needs is 80 MB, from the index."""
    folder = tmp_path / "environment"
    run([sys.executable, "-m", "venv", folder], cwd=tmp_path)
    links = built["worker"].wheel.parent
    run(
        [folder / "bin/pip", "install", "--quiet", "--find-links", links, f"slackwater-operator=={VERSION}"],
        cwd=tmp_path,
    )
    assert not {"kubernetes", "pandas", "pyarrow", "pyspark"} & installed(folder)
    for program in ("slackwater-operator", "kubectl-slackwater", "slackwater"):
        assert run([folder / "bin" / program, "--version"], cwd=tmp_path).strip() == VERSION
    said = run([folder / "bin/slackwater", "demo"], cwd=tmp_path, code=1)
    assert "pip install 'slackwater-operator[demo]'" in said
