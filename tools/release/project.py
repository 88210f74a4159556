"""The repository's places, and its version as each file states it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from setuptools.config.pyprojecttoml import read_configuration

from tools import addresses

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "slackwater"
CHANGELOG = ROOT / "CHANGELOG.md"
DISTRIBUTIONS = ("worker", "operator")
"""Folders with a pyproject.toml."""

REPOSITORY, SITE = addresses.REPOSITORY, addresses.SITE

_VERSION = re.compile(r"\d+\.\d+\.\d+")


class ReleaseProblem(RuntimeError):
    """Something cannot be released; the message says what, where, and what to do."""


def versions() -> dict[str, str]:
    """Place -> the version that it states."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    stated = {
        f"{folder}/pyproject.toml": str(
            read_configuration(ROOT / folder / "pyproject.toml")["project"]["version"]
        )
        for folder in DISTRIBUTIONS
    }
    place = CHART.relative_to(ROOT) / "Chart.yaml"
    return {**stated, f"{place}: version": chart["version"], f"{place}: appVersion": chart["appVersion"]}


def single_version(stated: Mapping[str, str], tag: str = "") -> str:
    """The version, if all places state the same one, and the tag is its.

    Args:
        stated: place -> version.
        tag: the tag that is released, such as `v0.1.0`; empty: none yet.

    Raises:
        ReleaseProblem: they differ, or it is no version of a release.
    """
    different = set(stated.values())
    if len(different) > 1:
        lines = "\n".join(f"  {place}: {version}" for place, version in stated.items())
        raise ReleaseProblem(f"the version differs:\n{lines}\nSet the same one everywhere.")
    version = different.pop()
    if not _VERSION.fullmatch(version):
        raise ReleaseProblem(f"{version} is not a version of a release; use MAJOR.MINOR.PATCH")
    if tag and tag != f"v{version}":
        raise ReleaseProblem(
            f"the tag is {tag}, the files state {version}. Delete the tag, set the version in "
            f"{', '.join(stated)}, and tag that commit v{version}."
        )
    return version
