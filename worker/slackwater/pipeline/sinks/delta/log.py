"""The marks of a Delta table, read from its log: ``txn`` actions, a version for each application id.

deltalake looks up one id at a time, whose name must be known, and reads the log anew for each. This reads all
of them once, from the last checkpoint and the commits after it, and later only new commits. It is right after
a checkpoint and after old commits were removed, because a checkpoint holds the last ``txn`` of each id (Delta
protocol, "Checkpoints"; of a V2 checkpoint that is the file itself, not its sidecars).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.delta.marks import marks_of

if TYPE_CHECKING:
    from slackwater.pipeline.sinks.delta.store import DeltaFiles
    from slackwater.pipeline.sinks.marks import MarkKey

_FOLDER = "_delta_log"
_HINT = f"{_FOLDER}/_last_checkpoint"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
_WINDOW = 1000
"""Commits whose names are told to the files' reader at once."""
_THREADS = 8
"""Commits that are read at once."""


class TransactionLog:
    """The marks at :attr:`version`.

    Its methods raise OSError. FileNotFoundError: a file was removed, as after a later checkpoint.
    """

    def __init__(self, files: DeltaFiles) -> None:
        """As of the last checkpoint. To be made before the table is loaded, which then has this version or a
        later one. Where the log does not name its checkpoint, :meth:`read_to` looks for it."""
        self._files = files
        self._window = range(_WINDOW)
        self._reader = files.reader([_HINT, *map(_commit, self._window)])
        self.marks: dict[str, dict[MarkKey, int]] = {}
        """By group."""
        self.commits: list[dict[str, Any]] = []
        """The ``commitInfo`` actions that the last :meth:`read_to` has met."""
        self._proof = b""
        """Is in the file of the commit :attr:`version`, and in no other."""
        self._is_whole = True
        """Whether the commits after :attr:`version` are there."""
        self.version = self._read_checkpoint()

    def read_to(self, version: int) -> None:
        """Reads the commits up to ``version``, which exists."""
        self.commits = []
        if not self._is_whole:
            self._is_whole, self.version = True, self._search_checkpoint(version)
        if version - self.version > 1:
            self._expect(self.version + 1)
            with ThreadPoolExecutor(_THREADS) as pool:
                contents = list(pool.map(self._read, range(self.version + 1, version + 1)))
        else:
            contents = [self._read(number) for number in range(self.version + 1, version + 1)]
        for content in contents:
            self._apply(_actions(content))
            self.version, self._proof = self.version + 1, content

    def add(self, transactions: Mapping[str, int], proof: str) -> None:
        """Takes in the next version, which this process has committed. ``proof``: a text in that commit."""
        self._take(transactions)
        self.version, self._proof = self.version + 1, proof.encode()

    def is_replaced(self) -> bool:
        """Whether another table is in this one's place: the commit of this version is gone or another one.

        deltalake does not notice; it would write its next commit into the log of the other table.
        """
        try:
            return self._proof not in self._read(self.version)
        except FileNotFoundError:
            return True

    def _read(self, number: int) -> bytes:
        if number not in self._window:
            self._expect(number)
        return self._reader(_commit(number))

    def _expect(self, number: int) -> None:
        self._window = range(number, number + _WINDOW)
        self._reader = self._files.reader(map(_commit, self._window))

    def _apply(self, actions: Iterable[dict[str, Any]]) -> None:
        for action in actions:
            if transaction := action.get("txn"):
                self._take({transaction["appId"]: transaction["version"]})
            elif commit := action.get("commitInfo"):
                self.commits.append(commit)

    def _take(self, transactions: Mapping[str, int]) -> None:
        for group, marks in marks_of(transactions).items():
            self.marks.setdefault(group, {}).update(marks)

    def _read_checkpoint(self) -> int:
        """Its version; -1: there is none."""
        with contextlib.suppress(FileNotFoundError, KeyError, ValueError, TypeError):
            # It is only a hint: it may be missing, or name a checkpoint that is gone.
            hint = json.loads(self._reader(_HINT))
            return self._read_files(hint["version"], _names(hint))
        self._is_whole = self._has_all()
        return -1

    def _has_all(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return bool(self._read(0))
        return False

    def _search_checkpoint(self, version: int) -> int:
        """The version of the last one up to ``version``; -1: none is needed."""
        if self._has_all():  # The table was created meanwhile.
            return -1
        found: dict[tuple[int, int], list[str]] = {}
        for name in self._files.names(_FOLDER):
            if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
                found.setdefault((int(match[1]), int(match[2] or 1)), []).append(name)
        complete = [key for key, names in found.items() if len(names) >= key[1]]
        if not complete:
            return -1
        last = max(complete)
        return self._read_files(last[0], sorted(found[last])[: last[1]])

    def _read_files(self, version: int, names: list[str]) -> int:
        paths = [f"{_FOLDER}/{name}" for name in names]
        read = self._files.reader(paths)
        for path in paths:
            content = read(path)
            self._apply(_actions(content) if path.endswith(".json") else _transactions(content))
        return version


def _commit(number: int) -> str:
    return f"{_FOLDER}/{number:020d}.json"


def _names(hint: dict[str, Any]) -> list[str]:
    """The names of a checkpoint's files."""
    stem, parts = f"{hint['version']:020d}.checkpoint", hint.get("parts")
    if "v2Checkpoint" in hint:
        return [hint["v2Checkpoint"]["path"]]
    if parts:
        return [f"{stem}.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
    return [f"{stem}.parquet"]


def _actions(content: bytes) -> Iterable[dict[str, Any]]:
    return (json.loads(line) for line in content.splitlines() if line.strip())


def _transactions(content: bytes) -> Iterable[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(content), columns=["txn"])
    columns = [column.drop_null() for column in table.columns]  # None where there are no transactions.
    return ({"txn": transaction} for column in columns for transaction in column.to_pylist())
