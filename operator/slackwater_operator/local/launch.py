"""Puts a LocalRun together from a file, and takes it apart again."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from slackwater.kafka.errors import KafkaError, NoBrokersAvailable
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, load_local
from slackwater_operator.kafka.group_observer import KafkaObserver
from slackwater_operator.local.prepare import Source
from slackwater_operator.local.revisions import KEY_BYTES
from slackwater_operator.local.run import LocalRun, RunSettings
from slackwater_operator.local.settings import GRACE_BEYOND_DRAIN_MS
from slackwater_operator.local.views import RunError
from slackwater_operator.local.workfolder import WorkFolder

if TYPE_CHECKING:
    from slackwater.pipeline.connect_server import ConnectServer


class Launch:
    """`async with Launch(file) as run:` a started LocalRun, stopped at the end whatever happens."""

    def __init__(
        self,
        file: Path,
        *,
        bootstrap: str = "",
        spark: str = "local",
        workdir: Path | WorkFolder | None = None,
        settings: RunSettings | None = None,
        strategy: str = "",
    ) -> None:
        """Reads the resource.

        Args:
            file: the ConsumerGroup's YAML.
            bootstrap: brokers to use in place of the file's; "": the file's.
            spark: `connect`: one Spark Connect server for all workers; `local`: a session in each. Counts
                only for engine spark without a remote of its own.
            workdir: the folder for configuration and logs; by default `.slackwater/NAME` where we are. One
                that the caller has claimed is used and not released.
            settings: how the run behaves; by default a worker has spec.delivery.drainTimeout, and 10 s more.
            strategy: what counts in place of the file's spec.rollout.strategy; "": the file's.

        Raises:
            ResourceError: the file is wrong.
        """
        self._file = file
        self._bootstrap = bootstrap
        self._strategy = strategy
        self.source = self._read()
        drain_ms = self.source.group.spec.delivery.drain_timeout_ms
        self.settings = settings or RunSettings(grace_ms=drain_ms + GRACE_BEYOND_DRAIN_MS)
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
        group = self.source.group
        kafka = group.spec.kafka
        try:
            observer = await KafkaObserver.connect(kafka.bootstrap_servers, group.group_id, kafka.properties)
        except NoBrokersAvailable as error:
            raise RunError(f"{error}; start it, or correct spec.kafka.bootstrapServers") from None
        except KafkaError as error:
            raise RunError(f"{kafka.bootstrap_servers}: {error}") from None
        try:
            remote = await self._start_server() if self._connect else ""
            self._run = LocalRun(
                self.source,
                observer,
                workdir=self.workdir,
                settings=self.settings,
                spark_remote=remote,
                takeover_key=secrets.token_bytes(KEY_BYTES),
            )
            await self._run.start()
        except BaseException:
            await self._close(observer)
            raise
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close(None)
        finally:
            if self._releases:
                self._work.release()

    def reload(self) -> ConsumerGroup:
        """The resource as the file is now.

        Raises:
            ResourceError: the file is wrong.
        """
        return self._read().group

    def hurry(self) -> None:
        """Ends the workers that are still draining at once."""
        self._hurry.set()

    def _read(self) -> Source:
        source = Source(load_local(self._file), self._file.resolve().parent, Path.cwd())
        source = source.at(self._bootstrap) if self._bootstrap else source
        return source.rolled_by(self._strategy) if self._strategy else source

    async def _start_server(self) -> str:
        from slackwater.pipeline.connect_server import ConnectServer
        from slackwater.runtime.errors import StartError

        conf = self.source.group.spec.pipeline.spark.conf
        self._server = ConnectServer(conf, log_path=self.workdir / "logs" / "spark-connect.log")
        try:
            self._server.spawn()
            await asyncio.to_thread(self._server.wait_ready)
        except (StartError, OSError) as error:
            raise RunError(f"Spark Connect: {error}") from None
        return self._server.remote

    async def _close(self, observer: KafkaObserver | None) -> None:
        try:
            if self._run is not None:
                await self._stop(self._run)
            elif observer is not None:
                await observer.close()
        finally:
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
