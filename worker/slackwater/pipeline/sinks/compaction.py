"""Which files of a table become one, and what the maintenance of a table has done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

LEAST_FILES = 5
"""So many small files are made one, however small together. Fewer would be written again and again."""
SMALL = 0.75
"""A file is small below this part of the target size."""
TRIES = 20
"""How often a commit is tried anew because workers commit first."""


@dataclass(frozen=True)
class Maintained:
    """What was done. ``compacted`` files became ``written`` ones; how many snapshots of Iceberg have
    ``expired``, and how many files were ``removed`` that no version has which is kept."""

    compacted: int = 0
    written: int = 0
    expired: int = 0
    removed: int = 0


class TableMaintenance(Protocol):
    """The maintenance of one table, while workers write to it. Raises SinkError, ConfigError."""

    def run(self, target_bytes: int, expire_after_ms: int, cluster_by: Sequence[str] = ()) -> Maintained:
        """Makes files of about ``target_bytes`` of smaller ones, clustered by the columns ``cluster_by``,
        and removes versions that are older than ``expire_after_ms`` with the files that only they have. A
        table that is not there is left alone."""


F = TypeVar("F")


def groups_of(files: Sequence[tuple[F, int]], target_bytes: int) -> list[list[F]]:
    """Which of a partition's files, each with its size in bytes, are to become one.

    A group has about ``target_bytes``, or at least :data:`LEAST_FILES` files.
    """
    groups: list[list[F]] = []
    group: list[F] = []
    total = 0
    for file, size in files:
        if size >= SMALL * target_bytes:
            continue
        if group and total + size > target_bytes:
            groups.append(group)
            group, total = [], 0
        group.append(file)
        total += size
    if len(group) >= LEAST_FILES or (len(group) > 1 and total >= SMALL * target_bytes):
        groups.append(group)
    return [each for each in groups if len(each) > 1]
