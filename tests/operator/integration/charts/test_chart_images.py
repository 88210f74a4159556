"""What the Containerfiles' `.dockerignore` lets through, of the files in git."""

from __future__ import annotations

import subprocess
from pathlib import PurePosixPath

import pytest

from tests.support.operator import chart, containerfile

IGNORE = (chart.ROOT / ".dockerignore").read_text(encoding="utf-8")


@pytest.mark.parts("git")
def test_images_contain_every_source_file_and_no_built_file() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "worker", "operator"],
        cwd=chart.ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert len(listed) > 100
    assert [name for name in listed if containerfile.ignored(IGNORE, PurePosixPath(name))] == []
    for name in (
        "worker/slackwater/kafka/records/_parser.cpython-311-x86_64-linux-gnu.so",
        "worker/slackwater/kafka/__pycache__/errors.cpython-311.pyc",
        "worker/slackwater.egg-info/PKG-INFO",
        "worker/build/lib/x.py",
        "operator/build/lib/x.py",
        "README.md",
        "images/operator.Containerfile",
        ".git/config",
        ".venv/bin/python",
        "docs/how-to/install/install.md",
    ):
        assert containerfile.ignored(IGNORE, PurePosixPath(name)), name
