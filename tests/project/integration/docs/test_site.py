"""The site builds strictly, has every page, and loads nothing from other hosts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.docs import site
from tests.support.docs.blocks import ROOT
from tools.addresses import REPOSITORY

pytestmark = [pytest.mark.parts("docs"), pytest.mark.long]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    return folder


class Loads(HTMLParser):
    """Collects what a browser loads with a page: scripts, styles, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.loaded.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(given.get("href") or "")


def test_every_page_is_there_and_can_be_searched(built: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        folder = page.parent if page.name == "README.md" else page.with_suffix("")
        assert (built / folder / "index.html").exists(), page
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert len({entry["location"].split("#")[0] for entry in index["docs"]}) >= len(pages)
    assert any("RolloutRefused" in entry["text"] for entry in index["docs"])


def test_nothing_is_loaded_from_other_hosts(built: Path) -> None:
    for page in built.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [target for target in loads.loaded if re.match(r"(https?:)?//", target)] == [], page
    assert (built / "assets" / "mermaid.min.js").stat().st_size > 1_000_000


def test_links_out_of_the_docs_lead_to_the_repository(built: Path) -> None:
    page = (built / "tutorials" / "first-group" / "index.html").read_text(encoding="utf-8")
    assert '/blob/main/examples/README.md"' in page


def test_the_theme_asks_no_host_about_the_repository(built: Path) -> None:
    """A theme that knows the repository asks github.com's API for its stars; the navigation links to it."""
    page = (built / "index.html").read_text(encoding="utf-8")
    assert "md-source" not in page
    assert f'href="{REPOSITORY}"' in page
