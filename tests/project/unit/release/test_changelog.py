"""Notes of a release and its changes, out of CHANGELOG.md."""

from __future__ import annotations

import pytest

from tools.release import changelog, project
from tools.release.project import ReleaseProblem

TEXT = """# Changelog

Intro.

## Unreleased: 0.2.0

### Added
- Something.

## 0.1.0 - 2026-11-25

To upgrade, do this.

### Added
- **Client**: reads `topics`, on
  two lines; see [the page](docs/x.md).
- Another.

### Fixed
- A fault.

A word at the end.

## 0.0.9 - 2026-01-01
"""


def test_the_notes_are_the_versions_section() -> None:
    section = changelog.section(TEXT, "0.1.0", released=True)
    assert section.date == "2026-11-25"
    assert section.text.startswith("To upgrade, do this.\n\n### Added\n- **Client**")
    assert section.text.endswith("A word at the end.")


def test_the_changes_are_plain_text_with_their_kind() -> None:
    assert changelog.section(TEXT, "0.1.0", released=True).changes == [
        {"kind": "added", "description": "Client: reads topics, on two lines; see the page."},
        {"kind": "added", "description": "Another."},
        {"kind": "fixed", "description": "A fault."},
    ]


def test_a_rehearsal_takes_the_unreleased_section() -> None:
    assert changelog.section(TEXT, "0.2.0", released=False).date == ""
    with pytest.raises(ReleaseProblem, match="Head it '## 0.2.0 - YYYY-MM-DD'"):
        changelog.section(TEXT, "0.2.0", released=True)


@pytest.mark.parametrize(
    ("version", "says"),
    [("0.0.9", "lists no changes"), ("0.1", "has no section of 0.1"), ("0x1.0", "has no section")],
)
def test_a_missing_or_empty_section_is_an_error(version: str, says: str) -> None:
    with pytest.raises(ReleaseProblem, match=says):
        changelog.section(TEXT, version, released=False)


def test_a_heading_that_artifact_hub_does_not_know_is_an_error() -> None:
    with pytest.raises(ReleaseProblem, match="the heading 'new' is none of added, changed"):
        changelog.section(TEXT.replace("### Fixed", "### New"), "0.1.0", released=True)


def test_the_projects_changelog_has_the_next_version() -> None:
    version = project.single_version(project.versions())
    text = project.CHANGELOG.read_text(encoding="utf-8")
    assert changelog.section(text, version, released=False).changes
