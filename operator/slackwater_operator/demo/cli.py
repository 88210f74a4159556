"""`slackwater demo`: runs and checks the example on one machine."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from slackwater_operator.local.workfolder import WorkFolder, WorkFolderError
from slackwater_operator.model.group import terms

if TYPE_CHECKING:
    from slackwater_operator.demo.report import Report

FILE = Path("examples/flights/consumergroup.yaml")
FOLDER = Path(".demo")
_FEED_S = 60.0
_SEED = 2013
_INTERRUPTED = 130


class Workplace:
    """The demo's folder and the places in it. Each run empties it once its broker serves."""

    def __init__(self, folder: Path) -> None:
        self.work = WorkFolder(folder, "demo", elsewhere="run the demo in another folder")
        self.logs = folder / "logs"
        self.output = folder / "flights"
        self.report = folder / "report.json"
        self.broker = folder / f"broker-{uuid4().hex[:8]}"
        """The dev broker's data and logs: a new folder each time, as the broker starts before the last
        run's folder is removed."""

    def empty(self) -> None:
        """Removes what the last run has left. Raises WorkFolderError."""
        self.work.empty(keep=[self.broker])


def register(subparsers: Any) -> None:
    """Adds the subcommand `demo`."""
    demo = subparsers.add_parser(
        "demo",
        help="run the example of real flights on this machine, and check its output",
        description="Processes real flights in a consumer group, and restarts, kills and scales its workers "
        f"meanwhile. Creates the folder {FOLDER} in the current folder; a later run empties it once the "
        "broker listens. Exits with 0 only if nothing was lost or duplicated and no operation caused an "
        "avoidable rebalance.",
    )
    demo.add_argument(
        "--bootstrap",
        default="",
        metavar="HOST:PORT",
        help="Kafka brokers to use instead of the embedded dev broker",
    )
    demo.add_argument(
        "--replace", action="store_true", help="delete the demo's topics and group first if they exist"
    )
    demo.add_argument(
        "--group-protocol",
        choices=("classic", "consumer"),
        default="classic",
        help="how the workers are members of the group: by the classic protocol (the default), or by Kafka's "
        "consumer protocol (KIP-848)",
    )
    demo.add_argument(
        "--spark",
        choices=("connect", "local"),
        default="connect",
        help="connect (the default): one Spark Connect server for all workers; local: a session per worker",
    )
    demo.add_argument(
        "--sink",
        choices=("parquet", "delta"),
        default="parquet",
        help="what the flights become: Parquet files (the default) or a Delta Lake table",
    )
    demo.add_argument(
        "--seconds",
        type=float,
        default=_FEED_S,
        help=f"minimum time over which the flights are produced (default {_FEED_S:.0f})",
    )
    demo.add_argument("--seed", type=int, default=_SEED, help="seed for the positions of the poison records")
    demo.add_argument(
        "--random-kill",
        type=int,
        metavar="SEED",
        help="kill -9 a worker at a random moment as well, and check only that nothing is lost or duplicated",
    )
    demo.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plays the demo; 0 if all its checks hold, 1 if not, 2 for a folder that is not its own, 130 after
    Ctrl-C."""
    from slackwater_operator.api.v1alpha1.consumer_group import ResourceError
    from slackwater_operator.demo.children import DemoError
    from slackwater_operator.demo.source import DEMO
    from slackwater_operator.local.report.views import RunError

    DEMO.require("slackwater demo")
    try:
        return asyncio.run(_main(arguments))
    except asyncio.CancelledError:
        print("slackwater demo: interrupted; all its processes have ended", file=sys.stderr)
        return _INTERRUPTED
    except (DemoError, WorkFolderError, RunError, ResourceError) as error:
        print(f"slackwater demo: error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))


async def _main(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    console = Console()
    workplace = Workplace(FOLDER)
    workplace.work.claim()
    try:
        report = await _play(arguments, console, workplace)
    finally:
        workplace.work.release()
    console.print(report.text(), markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nFigures: {workplace.report}, flights: {workplace.output}", highlight=False)
    return 0 if report.passed else 1


async def _play(arguments: argparse.Namespace, console: Any, workplace: Workplace) -> Report:
    from slackwater_operator.demo.broker import (
        DEAD_LETTER_PARTITIONS,
        SOURCE_PARTITIONS,
        make_topics,
        start_dev_broker,
    )
    from slackwater_operator.demo.delta_table import read_delta
    from slackwater_operator.demo.display import Display
    from slackwater_operator.demo.feed import POISON
    from slackwater_operator.demo.report import Report
    from slackwater_operator.demo.scenario import TOTAL_RECORDS, Scenario
    from slackwater_operator.demo.verify import collect, read_output
    from slackwater_operator.local.launch import Launch

    async with AsyncExitStack() as stack:
        display = stack.enter_context(Display(console, TOTAL_RECORDS))
        bootstrap = arguments.bootstrap
        if not bootstrap:
            broker, bootstrap = await start_dev_broker(workplace.broker)
            stack.push_async_callback(broker.stop)
            display.say(f"the dev broker listens at {bootstrap}")
        launch = Launch(
            _file(),
            bootstrap=bootstrap,
            group_protocol=arguments.group_protocol.capitalize(),
            spark=arguments.spark,
            workdir=workplace.work,
            # Nothing of what the workers run changes: there is nothing that a preflight could find.
            rollout={"strategy": "Takeover", "preflight": {"enabled": False}},
            sink_format=arguments.sink,
        )
        spec = launch.source.group.spec
        topic, dead_letters = spec.topics[0], spec.pipeline.dead_letter_topic or ""
        await make_topics(
            bootstrap,
            launch.source.group.group_id,
            {topic: SOURCE_PARTITIONS, dead_letters: DEAD_LETTER_PARTITIONS},
            replace=arguments.replace,
        )
        workplace.empty()
        display.say(f"created topics {topic} and {dead_letters}; starting Spark ({arguments.spark})")
        async with launch as running:
            running.on_notice(display.notice)
            scenario = Scenario(
                running,
                display,
                bootstrap=bootstrap,
                logs=workplace.logs,
                topic=topic,
                feed_s=arguments.seconds,
                seed=arguments.seed,
                random_kill=arguments.random_kill,
            )
            figures = await scenario.play()
            display.say("all records are processed; ending the workers")
        display.say("checking the output against the source file")
        read = read_delta if arguments.sink == "delta" else read_output
        accounting, differences = await asyncio.to_thread(
            collect, bootstrap, topic, dead_letters, Path(launch.source.sink_path), read
        )
    report = Report(
        broker=arguments.bootstrap or "dev broker",
        engine=f"spark {arguments.spark}{', delta' if arguments.sink == 'delta' else ''}",
        accounting=accounting,
        poison=POISON,
        operations=figures.operations,
        restarts=figures.restarts,
        takeovers=figures.takeovers,
        seconds=figures.seconds,
        lag=figures.lag,
        differences=differences,
        terms=terms(consumer_protocol=arguments.group_protocol == "consumer"),
        random_kill=figures.random_kill,
    )
    report.save(workplace.report)
    return report


def _file() -> Path:
    """The example's resource: below the current folder, else where this package's checkout has it."""
    checkout = Path(__file__).resolve().parents[3] / FILE
    return FILE if FILE.exists() else checkout
