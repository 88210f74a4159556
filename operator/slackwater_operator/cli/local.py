"""`slackwater local run`: a ConsumerGroup with processes of this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.commands.display import terminal

if TYPE_CHECKING:
    from rich.live import Live

    from slackwater_operator.local.launch import Launch
    from slackwater_operator.local.report.views import RunSnapshot
    from slackwater_operator.local.run import LocalRun

_STATUS_S = 5.0
_TABLES_S = 0.5


def register(subparsers: Any) -> None:
    """Adds the subcommand `local`."""
    local = subparsers.add_parser("local", help="run ConsumerGroups on this machine")
    commands = local.add_subparsers(dest="local_command", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="run the workers of a ConsumerGroup as processes",
        description="Runs the workers of a ConsumerGroup as processes on this machine, until Ctrl-C. "
        "SIGHUP reloads the file and rolls the workers by its spec.rollout.strategy. SIGUSR1 promotes the "
        "present step of a rollout, and SIGUSR2 aborts the rollout.",
    )
    run.add_argument(
        "-f", "--file", required=True, type=Path, metavar="FILE", help="the ConsumerGroup's YAML"
    )
    run.add_argument(
        "--bootstrap", default="", metavar="HOST:PORT", help="brokers to use instead of the file's"
    )
    run.add_argument(
        "--spark",
        choices=("connect", "local"),
        default="local",
        help="connect: one Spark Connect server for all workers; local (the default): a session per worker",
    )
    run.add_argument(
        "--workdir",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder for the workers' configuration and logs; must be new, empty, or from an earlier run "
        "(default: .slackwater/NAME in the current folder)",
    )
    run.add_argument(
        "--secrets",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder of the Secrets that the file names, one file per key: DIR/SECRET/KEY",
    )
    run.add_argument(
        "--prometheus-url",
        default="",
        metavar="URL",
        help="the Prometheus that the queries of spec.rollout.analysis are sent to",
    )
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Runs the group; 0 after Ctrl-C.

    Raises:
        ResourceError: the file is wrong.
        WorkFolderError: the folder for configuration and logs is somebody else's, or another run has it.
        RunError: the run could not go on.
    """
    return asyncio.run(_main(arguments))


async def _main(arguments: argparse.Namespace) -> int:
    from slackwater_operator.local.backend import RunSettings
    from slackwater_operator.local.launch import Launch

    stop, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _Hangup(stop.set, again.set))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    launch = Launch(
        arguments.file,
        bootstrap=arguments.bootstrap,
        spark=arguments.spark,
        workdir=arguments.workdir,
        settings=RunSettings(prometheus_url=arguments.prometheus_url),
        secrets=arguments.secrets,
    )
    async with launch as run, AsyncExitStack() as stack:
        screen = stack.enter_context(Screen())
        run.on_notice(lambda notice: screen.say(notice.text))
        loop.add_signal_handler(signal.SIGUSR1, _order, run.promote)
        loop.add_signal_handler(signal.SIGUSR2, _order, run.abort)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(stop.wait()),
            asyncio.create_task(_watch(run, screen)),
            asyncio.create_task(_roll_when_asked(launch, run, again, screen)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if run.failure is not None:
            raise run.failure
        screen.say("ending the workers (press Ctrl-C again to end them at once)")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, launch.hurry)
    _line("all workers have ended")
    return 0


def _order(order: Callable[[], None]) -> None:
    """Carries out what a signal asks for, or says why not."""
    try:
        order()
    except ValueError as error:
        _line(str(error))


class _Hangup:
    """SIGHUP: the terminal was closed, which ends the run but under nohup, or somebody wants a rollout.

    Without a handler a process under nohup would ignore the second, too.
    """

    def __init__(self, stop: Callable[[], None], roll: Callable[[], None]) -> None:
        self._stop = stop
        self._roll = roll
        self._under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._had_terminal = _has_terminal()

    def __call__(self) -> None:
        if not self._had_terminal or _has_terminal():
            self._roll()
        elif self._under_nohup:
            self._had_terminal = False
            _line("the terminal was closed, and the run goes on, as nohup asks; SIGHUP rolls the workers")
        else:
            self._stop()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def _roll_when_asked(launch: Launch, run: LocalRun, again: asyncio.Event, screen: Screen) -> None:
    """Rolls the workers with what the file says then, each time that `again` is set; returns when the run
    cannot go on. What is wrong with the file, or ends a rollout, is a line: the workers go on as before."""
    from slackwater_operator.api.v1alpha1.consumer_group import ResourceError
    from slackwater_operator.local.report.views import OperationError, RunError

    while run.failure is None:
        await again.wait()
        again.clear()
        try:
            await run.roll(launch.reload())
        except OperationError:
            pass  # its line has been printed as a notice
        except (ResourceError, ValueError) as error:
            screen.say(f"the workers are not rolled: {error}")
        except RunError as error:
            if run.failure is None:
                screen.say(f"the workers are not rolled: {error}")


async def _watch(run: LocalRun, screen: Screen) -> None:
    """Shows the state now and then, and returns when the run cannot go on."""
    while run.failure is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(screen.every_s):
                await run.wait_failed()
        screen.update(run.snapshot())


class Screen:
    """Shows a run: on a terminal its lines above tables that change, elsewhere lines alone.

    A context manager. ``every_s``: how often it is to be updated."""

    def __init__(self) -> None:
        self._console = terminal()
        self._live: Live | None = None
        self._last = ""
        self._ports: dict[str, int | None] = {}
        self.every_s = _STATUS_S if self._console is None else _TABLES_S

    def __enter__(self) -> Screen:
        if self._console is not None:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
        self._live = None

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is None:
            _line(text)
            return
        with contextlib.suppress(OSError):  # as in _line
            self._live.console.print(_with_time(text), soft_wrap=True)

    def update(self, shown: RunSnapshot) -> None:
        """Shows what is now; as a line only where it has changed. A line names each worker's page."""
        ports = {worker.pod: worker.port for worker in shown.workers}
        for pod, port in ports.items():
            if port is not None and self._ports.get(pod) != port:
                self.say(f"{pod} shows its state at http://127.0.0.1:{port}/")
        self._ports = ports
        if self._live is None:
            line = status_line(shown)
            if line != self._last:
                _line(line)
                self._last = line
            return
        from rich.console import Group
        from rich.text import Text

        from slackwater_operator.local.report.tables import head, tables

        problems = [Text(problem, style="bold red") for problem in shown.problems]
        with contextlib.suppress(OSError):
            self._live.update(Group(head(shown), *tables(shown), *problems), refresh=True)


def status_line(shown: RunSnapshot) -> str:
    """A run in one line: the group, each worker with its partitions, the lag, what is being done."""
    workers = ", ".join(
        f"{worker.pod} {worker.phase}" + (f" ({len(worker.assignment)})" if worker.phase == "running" else "")
        for worker in shown.workers
    )
    lag, term = "unknown" if shown.total_lag is None else str(shown.total_lag), shown.terms.generation
    parts = [
        f"group {shown.group_state or 'unknown'}",
        f"{term} {shown.generation}" if shown.generation >= 0 else f"no {term} yet",
        f"lag {lag}",
        workers or "no workers",
    ]
    if shown.operation is not None and shown.operation.status:
        parts.append(f"{shown.operation.text}: {shown.operation.status}")
    if shown.problems:
        parts.append("; ".join(shown.problems))
    return " | ".join(parts)


def _line(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone, the workers are still to be ended
        print(_with_time(text), flush=True)


def _with_time(text: str) -> str:
    return f"{datetime.now(UTC).astimezone():%H:%M:%S} {text}"
