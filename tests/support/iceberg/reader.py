"""A reader of Iceberg tables after the specification's text, for tests: JSON, Avro and Parquet, nothing of
pyiceberg."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow.parquet as pq

_DELETED = 2
_PROPERTY = "slackwater.marks/"


def read_local(path: str) -> bytes:
    """The content of a file on the local disk."""
    return Path(path.removeprefix("file://").removeprefix("file:")).read_bytes()


def in_database(database: Path, table: str) -> str:
    """The file of a table's metadata, as the SQLite ``database`` of a SQL catalog has it, as every JDBC
    catalog does."""
    namespace, _, name = table.rpartition(".")
    with sqlite3.connect(database) as connection:
        locations = connection.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?",
            (namespace, name),
        ).fetchall()
    connection.close()
    assert len(locations) == 1, f"{table} is there once: {locations}"
    return str(locations[0][0])


@dataclass
class IcebergFiles:
    """The current snapshot of ``table`` (NAMESPACE.TABLE). ``catalog``: the SQLite database of its catalog,
    or what gives the file of its metadata."""

    catalog: Path | Callable[[str], str]
    table: str
    read: Callable[[str], bytes] = read_local
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Path of each data file -> its partition values."""
    manifests: int = 0

    def __post_init__(self) -> None:
        catalog = self.catalog
        location = in_database(catalog, self.table) if isinstance(catalog, Path) else catalog(self.table)
        self.metadata = json.loads(self.read(location))
        if (snapshot := self.snapshot) is None:
            return
        for manifest in self._avro(snapshot["manifest-list"]):
            assert manifest["content"] == 0, "no deletes of rows"
            self.manifests += 1
            for entry in self._avro(manifest["manifest_path"]):
                file = entry["data_file"]
                if entry["status"] != _DELETED:
                    assert file["file_path"] not in self.files, "each file once"
                    self.files[file["file_path"]] = file["partition"]

    def _avro(self, path: str) -> list[Any]:
        return list(fastavro.reader(io.BytesIO(self.read(path))))

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The current one, which is that of the branch main."""
        current = self.metadata.get("current-snapshot-id")
        if current in (None, -1):
            return None
        assert self.metadata["refs"]["main"]["snapshot-id"] == current
        found = (one for one in self.metadata["snapshots"] if one["snapshot-id"] == current)
        return dict(next(found))

    @property
    def _fields(self) -> list[dict[str, Any]]:
        current = self.metadata["current-schema-id"]
        schema = next(one for one in self.metadata["schemas"] if one["schema-id"] == current)
        return list(schema["fields"])

    @property
    def columns(self) -> dict[str, Any]:
        """Name -> Iceberg's type."""
        return {column["name"]: column["type"] for column in self._fields}

    @property
    def partitioning(self) -> list[tuple[str, str]]:
        """Column and transform of each field of the partitioning."""
        names = {column["id"]: column["name"] for column in self._fields}
        current = self.metadata["default-spec-id"]
        spec = next(one for one in self.metadata["partition-specs"] if one["spec-id"] == current)
        return [(names[part["source-id"]], part["transform"]) for part in spec["fields"]]

    @property
    def marks(self) -> dict[tuple[str, str, str, int], int]:
        """The next offset of each group, topic, topic id and partition."""
        found = {}
        for name, value in self.metadata["properties"].items():
            if name.startswith(_PROPERTY):
                group, topic, topic_id, _ = map(unquote, name.removeprefix(_PROPERTY).split("/"))
                for partition, mark in json.loads(value).items():
                    found[group, topic, topic_id, int(partition)] = mark
        return found

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return [row for path in self.files for row in self.rows_of(path)]

    def rows_of(self, path: str) -> list[dict[str, Any]]:
        """The rows of a data file. Columns are found by their ids, as the specification has it."""
        names = {str(column["id"]): column["name"] for column in self._fields}
        content = pq.ParquetFile(io.BytesIO(self.read(path)))
        ids = [(one.metadata or {}).get(b"PARQUET:field_id", b"").decode() for one in content.schema_arrow]
        return [
            {
                **dict.fromkeys(names.values()),
                **{names[id_]: value for id_, value in zip(ids, row.values(), strict=True) if id_ in names},
            }
            for row in content.read().to_pylist()
        ]

    def places(self) -> Counter[tuple[int, int]]:
        """How many rows there are of each (partition, offset)."""
        return Counter((row["partition"], row["offset"]) for row in self.rows())
