"""Reads CHANGELOG.md: the notes of a release, and its changes as Artifact Hub shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.release.project import ReleaseProblem

KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""Keep a Changelog's headings; Artifact Hub has the same."""
_SECTION = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_DATED = r"\[?{version}\]? - (?P<date>\d{{4}}-\d{{2}}-\d{{2}})"
_CANDIDATE = r"\[?Unreleased\]?: {version}"


@dataclass(frozen=True)
class Section:
    """What one version changes. `date` is empty for the version that is not released yet."""

    version: str
    date: str
    text: str

    @property
    def changes(self) -> list[dict[str, str]]:
        """Each list item below a heading of :data:`KINDS`: `kind`, and `description` without Markdown."""
        result: list[dict[str, str]] = []
        kind = ""
        for block in re.split(r"\n(?=### |- )|\n\n", self.text):
            if block.startswith("### "):
                kind = block.splitlines()[0].removeprefix("### ").strip().lower()
                if kind not in KINDS:
                    raise ReleaseProblem(
                        f"CHANGELOG.md, {self.version}: the heading {kind!r} is none of {', '.join(KINDS)}"
                    )
            elif block.startswith("- ") and kind:
                result.append({"kind": kind, "description": _plain(block.removeprefix("- "))})
        return result


def section(text: str, version: str, *, released: bool) -> Section:
    """The section of a version.

    Args:
        text: the whole CHANGELOG.md.
        version: such as `0.1.0`.
        released: it must have a date; otherwise `## Unreleased: VERSION` is accepted, too.

    Raises:
        ReleaseProblem: there is none, it has no date, or it is empty.
    """
    titles = list(_SECTION.finditer(text))
    for position, match in enumerate(titles):
        end = titles[position + 1].start() if position + 1 < len(titles) else len(text)
        dated = re.fullmatch(_DATED.format(version=re.escape(version)), match["title"])
        candidate = re.fullmatch(_CANDIDATE.format(version=re.escape(version)), match["title"])
        if not dated and not candidate:
            continue
        if released and not dated:
            raise ReleaseProblem(
                f"CHANGELOG.md: the section of {version} is headed '## {match['title']}'. Head it "
                f"'## {version} - YYYY-MM-DD' with the day of the release, in the commit that is tagged."
            )
        result = Section(version, dated["date"] if dated else "", text[match.end() : end].strip())
        if not result.changes:
            raise ReleaseProblem(
                f"CHANGELOG.md: the section of {version} lists no changes. Add items below '### Added' or "
                "another heading of Keep a Changelog."
            )
        return result
    raise ReleaseProblem(f"CHANGELOG.md has no section of {version}. Add '## {version} - YYYY-MM-DD'.")


def _plain(markdown: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return " ".join(re.sub(r"\*\*|`", "", text).split())
