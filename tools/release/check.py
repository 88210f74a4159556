"""Everything that a release does, as far as this machine can do it without a public registry."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.controlplane import build
from tools.release import archive, changelog, chart, krew, packages, project, registry
from tools.release.chart import Publication
from tools.release.commands import run
from tools.release.project import ROOT, ReleaseProblem

WORKFLOWS = ROOT / ".github" / "workflows"
NOT_HERE = (
    "images: no container engine. The workflow builds them; tests/operator/unit/charts/test_chart_images.py "
    "and tests/e2e/chart/test_chart_images_install.py check the Containerfiles and run their steps.",
    "wheels for other systems: cibuildwheel wants containers and macOS.",
    "signatures and attestations: they need the identity of the workflow's run.",
    "the workflows' runs: actionlint and zizmor read them; no GitHub runs them here.",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass
class Release:
    """What the steps make, and pass on.

    `out`: the folder of what a release publishes. `scratch`: a folder that goes away. `tag`: empty
    in a rehearsal.
    """

    out: Path
    scratch: Path
    publication: Publication
    tag: str = ""
    version: str = ""
    section: changelog.Section = field(default=changelog.Section("", "", ""))
    wheels: Sequence[Path] = ()
    chart: Path = Path()
    manifest: Path = Path()

    def empty(self, name: str) -> Path:
        """A new folder below `scratch`."""
        folder = self.scratch / name
        folder.mkdir()
        return folder


def _version(release: Release) -> str:
    stated = project.versions()
    release.version = project.single_version(stated, release.tag)
    return f"{release.version} in {len(stated)} places"


def _notes(release: Release) -> str:
    text = project.CHANGELOG.read_text(encoding="utf-8")
    release.section = changelog.section(text, release.version, released=bool(release.tag))
    (release.out / "NOTES.md").write_text(release.section.text + "\n", encoding="utf-8")
    return f"{len(release.section.changes)} changes in NOTES.md"


def _workflows(release: Release) -> str:
    files = sorted(WORKFLOWS.glob("*.yml"))
    run([build.actionlint(), "-no-color", *files])
    bots = WORKFLOWS.parent / "dependabot.yml"
    run([packages.TOOLS / "zizmor", "--offline", "--no-progress", "--color=never", *files, bots])
    return f"{len(files)} files: actionlint, zizmor"


def _packages(release: Release) -> str:
    release.wheels = packages.build(release.empty("sources"), release.out)
    return ", ".join(path.name for path in release.wheels)


def _twine(release: Release) -> str:
    packages.check(release.out, release.version)
    addresses = [address for wheel in release.wheels for address in packages.addresses(wheel)]
    own = (release.publication.repository, release.publication.site)
    foreign = sorted({address for address in addresses if not address.startswith(own)})
    if release.tag and foreign:
        raise ReleaseProblem(
            f"pyproject.toml names {', '.join(foreign)}, and the release is of {own[0]}. Set [project.urls]."
        )
    return f"no warnings; {len(addresses)} addresses"


def _installed(release: Release) -> str:
    return ", ".join(packages.install_and_start(release.wheels, release.empty("installed")))


def _chart(release: Release) -> str:
    staged = chart.stage(release.empty("chart"), release.publication, release.section)
    release.chart = chart.package(staged, release.out)
    return release.chart.name


def _chart_registry(release: Release) -> str:
    with registry.serving(release.empty("registry")) as address:
        digest = chart.push_and_pull(release.chart, address, release.empty("pulled"))
    return f"pushed, pulled, rendered: {digest[:19]}"


def _krew_archives(release: Release) -> str:
    modified_s = int(run(["git", "log", "-1", "--format=%ct"]))
    checksums = {}
    for system in krew.PLATFORMS:
        scratch = release.empty(f"krew-{system.os}-{system.arch}")
        path = krew.build(
            system, release.version, release.wheels, scratch, release.out, modified_s=modified_s
        )
        checksums[system] = archive.sha256(path)
    release.manifest = release.out / f"{krew.NAME}.yaml"
    text = krew.manifest(release.version, checksums, release.publication.repository)
    release.manifest.write_text(text, encoding="utf-8")
    _, validate = build.krew()
    run([validate, "-skip-install", "-manifest", release.manifest])
    return f"{len(checksums)} systems, Python {krew.PYTHONS[0]} to {krew.PYTHONS[-1]}; the manifest is valid"


def _krew_install(release: Release) -> str:
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    system = next(s for s in krew.PLATFORMS if (s.os, s.arch) == (platform.system().lower(), architecture))
    program, _ = build.krew()
    home = release.empty("krew-home")
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"KREW_ROOT": str(home), "HOME": str(home), "PATH": f"{home}/bin:{env['PATH']}"}
    path = release.out / system.file_name(release.version)
    run([program, "install", "--manifest", release.manifest, "--archive", path], cwd=home, env=env)
    said = run([build.kubectl(), "slackwater", "--help"], cwd=home, env=env)
    if "usage: kubectl slackwater" not in said:
        raise ReleaseProblem(f"`kubectl slackwater --help` printed:\n{said}")
    return f"{path.name}: `kubectl slackwater --help`"


def _sbom(release: Release) -> str:
    run(["make", "sbom", "SBOM_CHECK=--validate"])
    documents = sorted((ROOT / ".cache" / "sbom").glob("*.cdx.json"))
    for document in documents:
        shutil.copy2(document, release.out / f"slackwater-{document.name}")
    return ", ".join(document.name for document in documents)


def _checksums(release: Release) -> str:
    path = archive.write_checksums(release.out)
    run(["sha256sum", "--check", "--strict", "--quiet", path.name], cwd=release.out)
    return f"{len(path.read_text(encoding='utf-8').splitlines())} files in {path.name}"


STEPS: Sequence[tuple[str, Callable[[Release], str]]] = (
    ("version", _version),
    ("release notes", _notes),
    ("workflows", _workflows),
    ("sdists and wheels", _packages),
    ("twine check --strict", _twine),
    ("wheels in an empty venv", _installed),
    ("chart linted, packaged", _chart),
    ("chart in an OCI registry", _chart_registry),
    ("krew archives, manifest", _krew_archives),
    ("krew install", _krew_install),
    ("SBOM of each image", _sbom),
    ("checksums", _checksums),
)


def check(out: Path, publication: Publication, tag: str, report: Callable[[str], None]) -> None:
    """Runs every step and reports a line for each.

    Args:
        out: becomes the folder of what was made; what it had is removed.
        publication: where the release goes.
        tag: the tag of the release; empty in a rehearsal.
        report: gets the lines.

    Raises:
        ReleaseProblem: a step failed, or a tool for it cannot be had here.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="slackwater-release-") as scratch:
        release = Release(out, Path(scratch), publication, tag)
        for name, step in STEPS:
            started = time.monotonic()
            try:
                result = step(release)
            except (ReleaseProblem, build.ToolsUnavailable) as problem:
                report(f"{name:<25} FAILED  {time.monotonic() - started:6.1f} s")
                raise ReleaseProblem(f"{name}: {problem}") from problem
            report(f"{name:<25} ok      {time.monotonic() - started:6.1f} s  {result}")
    report(f"\n{out} has what a release publishes. Not checked on this machine:")
    for line in NOT_HERE:
        report(f"  - {line}")
