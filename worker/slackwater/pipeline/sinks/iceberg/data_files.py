"""The data files of a batch, written once, however often its commit is tried."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.iceberg import partitions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata


class DataFiles:
    """The files of ``rows``, which have all columns of the table that they are written to."""

    def __init__(self) -> None:
        self.rows: pa.Table
        self._metadata: TableMetadata | None = None
        self._io: FileIO | None = None
        self._files: list[DataFile] = []

    def written(self, metadata: TableMetadata, io: FileIO) -> list[DataFile]:
        """The files for a table with ``metadata``: those that are there, unless its columns, partitioning or
        place have changed since. Raises HandlerError, OSError and errors of pyiceberg."""
        if not self.rows.num_rows:
            return []
        before = self._metadata
        if before is None or _shape(before) != _shape(metadata):
            self.delete()
            rows = self.rows.select([field.name for field in metadata.schema().fields])
            self._files = partitions.write(metadata, io, rows)
            self._metadata, self._io = metadata, io
        return self._files

    def delete(self) -> None:
        """Removes what was written, as far as it can; to be called only if no commit has it."""
        for file in self._files:
            with contextlib.suppress(Exception):
                assert self._io is not None
                self._io.delete(file.file_path)
        self._files, self._metadata = [], None


def _shape(metadata: TableMetadata) -> object:
    return metadata.table_uuid, metadata.location, metadata.schema(), metadata.spec()
