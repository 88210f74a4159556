"""A reader of Delta tables after the protocol's text, for tests: JSON and Parquet, nothing of deltalake."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq


@dataclass
class DeltaFolder:
    """The last version of the table in ``folder``: its data files, transactions, and columns."""

    folder: Path
    version: int = -1
    files: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Path of each active data file -> its partition values."""
    transactions: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        log = self.folder / "_delta_log"
        checkpoints = sorted(log.glob("*.checkpoint.parquet"))
        if checkpoints:
            self.version = int(checkpoints[-1].name.split(".")[0])
            for action in pq.read_table(checkpoints[-1]).to_pylist():
                self._apply({name: value for name, value in action.items() if value is not None})
        commits = {int(path.stem): path for path in log.glob("*.json")}
        while (path := commits.get(self.version + 1)) is not None:
            for line in path.read_text().splitlines():
                self._apply(json.loads(line))
            self.version += 1
        assert self.version >= max(commits, default=-1), "no gap in the log"

    def _apply(self, action: dict[str, Any]) -> None:
        for kind, value in action.items():
            if kind == "add":
                self.files[unquote(value["path"])] = dict(value["partitionValues"])
            elif kind == "remove":
                self.files.pop(unquote(value["path"]), None)
            elif kind == "txn":
                self.transactions[value["appId"]] = value["version"]
            elif kind == "metaData":
                self.metadata = value

    @property
    def columns(self) -> dict[str, Any]:
        """Name -> Delta's type, as the metadata has it."""
        return {
            column["name"]: column["type"] for column in json.loads(self.metadata["schemaString"])["fields"]
        }

    def rows(self) -> list[dict[str, Any]]:
        """All rows; partition values are text."""
        result: list[dict[str, Any]] = []
        for path, values in self.files.items():
            table = pq.ParquetFile(self.folder / path).read()
            result += [{**dict.fromkeys(self.columns), **row, **values} for row in table.to_pylist()]
        return result

    def places(self) -> Counter[tuple[int, int]]:
        """How many rows there are of each (partition, offset)."""
        return Counter((int(row["partition"]), row["offset"]) for row in self.rows())
