"""What of a handler is sent to the executors: its package, and those of handlerPath that it imports.

Imports are read from the text of the files, also those within functions: nothing is imported for it. What a
name at run time imports (``importlib``) is found if it is in one of these packages.
"""

from __future__ import annotations

import ast
import hashlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackwater.runtime.errors import ConfigError

MAX_SENT_BYTES = 64 * 1024 * 1024
_INSTALLED_THERE = "slackwater"
"""The package that the executors must have; another version of it is not sent."""


@dataclass(frozen=True)
class HandlerFiles:
    """``modules``: the names of packages and modules. ``contents``: of their files, by path there."""

    modules: tuple[str, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(map(len, self.contents.values()))

    def archive(self, folder: Path) -> Path:
        """An archive of the files in ``folder``. Its name is made of its content: Spark takes a name only
        once."""
        digest = hashlib.sha256(
            b"".join(name.encode() + b"\0" + data for name, data in self.contents.items())
        )
        archive = folder / f"handler-{digest.hexdigest()[:16]}.zip"
        # Python finds a package without __init__.py in an archive that has its folder.
        folders = {f"{parent}/" for name in self.contents for parent in list(Path(name).parents)[:-1]}
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
            for name in sorted(folders):
                out.writestr(zipfile.ZipInfo(name), b"")
            for name, data in self.contents.items():
                out.writestr(zipfile.ZipInfo(name), data)
        return archive


def handler_files(handler: str, path: Sequence[str]) -> HandlerFiles:
    """The files that the executors need for ``handler`` (``module:function``; "": there is none).

    ``path``: folders from which it is imported. What is in none of them must be installed there. Raises
    ConfigError where it is too much.
    """
    places: dict[str, Path] = {}
    contents: dict[str, bytes] = {}
    read_bytes = 0
    names = [handler.partition(":")[0].partition(".")[0]]
    while names:
        name = names.pop()
        place = _place(name, path) if name not in places and name != _INSTALLED_THERE else None
        if place is None:
            continue
        places[name] = place
        for file in _files(place):
            inner = str(file.relative_to(place.parent))
            contents[inner] = _read(file, read_bytes)
            read_bytes += len(contents[inner])
            if file.suffix == ".py":
                names += _imported(contents[inner])
    return HandlerFiles(tuple(sorted(places)), dict(sorted(contents.items())))


def _place(name: str, path: Sequence[str]) -> Path | None:
    """The folder or file of the package or module ``name``; None: no folder of ``path`` has it."""
    for folder in map(Path, path):
        for place in (folder / name, folder / f"{name}.py"):
            if place.suffix == ".py" and place.is_file():
                return place
            if name and place.is_dir() and any(place.rglob("*.py")):
                return place
    return None


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for file in sorted(place.rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(place).parts)
        if not hidden and file.is_file():
            yield file


def _read(file: Path, before_bytes: int) -> bytes:
    if before_bytes + file.stat().st_size > MAX_SENT_BYTES:
        raise ConfigError(
            f"the handler's packages have more than {MAX_SENT_BYTES >> 20} MiB with {file}, too much to send "
            "to the executors; move data to where executors read it, or install the package there",
            field="handler",
        )
    return file.read_bytes()


def _imported(text: bytes) -> Iterator[str]:
    """The first parts of the names that a file imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # the handler's import tells that, if it needs the file
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
