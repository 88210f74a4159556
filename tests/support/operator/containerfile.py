"""A Containerfile, read: enough of it to see that what it copies and runs is there."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Step:
    """One instruction: `RUN`, `COPY`, ..., and the rest of its line."""

    instruction: str
    rest: str

    def words(self) -> list[str]:
        """The arguments that are no flags; of the JSON form its list."""
        if self.rest.startswith("["):
            return [str(word) for word in json.loads(self.rest)]
        return [word for word in shlex.split(self.rest) if not word.startswith("--")]

    def flag(self, name: str) -> str:
        """The value of `--name=`; empty where it is not there."""
        match = re.search(rf"--{name}=(\S+)", self.rest)
        return match[1] if match else ""


@dataclass
class Stage:
    """What is between two FROM.

    Attributes:
        base: the image or the earlier stage that it begins with.
        name: its own, or empty.
        steps: in order.
    """

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def all(self, instruction: str) -> list[Step]:
        """Its steps of one kind."""
        return [step for step in self.steps if step.instruction == instruction]


def read(path: Path) -> list[Stage]:
    """The stages. Raises ValueError for a step before the first FROM (ARG may stand there)."""
    stages: list[Stage] = []
    for step in _steps(path.read_text(encoding="utf-8")):
        if step.instruction == "FROM":
            base, _, name = re.sub(r"\s+", " ", step.rest).partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].steps.append(step)
        elif step.instruction != "ARG":
            raise ValueError(f"{path.name}: {step.instruction} before the first FROM")
    return stages


def _steps(text: str) -> Iterator[Step]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, _, rest = line.strip().partition(" ")
            yield Step(instruction.upper(), rest.strip())


def ignored(rules: str, path: PurePosixPath) -> bool:
    """Whether a `.dockerignore` leaves out the file: the last rule for it or for a folder of it decides."""
    out = False
    for line in rules.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keeps = pattern.startswith("!")
        if any(_matches(pattern.lstrip("!"), part) for part in (path, *path.parents) if str(part) != "."):
            out = not keeps
    return out


def _matches(pattern: str, path: PurePosixPath) -> bool:
    # `*` does not cross a slash; `**/` is any number of folders, also none.
    anywhere = pattern.startswith("**/")
    wanted = PurePosixPath(pattern.removeprefix("**/")).parts
    parts = path.parts[-len(wanted) :] if anywhere else path.parts
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
