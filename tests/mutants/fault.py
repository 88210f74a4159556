"""What a seeded fault is, and how it is made in a copy of the repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class FaultError(Exception):
    """A row of the table that does not fit the repository. The message names it."""


@dataclass(frozen=True)
class Fault:
    """One mistake in the product.

    Attributes:
        name: what is wrong, in a few words.
        file: the path of the file that has the fault, below the repository.
        before: a text that the file has exactly once.
        after: the text in its place.
        caught_by: the tests (files, or tests as pytest names them) of which at least one fails then.
    """

    name: str
    file: str
    before: str
    after: str
    caught_by: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """The file's text with the fault. Raises FaultError."""
        if (count := text.count(self.before)) != 1:
            raise FaultError(
                f"{self.name}: {self.file} has the text {count} times, not once: {self.before!r}"
            )
        return text.replace(self.before, self.after)

    @contextmanager
    def made_in(self, root: Path) -> Iterator[None]:
        """Makes the fault in the repository at ``root``, and removes it at the end. Raises FaultError."""
        path = root / self.file
        text, times = path.read_text(), path.stat()
        path.write_text(self.applied_to(text))
        try:
            yield
        finally:
            path.write_text(text)
            # Python compiles a file again by its time: the one of before is that of the compiled file.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
