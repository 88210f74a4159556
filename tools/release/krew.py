"""The krew archive of `kubectl slackwater`, and the manifest that krew installs it by.

The archive has a launcher for the machine's own python3 (3.11 to 3.14). Beside it, `lib/any` has our packages
and the libraries that are pure Python, and `lib/cp3NN` the compiled ones for each Python. They are the locked
wheels of PyPI for the target's system, so every archive can be made on any machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.release import archive
from tools.release.project import ROOT, ReleaseProblem

NAME = "slackwater"
PROGRAM = "kubectl-slackwater"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LOCK = ROOT / "requirements" / "kubectl-slackwater.txt"
LAUNCHER = Path(__file__).with_name("launcher") / PROGRAM
_NOT_OURS = frozenset({".so", ".pyx", ".c"})
"""Of our own wheels the archive takes no compiled part: the plugin decodes no records."""


@dataclass(frozen=True)
class Platform:
    """A system that krew tells apart, and the wheels that run on it.

    `os` and `arch` are Go's names; `wheels` are pip's platform tags, the newest first.
    """

    os: str
    arch: str
    wheels: Sequence[str]

    def file_name(self, version: str) -> str:
        """The archive's name."""
        return f"{PROGRAM}_v{version}_{self.os}_{self.arch}.tar.gz"


PLATFORMS = (
    Platform("linux", "amd64", ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")),
    Platform("linux", "arm64", ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")),
    Platform(
        "darwin",
        "amd64",
        ("macosx_13_0_x86_64", "macosx_11_0_x86_64", "macosx_10_13_x86_64", "macosx_10_12_x86_64"),
    ),
    Platform("darwin", "arm64", ("macosx_13_0_arm64", "macosx_11_0_arm64")),
)


def build(
    platform: Platform, version: str, wheels: Sequence[Path], scratch: Path, target: Path, *, modified_s: int
) -> Path:
    """Makes the archive of a platform in the folder `target`; returns its path.

    Args:
        platform: where it will run.
        version: of the release.
        wheels: our own.
        scratch: an empty folder, for what goes into the archive.
        target: the folder of the archives.
        modified_s: the time of the files in it, in seconds since 1970.

    Raises:
        ReleaseProblem: a library has no wheel for the platform.
    """
    content = scratch / "content"
    for python in PYTHONS:
        fetched = scratch / python
        _download(platform, python, fetched)
        for wheel in sorted(fetched.glob("*.whl")):
            _unpack(wheel, content / "lib" / _folder_of(wheel, python))
    for wheel in wheels:
        _unpack(wheel, content / "lib" / "any", leave_out=_NOT_OURS)
    shutil.copy2(LAUNCHER, content / PROGRAM)
    shutil.copy2(ROOT / "LICENSE", content / "LICENSE")
    path = target / platform.file_name(version)
    archive.write_tar_gz(content, path, modified_s=modified_s)
    return path


def _download(platform: Platform, python: str, target: Path) -> None:
    tags = [part for tag in platform.wheels for part in ("--platform", tag)]
    target.mkdir(parents=True)
    # pip decides by the Python that it runs on, not by the one it downloads for: take what any of them needs.
    lock = target / "requirements.txt"
    lock.write_text(without_markers(LOCK.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--require-hashes", "--no-deps", "--only-binary", ":all:", "--implementation", "cp",
            "--python-version", python, *tags, "--dest", str(target), "--requirement", str(lock),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ReleaseProblem(
            f"no libraries for Python {python} on {platform.os}/{platform.arch}: {done.stderr[-1500:]}\n"
            f"If a library in {LOCK.relative_to(ROOT)} has no wheel for it, take that Python out of "
            "PYTHONS in tools/release/krew.py, or lock another version."
        )


def without_markers(lock: str) -> str:
    """The text of a lock file without the conditions under which its packages are needed."""
    return re.sub(r"^(\S+==\S+) ; [^\\\n]*", r"\1 ", lock, flags=re.MULTILINE)


def _folder_of(wheel: Path, python: str) -> str:
    # NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl
    return "any" if wheel.stem.endswith("-none-any") else f"cp{python.replace('.', '')}"


def _unpack(wheel: Path, target: Path, leave_out: frozenset[str] = frozenset()) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = [
            name
            for name in opened.namelist()
            if not name.split("/", 1)[0].endswith(".data") and Path(name).suffix not in leave_out
        ]
        opened.extractall(target, names)


def manifest(version: str, checksums: Mapping[Platform, str], repository: str) -> str:
    """The manifest, as YAML.

    Args:
        version: of the release.
        checksums: platform -> its archive's SHA-256.
        repository: the address of the repository whose release has the archives.
    """
    document: dict[str, Any] = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "homepage": repository,
            "shortDescription": "Explain and operate Kafka consumer groups",
            "description": (
                "Shows ConsumerGroups of the Slackwater operator: members, lag, conditions and decisions\n"
                "with their reasons. Pauses, restarts, retries and rewinds them.\n"
            ),
            "caveats": (
                f"Needs Python {PYTHONS[0]} to {PYTHONS[-1]} as python3; Linux with the GNU C library, or "
                "macOS 13 or later.\n"
                "krew links no completion; `pip install slackwater-operator` has it.\n"
            ),
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
                    "uri": f"{repository}/releases/download/v{version}/{platform.file_name(version)}",
                    "sha256": checksum,
                    "bin": PROGRAM,
                }
                for platform, checksum in checksums.items()
            ],
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=110)
