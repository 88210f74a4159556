"""Links between the repository's Markdown files: the file exists, and so does the heading.

Tests that the security model names exist, too.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tools.addresses import REPOSITORY, SITE

ROOT = Path(__file__).parents[4]
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_TEST = re.compile(r"`([a-z_0-9/]+\.py)(?:::(\w+))?`")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def pages() -> list[Path]:
    """The Markdown files of the repository; what commands make lies below names that begin with a dot."""
    found = (path for path in ROOT.iterdir() if not path.name.startswith(".") or path.name == ".github")
    return sorted(page for path in found for page in ([path] if path.suffix == ".md" else path.rglob("*.md")))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    counts: dict[str, int] = {}
    made = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = counts.get(anchor, 0)
        counts[anchor] = number + 1
        made.add(f"{anchor}-{number}" if number else anchor)
    return frozenset(made)


def broken(page: Path) -> list[str]:
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    wrong = []
    for target in _LINK.findall(text):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists():
            wrong.append(f"{target}: there is no such file")
        elif not linked.is_relative_to(ROOT):
            wrong.append(f"{target}: is outside of the repository")
        elif anchor and linked.suffix == ".md" and anchor not in anchors(linked):
            wrong.append(f"{target}: {linked.name} has no such heading")
    return wrong


def test_there_are_pages_and_links() -> None:
    assert len(pages()) > 20
    assert sum(len(_LINK.findall(page.read_text(encoding="utf-8"))) for page in pages()) > 100


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_published_addresses_are_those_of_pages() -> None:
    """Of the packages, the chart and the READMEs, which are read beside the site."""
    files = [page for page in pages() if page.name == "README.md"]
    files += [ROOT / folder / "pyproject.toml" for folder in ("worker", "operator")]
    files += [path for path in (ROOT / "charts").rglob("*.yaml") if "crds" not in path.parts]
    published = re.compile(rf"({SITE}|{REPOSITORY}/blob/main)/([\w/.-]+\w)")
    named = {found for file in files for found in published.findall(file.read_text(encoding="utf-8"))}
    assert len(named) >= 4
    missing = [
        f"{base}/{path}"
        for base, path in named
        if not (ROOT / (f"{path}.md" if base == SITE else path)).is_file()
    ]
    assert missing == []


def test_a_broken_link_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One & *two*\n[a](#one--two) [b](#two) [c](none.md)\n```\n[d](gone.md)\n```\n")
    assert broken(page) == ["#two: page.md has no such heading", "none.md: there is no such file"]


def test_the_tests_that_the_security_model_names_exist() -> None:
    rows = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8").splitlines()
    named = [name for row in rows if row.startswith("|") for name in _TEST.findall(row)]
    assert len(named) > 20
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (path := ROOT / "tests" / file).exists()
        or (name and f"def {name}(" not in path.read_text("utf-8"))
    ]
    assert missing == []
