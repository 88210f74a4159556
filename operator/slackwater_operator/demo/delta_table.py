"""The rows of a Delta table, by the text of its log: the check must not rely on the library that wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds


def read_delta(folder: Path) -> pa.Table:
    """The rows of the last version. The table has no partition columns and no deletion vectors, and its log
    begins at version 0.

    Raises FileNotFoundError if there is no table, ValueError for a log with a gap.
    """
    commits = sorted((folder / "_delta_log").glob("*.json"))
    if not commits:
        raise FileNotFoundError(f"{folder}: there is no Delta table to verify")
    if [int(commit.stem) for commit in commits] != list(range(len(commits))):
        raise ValueError(f"{folder}: the log of the Delta table has a gap")
    files: dict[str, Path] = {}
    for commit in commits:
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = folder / unquote(action["add"]["path"])
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
    parts = [ds.dataset(str(file), format="parquet") for file in files.values()]
    if not parts:
        return pa.table({})
    return ds.dataset(parts, schema=pa.unify_schemas([part.schema for part in parts])).to_table()
