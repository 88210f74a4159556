"""Checks that files can be written where an Iceberg table is, or would be."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table


def write_a_file(catalog: IcebergCatalog, table: Table | None) -> None:
    """Writes a file to the folder of ``table``, or to where it would be created, and removes it. Where not
    even the namespace exists, a REST catalog does not say where that is: nothing is written then. In an
    object store an empty object may stay, which stands for the folder. Raises pyiceberg's errors and OSError.
    """
    place = (table.location(), table.io) if table is not None else _place_to_be(catalog)
    if place is None:
        return
    location, io = f"{place[0]}/.slackwater-probe-{uuid.uuid4().hex}", place[1]
    with _without_new_folders(location):
        with io.new_output(location).create() as output:
            output.write(b"probe")
        io.delete(location)


def _place_to_be(catalog: IcebergCatalog) -> tuple[str, FileIO] | None:
    import pyarrow as pa
    from pyiceberg.exceptions import NoSuchNamespaceError
    from pyiceberg.io import load_file_io

    connected = catalog.connected()
    try:
        columns = pa.schema([("probe", pa.int64())])
        # Is not committed: the catalog never has the table.
        staged = connected.create_table_transaction(catalog.identifier, columns)._table
        return staged.location(), staged.io
    except NoSuchNamespaceError:
        if not catalog.is_sql:
            return None
    warehouse = connected.properties.get("warehouse")
    if not warehouse:
        raise ValueError("there is no warehouse")
    return warehouse, load_file_io(connected.properties, warehouse)


@contextlib.contextmanager
def _without_new_folders(location: str) -> Iterator[None]:
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
