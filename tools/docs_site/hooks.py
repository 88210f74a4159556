"""What `mkdocs build` does to the pages beside rendering them: links out of docs/, and the diagrams' script.

On GitHub a page links to files of the repository (`../../examples/README.md`). The site has only docs/, so
these links become URLs below the `repo_url` of mkdocs.yml.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DIAGRAMS = ROOT / ".cache" / "docs" / "mermaid.min.js"
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the script that draws Mermaid's diagrams, so that pages need no other host for it."""
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
        return f"{match[1]}{config.repo_url}/{kind}/main/{target.relative_to(ROOT)}{match[3]}"

    return _LINK.sub(resolve, markdown)
