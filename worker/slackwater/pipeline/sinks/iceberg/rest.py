"""pyiceberg's REST catalog with limits on waiting: its requests have none of their own."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

CONNECT_S, ANSWER_S = 5.0, 30.0


class BoundedRestCatalog(RestCatalog):
    """A request fails if the server takes no connection, or says nothing for some time."""

    def _config_headers(self, session: Session) -> None:
        # Called for a new session before its first request.
        for scheme in ("http://", "https://"):
            session.mount(scheme, _BoundedAdapter())
        super()._config_headers(session)

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Does nothing: the server owns these files, and pyiceberg would warn of each that is gone."""


class _BoundedAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        options["timeout"] = options.get("timeout") or (CONNECT_S, ANSWER_S)
        return super().send(request, *args, **options)
