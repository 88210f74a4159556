"""pyiceberg's REST catalog with limits on waiting: its requests have none of their own."""

from __future__ import annotations

import functools

from pyiceberg.catalog.rest import Capability, RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from requests import Session

CONNECT_S, ANSWER_S = 5.0, 30.0


class BoundedRestCatalog(RestCatalog):
    """A request fails if the server takes no connection, or says nothing for some time; so do those for a
    token. Raises NotImplementedError for a server that says it makes no commits."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._check_endpoint(Capability.V1_UPDATE_TABLE)

    def _config_headers(self, session: Session) -> None:
        # Called for a new session before its first request. Not an adapter: with signed requests
        # (`rest.sigv4-enabled`), pyiceberg mounts one of its own for the catalog's address.
        session.request = functools.partial(  # type: ignore[method-assign]
            session.request, timeout=(CONNECT_S, ANSWER_S)
        )
        super()._config_headers(session)

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Does nothing: the server owns these files, and pyiceberg would warn of each that is gone."""
