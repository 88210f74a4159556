"""The two Python distributions: built from the tracked files, checked, and installed alone."""

from __future__ import annotations

import email
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.release.commands import run
from tools.release.project import DISTRIBUTIONS, ROOT, ReleaseProblem

TOOLS = ROOT / ".cache" / "release-tools" / "bin"
"""The programs of requirements/release.txt, which `make release-check` installs."""
STARTS = {
    "slackwater": (("python", "-c", "import slackwater.kafka"), ("slackwater", "--help")),
    "slackwater_operator": (
        ("kubectl-slackwater", "--help"),
        ("slackwater-operator", "--help"),
        ("slackwater", "explain", "--help"),
    ),
}
"""Distribution -> commands that work as soon as it is installed, in the order of installation."""


def build(scratch: Path, target: Path) -> list[Path]:
    """Writes an sdist of each distribution and the wheel that this machine makes of it into `target`.

    Args:
        scratch: an empty folder.
        target: a folder; what it has already is not looked at.

    Returns:
        The wheels.
    """
    tracked = run(["git", "ls-files", "--cached", *DISTRIBUTIONS, "LICENSE", "README.md"]).splitlines()
    for name in tracked:
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, scratch / name)
    for folder in DISTRIBUTIONS:
        run(
            [TOOLS / "python", "-m", "build", "--no-isolation", "--outdir", target, scratch / folder],
            cwd=scratch,
        )
    return [_wheel_of(target, distribution) for distribution in STARTS]


def _wheel_of(folder: Path, distribution: str) -> Path:
    wheels = sorted(folder.glob(f"{distribution}-*.whl"))
    if len(wheels) != 1:
        raise ReleaseProblem(f"{folder} has {len(wheels)} wheels of {distribution}; the build makes one")
    return wheels[0]


def check(folder: Path, version: str) -> None:
    """`twine check --strict` of everything that is built, and the version inside.

    Raises :class:`ReleaseProblem`.
    """
    built = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    run([TOOLS / "twine", "check", "--strict", *built])
    for path in built:
        if f"-{version}" not in path.name:
            raise ReleaseProblem(f"{path.name} is not of version {version}; set it in its pyproject.toml")


def addresses(wheel: Path) -> list[str]:
    """The addresses that the wheel's metadata names (`Project-URL`)."""
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(opened.read(name))
    return [line.split(", ", 1)[1] for line in metadata.get_all("Project-URL", [])]


def install_and_start(wheels: Sequence[Path], scratch: Path) -> list[str]:
    """Installs one wheel after the other, with what it needs from PyPI, and starts its commands.

    Args:
        wheels: in the order of :data:`STARTS`.
        scratch: an empty folder, for the environment.

    Returns:
        The commands that were started.
    """
    programs = scratch / "environment" / "bin"
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    run([sys.executable, "-m", "venv", programs.parent])
    # Nothing of this checkout may be found: neither by PYTHONPATH nor by the folder it starts in.
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    started: list[str] = []
    for wheel, commands in zip(wheels, STARTS.values(), strict=True):
        run(
            [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel],
            env=clean,
        )
        for command in commands:
            run([programs / command[0], *command[1:]], cwd=elsewhere, env=clean)
            started.append(" ".join(command))
    return started
