"""The Containerfiles: what they copy is there, locked by hashes; the last stage has only what it needs.

No container engine is here: tests/e2e/chart/test_chart_images_install.py runs the steps that can run
without one.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from slackwater.pipeline.engines.spark_session import NSS_WRAPPER_VARIABLE
from tests.support.operator import chart, containerfile
from tests.support.operator.containerfile import Stage

IMAGES = chart.ROOT / "images"
FILES = sorted(IMAGES.glob("*.Containerfile"))
REQUIREMENTS = chart.ROOT / "requirements"
IGNORE = (chart.ROOT / ".dockerignore").read_text(encoding="utf-8")


def stages(name: str) -> list[Stage]:
    return containerfile.read(IMAGES / f"{name}.Containerfile")


def finals() -> list[tuple[str, Stage]]:
    """The stages that become images: those with an entry point."""
    result = [
        (path.name, stage) for path in FILES for stage in containerfile.read(path) if stage.all("ENTRYPOINT")
    ]
    assert len(result) == 4
    return result


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_copied_files_exist_and_are_not_ignored(path: Path) -> None:
    built: list[Stage] = []
    for stage in containerfile.read(path):
        for step in stage.all("COPY"):
            *sources, _ = step.words()
            if step.flag("from"):
                assert step.flag("from") in {earlier.name for earlier in built}
                continue
            for source in sources:
                assert (chart.ROOT / source).exists(), source
                assert not containerfile.ignored(IGNORE, PurePosixPath(source)), source
        assert stage.base == "${PYTHON}" or stage.base in {earlier.name for earlier in built}
        built.append(stage)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_base_is_taken_by_a_tag_that_can_move(path: Path) -> None:
    """A base is an earlier stage, has a digest, or is PYTHON, which has no default but one with a digest."""
    digest = re.compile(r"@sha256:[0-9a-f]{64}$")
    defaults = re.findall(r"^ARG\s+PYTHON\b=?(\S*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert defaults
    assert [default for default in defaults if default and not digest.search(default)] == []
    built: set[str] = set()
    for stage in containerfile.read(path):
        assert stage.base == "${PYTHON}" or stage.base in built or digest.search(stage.base), stage.base
        built.add(stage.name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_everything_installed_is_locked_with_hashes(path: Path) -> None:
    copied: set[str] = set()
    for stage in containerfile.read(path):
        copied |= {word for step in stage.all("COPY") if not step.flag("from") for word in step.words()[:-1]}
        for step in stage.all("RUN"):
            if not re.search(r"\bpip\b.* (install|wheel) ", step.rest):
                continue
            locks = re.findall(r"-r (\S+)", step.rest)
            if locks:
                assert "--require-hashes" in step.rest
            else:
                assert "--no-deps" in step.rest, step.rest
            for lock in locks:
                assert lock in copied, f"{lock} is not copied before it is used"
                assert_hashed(chart.ROOT / lock)


def assert_hashed(lock: Path) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", lock.read_text(encoding="utf-8"), flags=re.IGNORECASE)
    pinned = [entry for entry in entries if re.match(r"[A-Za-z0-9_.-]+==", entry)]
    assert pinned
    for entry in pinned:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def pins(lock: str) -> dict[str, set[str]]:
    result: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([A-Za-z0-9_.-]+)==([^\s;]+)", (REQUIREMENTS / lock).read_text(), re.M
    ):
        result.setdefault(name.lower(), set()).add(version)
    return result


@pytest.mark.parametrize(
    ("lock", "project", "extra"),
    [
        *(
            (lock, "worker", extra)
            for lock in ("worker.txt", "worker-delta.txt", "worker-spark.txt")
            for extra in ("worker", "avro", "iceberg", "object-stores", "otel", "postgres", "protobuf")
        ),
        ("worker-delta.txt", "worker", "delta"),
        ("worker-spark.txt", "worker", "delta"),
        ("worker-spark.txt", "worker", "spark"),
        ("operator.txt", "operator", ""),
        ("operator.txt", "worker", "otel"),
    ],
)
def test_locks_contain_the_dependencies_of_the_packages(lock: str, project: str, extra: str) -> None:
    declared = tomllib.loads((chart.ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*declared["dependencies"], *declared.get("optional-dependencies", {}).get(extra, [])]
    names = {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in wanted} - {"slackwater"}
    assert names <= set(pins(lock))


@pytest.mark.parametrize(
    ("lock", "unwanted"),
    [
        ("operator.txt", "deltalake kubernetes numpy pandas pip pyarrow pydantic pyspark setuptools"),
        ("worker.txt", "deltalake kopf kubernetes numpy pandas pip pyspark setuptools"),
        ("worker-delta.txt", "kopf kubernetes numpy pandas pip pyspark setuptools"),
    ],
)
def test_images_lack_large_packages_that_they_do_not_use(lock: str, unwanted: str) -> None:
    """tests/e2e/chart/test_chart_images_install.py measures what is left."""
    assert set(unwanted.split()) & set(pins(lock)) == set()


@pytest.mark.parametrize("lock", ["worker.txt", "worker-delta.txt", "worker-spark.txt", "operator.txt"])
def test_images_get_the_versions_that_are_tested(lock: str) -> None:
    tested = pins("dev.txt")
    assert all(versions <= tested[name] for name, versions in pins(lock).items())


def test_only_the_spark_image_has_java_and_none_has_a_compiler() -> None:
    for name, stage in finals():
        installed = " ".join(step.rest for step in stage.all("RUN"))
        assert ("jre" in installed) == (stage.name == "spark"), name
        assert not re.search(r"\b(gcc|g\+\+|clang|build-essential|jdk|maven|libc6-dev)\b", installed), name
        assert stage.base == "${PYTHON}", f"{name}: the last stage begins anew"
        kinds = {step.instruction for step in stage.steps}
        assert kinds <= {"RUN", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT"}
        assert all(step.flag("from") for step in stage.all("COPY")), (
            f"{name}: sources don't go into the image"
        )


def test_own_code_is_a_layer_above_the_packages_which_its_changes_leave_alone() -> None:
    for path in FILES:
        built = {stage.name: stage for stage in containerfile.read(path) if stage.name}
        for stage in containerfile.read(path):
            if not stage.all("ENTRYPOINT"):
                continue
            packages, own = (step.flag("from") for step in stage.all("COPY"))
            assert own == "own", path.name
            read = [word for step in built[packages].all("COPY") for word in step.words()[:-1]]
            read += [word for step in built[built[packages].base].all("COPY") for word in step.words()[:-1]]
            assert not [word for word in read if word in ("worker", "operator")], path.name


def test_the_packages_are_without_pip() -> None:
    for path in FILES:
        made = [
            step.rest
            for stage in containerfile.read(path)
            for step in stage.all("RUN")
            if "-m venv" in step.rest
        ]
        assert made
        assert all("--without-pip" in command for command in made)
    (operator,) = [stage for name, stage in finals() if name == "operator.Containerfile"]
    assert any("rm -rf" in step.rest and "site-packages/pip" in step.rest for step in operator.all("RUN"))


def test_images_run_an_existing_program_as_an_unprivileged_user() -> None:
    programs = set()
    for project in ("worker", "operator"):
        text = (chart.ROOT / project / "pyproject.toml").read_text(encoding="utf-8")
        programs |= set(tomllib.loads(text)["project"]["scripts"])
    for name, stage in finals():
        (user,) = stage.all("USER")
        number, _, group = user.rest.partition(":")
        assert int(number) > 0, name
        assert int(group) > 0, name
        (entry,) = stage.all("ENTRYPOINT")
        assert entry.rest.startswith("["), f"{name}: without a shell, so that signals arrive"
        assert entry.words()[0] in programs


def test_images_run_under_a_user_that_no_file_names() -> None:
    """As OpenShift's: its home is the only folder that can be written to, and nothing else tells its name."""
    for name, stage in finals():
        variables = dict(word.split("=", 1) for step in stage.all("ENV") for word in step.words())
        assert (variables["HOME"], variables["USER"]) == ("/tmp", "slackwater"), name
        installed = " ".join(step.rest for step in stage.all("RUN"))
        assert (
            ("libnss-wrapper" in installed) == (NSS_WRAPPER_VARIABLE in variables) == (stage.name == "spark")
        )
