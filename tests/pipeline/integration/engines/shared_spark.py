"""One local session of Spark and one Connect server for many tests."""

from __future__ import annotations

from pathlib import Path

from slackwater.pipeline.engines.connect_server import ConnectServer
from tests.pipeline.integration.engines.pipeline_host import EngineHost, write_handlers
from tests.pipeline.integration.engines.spark_process import SparkProcess


class SharedSpark:
    """Starts each when it is first asked for, and again after a test has ended it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._local: SparkProcess | None = None
        self._client: SparkProcess | None = None
        self._server: ConnectServer | None = None
        write_handlers(folder)

    @property
    def local(self) -> SparkProcess:
        """A process with a local session."""
        if self._local is None or self._local.closed:
            self._local = SparkProcess()
        return self._local

    @property
    def server(self) -> ConnectServer:
        """A Connect server that answers."""
        if self._server is None or self._server.pid is None:
            self._server = ConnectServer(log_path=self.folder / "connect.log")
            self._server.start()
        return self._server

    @property
    def client(self) -> SparkProcess:
        """A process with sessions on the server."""
        remote = self.server.remote
        if self._client is not None and self._client.remote != remote:
            self._client.close()
        if self._client is None or self._client.closed:
            self._client = SparkProcess(remote)
        return self._client

    def host(self, mode: str) -> EngineHost:
        """An engine's host: ``local`` or ``connect``."""
        return EngineHost(self.local if mode == "local" else self.client, self.folder)

    def close(self) -> None:
        """Ends all."""
        for process in (self._local, self._client):
            if process is not None and not process.closed:
                process.close()
        if self._server is not None:
            self._server.stop()
