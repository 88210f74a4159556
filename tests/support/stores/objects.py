"""What the tests of sinks ask of any object store, and the objects of a store as obstore shows them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import obstore
from pyarrow.fs import FileSystem

from slackwater.pipeline.sinks.parquet.store_options import StoreAddress
from tests.support.stores.gate import HasPort


class Readable(Protocol):
    """A store whose objects can be read."""

    def keys(self, prefix: str = "") -> list[str]:
        """The keys of all objects that begin with ``prefix``."""

    def read(self, key: str) -> bytes:
        """The content of an object."""


class StoreServer(HasPort, Readable, Protocol):
    """An object store of its own for a test, on a port of 127.0.0.1, with the bucket ``BUCKET``."""

    scheme: str
    """Of its addresses."""
    iceberg_scheme: str
    """Of its addresses, as pyiceberg has them."""
    part_mark: str
    """What a request has that sends a part of an object."""

    def options(self, url: str = "", **more: str) -> dict[str, str]:
        """Storage options for this server, or for a gate at ``url``."""

    def iceberg_properties(self) -> dict[str, str]:
        """Properties of pyiceberg for this server."""

    def refusing_credentials(self) -> AbstractContextManager[dict[str, str]]:
        """Within the block no credentials are accepted. Gives storage options with those to use."""

    def is_copy(self, method: str, path: str) -> bool:
        """Whether a request puts an object in its place that was staged."""

    def delete(self, key: str) -> None:
        """Deletes an object."""

    def file_system(self) -> FileSystem:
        """pyarrow's own client, as a reader that knows nothing of Slackwater has it."""


class Objects:
    """The objects at an address, with storage ``options`` as a user gives them to a sink."""

    def __init__(self, address: str, options: Mapping[str, str]) -> None:
        self._bucket = StoreAddress(address, options).open()

    def keys(self, prefix: str = "") -> list[str]:
        """The keys of all objects that begin with ``prefix``."""
        listed = [meta["path"] for meta in obstore.list(self._bucket).collect()]
        return sorted(key for key in listed if key.startswith(prefix))

    def read(self, key: str) -> bytes:
        """The content of an object."""
        return bytes(obstore.get(self._bucket, key).bytes())

    def delete(self, key: str) -> None:
        """Deletes an object."""
        obstore.delete(self._bucket, key)


def download(server: Readable, prefix: str, folder: Path) -> Path:
    """Copies all objects whose keys begin with ``prefix/`` into ``folder``."""
    for key in server.keys(f"{prefix}/"):
        target = folder / key.removeprefix(f"{prefix}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(server.read(key))
    return folder
