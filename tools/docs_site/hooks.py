"""What `mkdocs build` does to the pages besides rendering: links out of docs/, the diagrams' script, a style.

On GitHub a page links to files of the repository (`../../examples/README.md`). The site has only docs/, so
these links become URLs below the repository's address. The theme must not know it as `repo_url`: its script
would ask the API of github.com for stars.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.addresses import REPOSITORY, SITE

ROOT = Path(__file__).parents[2]
STYLE = Path(__file__).with_name("site.css")
DIAGRAMS = ROOT / ".cache" / "docs" / "mermaid.min.js"
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)((?:#[^)\s]*)?\))")


def on_config(config: Any) -> Any:
    """Adds the addresses of the site and, as the last entry of the navigation, of the repository."""
    config.site_url = f"{SITE}/docs/"
    config.nav.append({"Source": REPOSITORY})
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the style, and the script that draws Mermaid's diagrams: pages need no other host for it."""
    files.append(File.generated(config, "assets/site.css", content=STYLE.read_bytes()))
    files.append(File.generated(config, "assets/mermaid.min.js", content=DIAGRAMS.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """The page's text, with links to files outside of docs/ as URLs of the repository."""
    folder = Path(config.docs_dir, page.file.src_uri).parent

    def resolve(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[2]))
        if target.is_relative_to(config.docs_dir) and not target.is_dir():
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {match[2]} does not exist")
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{match[3]}"

    return _LINK.sub(resolve, markdown)
