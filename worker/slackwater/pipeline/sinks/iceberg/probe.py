"""Checks that files can be written where an Iceberg table is, or would be."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog

if TYPE_CHECKING:
    from pyiceberg.table import Table


def write_a_file(catalog: IcebergCatalog, table: Table | None) -> None:
    """Writes a file to the folder of ``table``, or to where it would be created, and removes it. Where not
    even the namespace exists, only the catalog can tell where that is: nothing is written then if it does
    not. Raises pyiceberg's errors and OSError."""
    import pyarrow as pa
    from pyiceberg.exceptions import NoSuchNamespaceError

    if table is None:
        connected = catalog.connected()
        try:
            staged = connected.create_table_transaction(
                catalog.identifier, pa.schema([("probe", pa.int64())])
            )
        except NoSuchNamespaceError:
            return
        table = staged._table  # It is not in the catalog, and never will be.
    location = f"{table.location()}/.slackwater-probe-{uuid.uuid4().hex}"
    with _without_new_folders(location):
        with table.io.new_output(location).create() as output:
            output.write(b"probe")
        table.io.delete(location)


@contextlib.contextmanager
def _without_new_folders(location: str):  # type: ignore[no-untyped-def]
    """Removes, at the end of the block, the local folders that it has made for the file ``location``."""
    url = urlsplit(location)
    if url.scheme not in ("", "file"):
        yield
        return
    path = Path(unquote(url.path))
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
