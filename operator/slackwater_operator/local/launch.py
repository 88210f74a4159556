"""Starts a LocalRun from a file, with Spark Connect and a log, and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.local.report.views import RunError
from slackwater_operator.local.run import LocalRun, RunSettings
from slackwater_operator.local.source import Source, read_secrets, read_source
from slackwater_operator.local.workfolder import WorkFolder

if TYPE_CHECKING:
    from slackwater.pipeline.engines.connect_server import ConnectServer


class Launch:
    """`async with Launch(file) as run:` a started LocalRun, stopped at the end whatever happens."""

    def __init__(
        self,
        file: Path,
        *,
        bootstrap: str = "",
        group_protocol: str = "",
        spark: str = "local",
        workdir: Path | WorkFolder | None = None,
        settings: RunSettings | None = None,
        rollout: Mapping[str, Any] | None = None,
        sink_format: str = "",
        secrets: Path | None = None,
    ) -> None:
        """Reads the resource.

        Args:
            file: the ConsumerGroup's YAML.
            bootstrap: brokers to use in place of the file's; "": the file's.
            group_protocol: the group protocol in place of the file's; "": the file's.
            spark: `connect`: one Spark Connect server for all workers; `local`: a session in each. Counts
                only for engine spark without a remote of its own.
            workdir: the folder for configuration and logs; by default `.slackwater/NAME` where we are. One
                that the caller has claimed is used and not released.
            settings: how the run behaves.
            rollout: fields that count in place of the file's spec.rollout; None: the file's.
            sink_format: the format of the output in place of the file's; "": the file's.
            secrets: the folder with the Secrets that the file names, as SECRET/KEY; None: there is none.

        Raises:
            ResourceError: the file is wrong.
        """
        self._file = file
        self._bootstrap, self._group_protocol = bootstrap, group_protocol
        self._rollout = rollout
        self._sink_format = sink_format
        self._secrets = secrets
        self._remote = ""
        self._log: logging.Handler | None = None
        self.source = self._read()
        self.settings = settings
        if not isinstance(workdir, WorkFolder):
            folder = workdir or Path.cwd() / ".slackwater" / self.source.group.name
            workdir = WorkFolder(folder, "local run", elsewhere="give another folder with --workdir")
        self._work = workdir
        self.workdir = workdir.folder
        pipeline = self.source.group.spec.pipeline
        self._connect = spark == "connect" and pipeline.engine == "spark" and not pipeline.spark.remote
        self._server: ConnectServer | None = None
        self._run: LocalRun | None = None
        self._releases = False
        self._hurry = asyncio.Event()

    async def __aenter__(self) -> LocalRun:
        """Starts what is needed.

        Raises:
            WorkFolderError: the folder is somebody else's, or another run has it; nothing in it was touched.
            RunError: the broker, a topic, Spark Connect or the folder is not to be had.
        """
        claimed_here = not self._work.claimed
        if claimed_here:
            self._work.claim()
        try:
            run = await self._start()
        except BaseException:
            if claimed_here:
                self._work.release()
            raise
        self._releases = claimed_here
        return run

    async def _start(self) -> LocalRun:
        secrets = self._read_secrets(self.source)
        self._keep_log()
        try:
            if self._connect:
                self._remote = await self._start_server()
                self.source = self.source.on_spark(self._remote)
            self._run = LocalRun(self.source, workdir=self.workdir, settings=self.settings, secrets=secrets)
            await self._run.start()
        except BaseException:
            await self._close()
            raise
        return self._run

    def _keep_log(self) -> None:
        """Sends the controller's log to a file: notices show what a user needs."""
        path = self.workdir / "operator.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}") from None
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log = logging.getLogger("slackwater_operator")
        log.addHandler(self._log)
        log.propagate = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close()
        finally:
            if self._releases:
                self._work.release()

    def reload(self) -> Source:
        """The resource as the file is now; its Secrets are read again, too, and given to the run.

        Raises:
            ResourceError: the file is wrong.
            RunError: a Secret is missing.
        """
        source = self._read().on_spark(self._remote)
        if self._run is not None:
            self._run.give_secrets(self._read_secrets(source))
        return source

    def hurry(self) -> None:
        """Ends the workers that are still draining at once."""
        self._hurry.set()

    def _read_secrets(self, source: Source) -> list[Object]:
        asked = self.settings is not None and bool(self.settings.prometheus_url)
        return read_secrets(source.group, self._secrets, analysis=asked)

    def _read(self) -> Source:
        source = read_source(self._file, Path.cwd())
        source = source.at(self._bootstrap) if self._bootstrap else source
        source = source.joined_by(self._group_protocol) if self._group_protocol else source
        source = source.written_as(self._sink_format) if self._sink_format else source
        return source.rolled_by(self._rollout) if self._rollout else source

    async def _start_server(self) -> str:
        from slackwater.pipeline.engines.connect_server import ConnectServer
        from slackwater.runtime.errors import StartError

        conf = self.source.group.spec.pipeline.spark.conf
        self._server = ConnectServer(conf, log_path=self.workdir / "logs" / "spark-connect.log")
        try:
            self._server.spawn()
            await asyncio.to_thread(self._server.wait_ready)
        except (StartError, OSError) as error:
            raise RunError(f"Spark Connect: {error}") from None
        return self._server.remote

    async def _close(self) -> None:
        try:
            if self._run is not None:
                await self._stop(self._run)
        finally:
            if self._log is not None:
                log = logging.getLogger("slackwater_operator")
                log.removeHandler(self._log)
                log.propagate = True
                self._log.close()
                self._log = None
            if self._server is not None:
                await asyncio.shield(asyncio.to_thread(self._server.stop))

    async def _stop(self, run: LocalRun) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        ending = asyncio.create_task(run.stop())
        try:
            await asyncio.wait([hurry, ending], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                run.end_now()
            await ending
        finally:
            hurry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hurry
