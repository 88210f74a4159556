"""The log of a folder of files: its commits, and the marks and the schema after them.

A commit is a file, ``FOLDER/00000000000000000042.json``. It is created under a name that must not exist yet,
by a hard link, which POSIX creates as a whole or not at all. If two writers have both read 41 commits, one of
them creates the 42nd; the other reads it and decides again. After every 32nd commit a writer creates a
checkpoint, ``FOLDER/checkpoint-00000000000000000064.json``, which holds the result of all commits up to that
number, and removes these commits.

A checkpoint frees numbers, and a writer that has not read so far may create a commit with one of them. Such a
commit does not count. So after a commit was created or read, the folder is listed again: if there is a
checkpoint with its number or a higher one, the checkpoint tells what counts. If there is none, no commit of
that number was removed before it was created, because a checkpoint comes before the removal.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKPOINT_EVERY = 32
MOST_BYTES = 64 << 20
"""The largest file of a log that is read: a thousand times what a large group needs."""
_READ_TRIES = 100
"""How often a log is read again because another process has removed commits meanwhile."""

MarkKey = tuple[str, str, int]
"""Topic, topic id, partition."""


class LogError(Exception):
    """A file of the log that no release of Slackwater has written. The message names it."""


@dataclass(frozen=True)
class Commit:
    """``marks``: those that it moves. ``files``: (name in the staging folder, path in the table's folder); a
    file that is there is replaced. ``schema``: the table's from now on, as text; "": as before. ``removed``:
    paths in the table's folder of files that are no longer part of the table."""

    marks: Mapping[MarkKey, int]
    files: tuple[tuple[str, str], ...] = ()
    schema: str = ""
    removed: tuple[str, ...] = ()


@dataclass
class State:
    """What ``version`` commits come to."""

    version: int = 0
    marks: dict[MarkKey, int] = field(default_factory=dict)
    schema: str = ""

    def apply(self, commit: Commit) -> None:
        """Takes in the next commit."""
        self.version += 1
        self.marks.update(commit.marks)
        self.schema = commit.schema or self.schema


class CommitLog:
    """The log in ``folder``, which is there. Its methods raise OSError and LogError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.state = State()
        """As of the last :meth:`refresh` or :meth:`append`."""

    def refresh(self) -> list[Commit]:
        """Reads what other processes have committed since. Returns those commits, without those that a
        checkpoint covers: their files are in place."""
        for _ in range(_READ_TRIES):
            try:
                base, commits = self._read()
            except FileNotFoundError:  # a checkpoint was made meanwhile
                if not self._folder.exists():
                    raise
                continue
            if not commits or self._list()[1] <= base.version:
                self.state = base
                for commit in commits:
                    self.state.apply(commit)
                return commits
        raise LogError(f"{self._folder} could not be read: commits disappear while they are read")

    def _read(self) -> tuple[State, list[Commit]]:
        """The state of the last checkpoint, or the present one if that is newer, and the commits after it."""
        numbers, checkpoint = self._list()
        base = self.state
        if checkpoint > base.version:
            document = _load(self._folder / _checkpoint(checkpoint))
            base = State(checkpoint, _marks(document), document["schema"])
        commits: list[Commit] = []
        while (number := base.version + len(commits) + 1) in numbers:
            document = _load(self._folder / _entry(number))
            commits.append(
                Commit(_marks(document), document["files"], document["schema"], document["removed"])
            )
        return base, commits

    def _list(self) -> tuple[set[int], int]:
        """The numbers of the commits that are there, and that of the last checkpoint; 0: none."""
        numbers, checkpoints = set(), [0]
        for path in self._folder.iterdir():
            if path.suffix != ".json":
                continue
            if path.stem.isdigit():
                numbers.add(int(path.stem))
            elif (number := path.stem.removeprefix("checkpoint-")).isdigit():
                checkpoints.append(int(number))
        return numbers, max(checkpoints)

    def append(self, commit: Commit) -> bool:
        """Makes ``commit`` the next one. False: the log has gone on. To be refreshed then: ``commit`` does
        not count, or it counts and is part of a checkpoint, as its marks tell."""
        version = self.state.version + 1
        document = {
            "files": commit.files,
            "marks": _pairs(commit.marks),
            "removed": commit.removed,
            "schema": commit.schema,
        }
        temporary = self._folder / f".{uuid.uuid4().hex}"
        try:
            write_synced(temporary, json.dumps(document).encode())
            os.link(temporary, self._folder / _entry(version))
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)
        if self._list()[1] >= version:
            return False
        self.state.apply(commit)
        return True

    @property
    def checkpoint_due(self) -> bool:
        """Whether the last commit is one that a checkpoint follows."""
        return self.state.version % CHECKPOINT_EVERY == 0

    def checkpoint(self) -> None:
        """Replaces all commits so far by their sum. Their files must be in place."""
        state = self.state
        temporary = self._folder / f".{uuid.uuid4().hex}"
        try:
            document = {"marks": _pairs(state.marks), "schema": state.schema}
            write_synced(temporary, json.dumps(document).encode())
            temporary.replace(self._folder / _checkpoint(state.version))
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)
        for path in list(self._folder.iterdir()):
            number = path.stem.removeprefix("checkpoint-")
            last = state.version - path.stem.startswith("checkpoint-")
            if number.isdigit() and int(number) <= last:
                path.unlink(missing_ok=True)


def _entry(version: int) -> str:
    return f"{version:020d}.json"


def _checkpoint(version: int) -> str:
    return f"checkpoint-{version:020d}.json"


def _pairs(marks: Mapping[MarkKey, int]) -> list[list[Any]]:
    return [[*key, end] for key, end in sorted(marks.items())]


def _marks(document: Mapping[str, Any]) -> dict[MarkKey, int]:
    return {(topic, topic_id, partition): end for topic, topic_id, partition, end in document["marks"]}


def _load(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        document: dict[str, Any] = json.loads(data)
        _marks(document)
        if not isinstance(document["schema"], str):
            raise ValueError("its schema is no text")
        document["files"] = tuple((str(staged), str(final)) for staged, final in document.get("files", ()))
        document["removed"] = tuple(map(str, document.get("removed", ())))
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise LogError(f"{path} is no commit of Slackwater's ({exc}): restore it from a backup") from exc
    return document


def write_synced(path: Path, data: bytes) -> None:
    """Makes the file ``path``, which must not exist, and syncs it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes names in ``folder`` last through a loss of power (POSIX: a folder is synced by itself)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
