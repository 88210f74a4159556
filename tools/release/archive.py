"""Archives whose bytes depend on nothing but their content, and checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path


def write_tar_gz(folder: Path, target: Path, *, modified_s: int) -> None:
    """Writes the files of `folder` into the archive `target`: in order, owned by root, all of one time.

    Args:
        folder: what goes in; its own name does not.
        target: a `.tar.gz`.
        modified_s: the files' time, in seconds since 1970.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            entry.mtime = modified_s
            with path.open("rb") as content:
                archive.addfile(entry, content)
    with target.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=modified_s) as compressed:
        compressed.write(packed.getbuffer())


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path) -> Path:
    """Writes `SHA256SUMS` of the folder's files, as `sha256sum --check` reads it; returns its path."""
    target = folder / "SHA256SUMS"
    files = sorted(path for path in folder.iterdir() if path.is_file() and path != target)
    target.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")
    return target
