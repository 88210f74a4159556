"""`python -m tools.version [VERSION]`: writes the version wherever it stands; with VERSION, a new one.

Its source is worker/slackwater/version.py, which the distribution `slackwater`, its commands and its
connections to brokers read themselves.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "worker" / "slackwater" / "version.py"
_VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
_SOURCE = re.compile(rf'^(VERSION = ")({_VERSION})(?=")', re.MULTILINE)
_IMAGE = re.compile(rf"(\bslackwater/(?:operator|worker):)({_VERSION})")
_IN_FILES = {
    "operator/pyproject.toml": re.compile(
        rf'^(version = "|    "slackwater==)({_VERSION})(?=")', re.MULTILINE
    ),
    "charts/slackwater/Chart.yaml": re.compile(rf"^((?:version|appVersion): )({_VERSION})$", re.MULTILINE),
}


def current() -> str:
    """The version in the source. Raises ValueError where it is none."""
    match = _SOURCE.search(SOURCE.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f'{SOURCE} has no line VERSION = "MAJOR.MINOR.PATCH"')
    return match[2]


def places() -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Files that state the version, and where in them: the pattern's second group."""
    for name, pattern in _IN_FILES.items():
        yield ROOT / name, pattern
    for pages in ("README.md", "docs/**/*.md", "images/*"):
        for path in sorted(ROOT.glob(pages)):
            if path.is_file() and path.suffix in (".md", ".Containerfile"):
                yield path, _IMAGE


def write(version: str) -> list[Path]:
    """Writes the version into every place. Returns the files that have changed."""
    changed = []
    for path, pattern in [(SOURCE, _SOURCE), *places()]:
        text = path.read_text(encoding="utf-8")
        new = pattern.sub(lambda match: match[1] + version, text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.version", description=__doc__)
    parser.add_argument("version", nargs="?", help="a new version, such as 0.2.0")
    wanted = parser.parse_args(arguments).version
    if wanted and not re.fullmatch(_VERSION, wanted):
        parser.error(f"{wanted} is not a version such as 0.2.0 or 0.2.0rc1")
    for path in write(wanted or current()):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
