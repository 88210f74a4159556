"""The log of a table of files: its commits, and the marks and the schema after them.

A commit is a file, ``LOG/00000000000000000042.json``. It is created under a name that must not exist yet: in
a folder by a hard link, in an object store by a conditional put. If two writers have both read 41 commits,
one of them creates the 42nd; the other reads it and decides again. After every 32nd commit a writer creates a
checkpoint, ``LOG/checkpoint-00000000000000000064.json``, which holds the result of all commits up to that
number, and removes these commits.

A checkpoint frees numbers, and a writer that has not read so far may create a commit with one of them. Such a
commit does not count. So after a commit was created or read, the log is listed again: if there is a
checkpoint with its number or a higher one, the checkpoint tells what counts. If there is none, no commit of
that number was removed before it was created, because a checkpoint comes before the removal.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.pipeline.sinks.marks import MarkKey
from slackwater.pipeline.sinks.parquet.files import Commit, LogFiles

CHECKPOINT_EVERY = 32
MOST_BYTES = 64 << 20
"""The largest file of a log that is read: a thousand times what a large group needs."""
_READ_TRIES = 100
"""How often a log is read again because another process has removed commits meanwhile."""


class LogError(Exception):
    """A file of the log that no release of Slackwater has written. The message names it."""


@dataclass
class CommitState:
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
    """The log that ``files`` are. Its methods raise OSError and LogError."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self.state = CommitState()
        """As of the last :meth:`refresh` or :meth:`append`."""

    def refresh(self) -> list[Commit]:
        """Reads what other processes have committed since. Returns those commits, without those that a
        checkpoint covers: their files are in place."""
        for _ in range(_READ_TRIES):
            try:
                base, commits = self._read()
            except FileNotFoundError:  # a checkpoint was made meanwhile
                self._files.names()  # raises where the log itself is gone
                continue
            if not commits or self._list()[1] <= base.version:
                self.state = base
                for commit in commits:
                    self.state.apply(commit)
                return commits
        raise LogError(f"{self._files.address} could not be read: commits disappear while they are read")

    def _read(self) -> tuple[CommitState, list[Commit]]:
        """The state of the last checkpoint, or the present one if that is newer, and the commits after it."""
        numbers, checkpoint = self._list()
        base = self.state
        if checkpoint > base.version:
            document = self._load(_checkpoint(checkpoint))
            base = CommitState(checkpoint, _marks(document), document["schema"])
        commits: list[Commit] = []
        while (number := base.version + len(commits) + 1) in numbers:
            document = self._load(_entry(number))
            commits.append(
                Commit(_marks(document), document["files"], document["schema"], document["removed"])
            )
        return base, commits

    def _list(self) -> tuple[set[int], int]:
        """The numbers of the commits that are there, and that of the last checkpoint; 0: none."""
        numbers, checkpoints = set(), [0]
        for name in self._files.names():
            stem = name.removesuffix(".json")
            if stem == name:
                continue
            if stem.isdigit():
                numbers.add(int(stem))
            elif (number := stem.removeprefix("checkpoint-")).isdigit():
                checkpoints.append(int(number))
        return numbers, max(checkpoints)

    def append(self, commit: Commit) -> bool | None:
        """Makes ``commit`` the next one. False: another one is; the log is to be refreshed. None: likewise,
        and ``commit`` counts if the marks are its marks then: a checkpoint has it."""
        version = self.state.version + 1
        document = {
            "files": commit.files,
            "id": uuid.uuid4().hex,  # no two commits are the same bytes
            "marks": _pairs(commit.marks),
            "removed": commit.removed,
            "schema": commit.schema,
        }
        if not self._files.create(_entry(version), json.dumps(document).encode()):
            return False
        if self._list()[1] >= version:
            return None
        self.state.apply(commit)
        return True

    @property
    def checkpoint_due(self) -> bool:
        """Whether the last commit is one that a checkpoint follows."""
        return self.state.version % CHECKPOINT_EVERY == 0

    def checkpoint(self) -> None:
        """Replaces all commits so far by their sum. Their files must be in place."""
        state = self.state
        document = {"marks": _pairs(state.marks), "schema": state.schema}
        self._files.replace(_checkpoint(state.version), json.dumps(document).encode())
        covered = []
        for name in self._files.names():
            stem = name.removesuffix(".json")
            number = stem.removeprefix("checkpoint-")
            last = state.version - stem.startswith("checkpoint-")
            if number.isdigit() and int(number) <= last:
                covered.append(name)
        self._files.remove(covered)

    def _load(self, name: str) -> dict[str, Any]:
        data = self._files.read(name, MOST_BYTES + 1)
        try:
            if len(data) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            document: dict[str, Any] = json.loads(data)
            _marks(document)
            if not isinstance(document["schema"], str):
                raise ValueError("its schema is no text")
            document["files"] = tuple(
                (str(staged), str(final)) for staged, final in document.get("files", ())
            )
            document["removed"] = tuple(map(str, document.get("removed", ())))
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            path = f"{self._files.address}/{name}"
            raise LogError(f"{path} is no commit of Slackwater's ({exc}): restore it from a backup") from exc
        return document


def _entry(version: int) -> str:
    return f"{version:020d}.json"


def _checkpoint(version: int) -> str:
    return f"checkpoint-{version:020d}.json"


def _pairs(marks: Mapping[MarkKey, int]) -> list[list[Any]]:
    return [[*key, end] for key, end in sorted(marks.items())]


def _marks(document: Mapping[str, Any]) -> dict[MarkKey, int]:
    return {MarkKey(topic, topic_id, partition): end for topic, topic_id, partition, end in document["marks"]}
