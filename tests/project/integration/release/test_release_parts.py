"""The parts of a release that need no registry and no build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support.controlplane import build
from tools import chart as chart_files
from tools.release import archive, changelog, chart, check, krew, packages, project
from tools.release.project import ReleaseProblem

ACME = chart.Publication("https://github.com/acme/sw", "https://acme.github.io/sw", "ghcr.io/acme")
SECTION = changelog.Section("1.2.3", "2026-11-25", "### Added\n- **Chart**: a value.")


# --- the version


def test_the_version_is_the_same_everywhere() -> None:
    assert len(project.versions()) == 4
    assert re.fullmatch(r"\d+\.\d+\.\d+", project.single_version(project.versions()))


@pytest.mark.parametrize(
    ("stated", "tag", "says"),
    [
        ({"a": "1.0.0", "b": "1.0.1"}, "", "the version differs:\n  a: 1.0.0\n  b: 1.0.1"),
        ({"a": "1.0.0rc1"}, "", "is not a version of a release; use MAJOR.MINOR.PATCH"),
        ({"a": "1.0"}, "", "1.0 is not a version of a release"),
        ({"a": "1.0.0"}, "v1.0.1", "the tag is v1.0.1, the files state 1.0.0"),
        ({"a": "1.0.0"}, "1.0.0", "the tag is 1.0.0"),
    ],
)
def test_a_wrong_version_is_an_error(stated: dict[str, str], tag: str, says: str) -> None:
    with pytest.raises(ReleaseProblem, match=re.escape(says)):
        project.single_version(stated, tag)


def test_a_tag_of_the_version_is_accepted() -> None:
    assert project.single_version({"a": "1.0.0", "b": "1.0.0"}, "v1.0.0") == "1.0.0"


# --- archives


def files_in(folder: Path) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "b.py").write_text("b\n")
    (folder / "a").write_text("#!/bin/sh\n")
    (folder / "a").chmod(0o700)
    return folder


def test_an_archive_depends_on_its_content_alone(tmp_path: Path) -> None:
    archives = []
    for name in ("one", "two"):
        folder = files_in(tmp_path / name)
        os.utime(folder / "a", (len(name), len(archives)))
        archives.append(tmp_path / f"{name}.tar.gz")
        archive.write_tar_gz(folder, archives[-1], modified_s=1_700_000_000)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as opened:
        entries = [(e.name, e.mode, e.mtime, e.uid, e.uname) for e in opened]
    assert entries == [("a", 0o755, 1_700_000_000, 0, ""), ("lib/b.py", 0o644, 1_700_000_000, 0, "")]


def test_checksums_are_those_of_sha256sum_and_not_of_themselves(tmp_path: Path) -> None:
    files_in(tmp_path)
    for _ in range(2):
        path = archive.write_checksums(tmp_path)
    assert [line.split()[1] for line in path.read_text().splitlines()] == ["a"]
    subprocess.run(["sha256sum", "--check", "--strict", path.name], cwd=tmp_path, check=True)
    (tmp_path / "a").write_text("changed")
    assert subprocess.run(["sha256sum", "--check", path.name], cwd=tmp_path, check=False).returncode == 1


# --- the chart


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    return chart.stage(tmp_path, ACME, SECTION)


def test_the_published_chart_has_the_addresses_of_its_repository(staged: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in staged.rglob("*") if path.is_file()}
    for path, text in texts.items():
        assert project.REPOSITORY not in text, path
        assert project.SITE not in text, path
    metadata = yaml.safe_load(texts[staged / "Chart.yaml"])
    assert metadata["home"] == ACME.site
    assert metadata["sources"] == [ACME.repository]
    assert metadata["icon"] == f"{ACME.repository}/raw/main/charts/slackwater/icon.svg"
    assert (staged / "icon.svg").is_file()
    assert "](../" not in texts[staged / "README.md"]


def test_the_published_chart_has_artifact_hubs_metadata(staged: Path) -> None:
    metadata = yaml.safe_load((staged / "Chart.yaml").read_text(encoding="utf-8"))
    annotations = {
        key: yaml.safe_load(value) if "\n" in value else value
        for key, value in metadata["annotations"].items()
    }
    assert annotations["artifacthub.io/changes"] == [{"kind": "added", "description": "Chart: a value."}]
    assert annotations["artifacthub.io/images"] == [
        {"name": "operator", "image": "ghcr.io/acme/slackwater/operator:1.2.3"},
        {"name": "worker", "image": "ghcr.io/acme/slackwater/worker:1.2.3"},
        {"name": "worker-delta", "image": "ghcr.io/acme/slackwater/worker:1.2.3-delta"},
        {"name": "worker-spark", "image": "ghcr.io/acme/slackwater/worker:1.2.3-spark"},
    ]
    (crd,) = annotations["artifacthub.io/crds"]
    definition = yaml.safe_load((project.ROOT / "crds" / chart_files.CRD_NAME).read_text(encoding="utf-8"))
    assert crd["kind"] == definition["spec"]["names"]["kind"]
    assert crd["name"] == definition["metadata"]["name"]
    assert crd["version"] == definition["spec"]["versions"][0]["name"]
    assert all(
        link["url"].startswith((ACME.repository, ACME.site)) for link in annotations["artifacthub.io/links"]
    )


@pytest.mark.parts("kubectl")
def test_the_published_chart_installs_the_published_images(staged: Path, tmp_path: Path) -> None:
    package = chart.package(staged, tmp_path)
    assert package.name == f"slackwater-{yaml.safe_load((staged / 'Chart.yaml').read_text())['version']}.tgz"
    said = subprocess.run(
        [str(build.helm()), "template", "sw", str(package)], capture_output=True, text=True, check=True
    ).stdout
    assert 'image: "ghcr.io/acme/slackwater/operator:' in said
    assert "--worker-image=ghcr.io/acme/slackwater/worker:" in said
    assert "| `ghcr.io/acme/slackwater/operator` |" in (staged / "README.md").read_text()


# --- the krew archive


def requirements(lines: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", line)[0] for line in lines if not line.startswith(("#", "-"))}


def test_the_krew_libraries_are_dependencies_of_our_packages() -> None:
    """A library that our packages no longer have must leave requirements/kubectl-slackwater.in, too."""
    wanted: set[str] = set()
    for folder in project.DISTRIBUTIONS:
        text = (project.ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")
        wanted |= requirements(tomllib.loads(text)["project"]["dependencies"])
    libraries = requirements(krew.LOCK.with_suffix(".in").read_text(encoding="utf-8").splitlines())
    assert libraries
    assert libraries <= wanted


def test_libraries_are_taken_for_all_pythons_whichever_pip_runs_on() -> None:
    lock = "a==1.0 ; python_full_version < '3.13' \\\n    --hash=sha256:0\nb==2 \\\n    --hash=sha256:1\n"
    assert krew.without_markers(lock) == lock.replace("; python_full_version < '3.13' ", "")


@pytest.mark.long
@pytest.mark.parts("release")
def test_krew_accepts_the_manifest(tmp_path: Path) -> None:
    checksums = dict.fromkeys(krew.PLATFORMS, "0" * 64)
    text = krew.manifest("1.2.3", checksums, ACME.repository)
    path = tmp_path / "slackwater.yaml"
    path.write_text(text, encoding="utf-8")
    _, validate = build.krew()
    subprocess.run([str(validate), "-skip-install", "-manifest", str(path)], check=True)
    uris = [platform["uri"] for platform in yaml.safe_load(text)["spec"]["platforms"]]
    assert (
        uris[0]
        == "https://github.com/acme/sw/releases/download/v1.2.3/kubectl-slackwater_v1.2.3_linux_amd64.tar.gz"
    )
    assert len(set(uris)) == 4
    # krew refuses a checksum that is none.
    path.write_text(text.replace("0" * 64, "0"), encoding="utf-8")
    refused = subprocess.run([str(validate), "-skip-install", "-manifest", str(path)], check=False)
    assert refused.returncode != 0


def launcher(folder: Path, *libraries: str) -> Path:
    for name in libraries:
        (folder / "lib" / name).mkdir(parents=True)
    target = folder / krew.PROGRAM
    target.write_bytes(krew.LAUNCHER.read_bytes())
    target.chmod(0o755)
    return target


def test_the_launcher_finds_its_libraries_through_krews_link(tmp_path: Path) -> None:
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    program = launcher(tmp_path / "store", "any", python)
    plugin = tmp_path / "store" / "lib" / "any" / "slackwater_operator" / "cli" / "kubectl"
    plugin.mkdir(parents=True)
    for package in (plugin, *plugin.parents[:2]):
        (package / "__init__.py").touch()
    (plugin / "plugin.py").write_text(
        "import sys, part\ndef main(): print(part.NAME, sys.argv[1:]); return 3\n"
    )
    (tmp_path / "store" / "lib" / python / "part.py").write_text("NAME = 'compiled'\n")
    link = tmp_path / "link"
    link.symlink_to(program)
    done = subprocess.run(
        [sys.executable, str(link), "status", "-n", "x"], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stdout == "compiled ['status', '-n', 'x']\n"


def test_the_launcher_says_which_pythons_it_has_libraries_for(tmp_path: Path) -> None:
    program = launcher(tmp_path, "any", "cp39", "cp310")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has libraries for Python 3.10, 3.9, and" in done.stderr
    assert "pip install slackwater-operator" in done.stderr


# --- workflows

WORKFLOWS = sorted(check.WORKFLOWS.glob("*.yml"))


@pytest.mark.long
@pytest.mark.parts("release")
def test_actionlint_accepts_the_workflows() -> None:
    assert {path.name for path in WORKFLOWS} == {
        "ci.yml",
        "docs.yml",
        "locks.yml",
        "nightly.yml",
        "release.yml",
    }
    done = subprocess.run(
        [str(build.actionlint()), "-no-color", *map(str, WORKFLOWS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_jobs_have_only_the_rights_they_need(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    assert [
        use for use in uses if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)
    ] == []
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert "timeout-minutes" in job, name
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert not writes or path.name != "ci.yml", name
        assert "write-all" not in str(job["permissions"])
        # Nobody but the release may write what only the release writes.
        assert writes <= {"packages", "id-token", "attestations", "contents", "pages", "pull-requests"}
    # An action at two versions is an action of which one was forgotten.
    versions: dict[str, set[str]] = {}
    for use in uses:
        versions.setdefault(use.split("@")[0], set()).add(use)
    assert [action for action, pins in versions.items() if len(pins) > 1] == []


def test_dependabot_knows_each_go_module_and_npm_package() -> None:
    updates = yaml.safe_load((check.WORKFLOWS.parent / "dependabot.yml").read_text(encoding="utf-8"))[
        "updates"
    ]
    listed = {update["package-ecosystem"]: update.get("directories") for update in updates}
    for ecosystem, name in (("gomod", "go.mod"), ("npm", "package-lock.json")):
        folders = sorted(
            f"/{path.parent.relative_to(project.ROOT)}" for path in project.ROOT.glob(f"tools/*/{name}")
        )
        assert listed[ecosystem] == folders


def test_ci_runs_what_a_submission_must_pass() -> None:
    steps = yaml.safe_load((check.WORKFLOWS / "ci.yml").read_text(encoding="utf-8"))["jobs"]["test"]["steps"]
    assert any("bash .ci/run" in step.get("run", "") for step in steps)


def test_the_release_publishes_nothing_before_everything_is_checked() -> None:
    jobs = yaml.safe_load((check.WORKFLOWS / "release.yml").read_text(encoding="utf-8"))["jobs"]

    def before(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*(before(job) for job in direct))

    assert "make release-check" in str(jobs["check"]["steps"])
    assert all("check" in before(name) for name in jobs if name != "check")
    assert before("chart") >= {"images"}, "it names them"
    assert before("github") >= {"wheels", "images", "chart", "pypi"}


def test_the_release_builds_the_images_that_have_an_sbom() -> None:
    makefile = (project.ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^IMAGES := (.*)$", makefile, re.MULTILINE)
    assert set(chart.IMAGES) == set(listed.split())
    for name in ("ci.yml", "release.yml"):
        jobs = yaml.safe_load((check.WORKFLOWS / name).read_text(encoding="utf-8"))["jobs"]
        built = {entry["name"]: entry for entry in jobs["images"]["strategy"]["matrix"]["include"]}
        assert set(built) == set(chart.IMAGES), name
        for image, entry in built.items():
            text = (project.ROOT / "images" / f"{entry['file']}.Containerfile").read_text(encoding="utf-8")
            target = entry["target"]
            assert not target or re.search(rf"^FROM .* AS {target}$", text, re.MULTILINE), image
            assert entry.get("suffix", chart.IMAGES[image]) == chart.IMAGES[image]


# --- the command


def test_a_failed_step_ends_the_check_and_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(_: check.Release) -> str:
        raise ReleaseProblem("no wheel; build one")

    lines: list[str] = []
    monkeypatch.setattr(check, "STEPS", (("first", lambda _: "fine"), ("second", fails), ("third", fails)))
    with pytest.raises(ReleaseProblem, match="second: no wheel; build one"):
        check.check(tmp_path / "out", ACME, "", lines.append)
    assert [line.split()[:2] for line in lines] == [["first", "ok"], ["second", "FAILED"]]


def test_addresses_of_a_wheel_are_read_from_its_metadata(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("a-1.dist-info/METADATA", "Name: a\nProject-URL: Source, https://x/y\n\nText")
    assert packages.addresses(wheel) == ["https://x/y"]


# --- the addresses


def test_every_file_has_the_addresses_of_one_place() -> None:
    """The repository of no other owner, so that a fork sees each file that it has to change."""
    files = [
        *(project.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml")),
        *(
            project.ROOT / folder / name
            for folder in project.DISTRIBUTIONS
            for name in ("pyproject.toml", "README.md")
        ),
        *(path for path in project.CHART.rglob("*.y*ml") if path.is_file()),
        *(project.ROOT / "docs").rglob("*.md"),
    ]
    for path in files:
        text = path.read_text(encoding="utf-8")
        for address in re.findall(
            r"https://(?:github\.com/[\w.-]+/slackwater|(?:[\w-]+\.)?slackwater\.[a-z]+)\b", text
        ):
            assert address in (project.REPOSITORY, project.SITE), (
                f"{path}: {address}, not as in tools/addresses.py"
            )
