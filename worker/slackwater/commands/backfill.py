"""``slackwater backfill``: runs a group's handler over ranges of its topics on Spark, beside the group.

It joins no group and commits no offset of the group's; the table has marks of the backfill's own.
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.backfill.bounds import SYNTAX, bound_of
from slackwater.backfill.slices import DEFAULT_MOST
from slackwater.commands.arguments import whole_number
from slackwater.commands.display import ProgressLines
from slackwater.runtime.errors import EXIT_OK, ConfigError
from slackwater.tools.group_config import add_options, config_of

if TYPE_CHECKING:
    from slackwater.runtime.config.pipeline_config import SparkConfig

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "backfill",
        help="run a group's handler over ranges of its topics on Spark, and write the rows",
        description="Runs the group's handler on a Spark cluster over ranges of its topics, and writes to "
        "the sink. The group itself goes on undisturbed. A backfill that has ended early goes on where it "
        "was when the same command is run again.",
    )
    add_options(parser)
    parser.add_argument(
        "--from",
        dest="begins",
        action="append",
        required=True,
        metavar=SYNTAX,
        type=bound_of,
        help="where to begin: in all partitions, or several times for several topics or partitions",
    )
    parser.add_argument(
        "--to",
        dest="ends",
        action="append",
        default=[],
        metavar=SYNTAX,
        type=bound_of,
        help="where to end; this offset is not included (default: latest, the log's end when the backfill is "
        "started first)",
    )
    parser.add_argument(
        "--sink",
        action="append",
        default=[],
        metavar="FILE|KEY=VALUE",
        help="where to write instead of spec.sink: a YAML file with the sink, or fields to replace, such as "
        "path=/data/flights-2025; several times for several fields",
    )
    parser.add_argument(
        "--route",
        default="",
        metavar="N|default",
        help="of a group with routes, the one whose rows and table it is: 0 for spec.pipeline.routes[0], or "
        "default for those that no route takes",
    )
    parser.add_argument("--handler", default="", metavar="MODULE:FUNCTION", help="instead of the group's")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--remote", default=None, metavar="sc://HOST:PORT", help="a Spark Connect server")
    where.add_argument(
        "--master",
        metavar="MASTER",
        help="a Spark cluster, such as spark://HOST:7077, or local[4]; the command is the driver",
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        type=_setting,
        help="a Spark configuration property, also for engines arrow and python; several times for several. "
        "Takes precedence over spec.pipeline.spark.conf",
    )
    parser.add_argument(
        "--name",
        type=_name,
        help="what tells this backfill from others (default: made of --from, --to and the table)",
    )
    parser.add_argument(
        "--batch-rows",
        default=DEFAULT_MOST,
        type=whole_number(1, 2**31 - 1),
        metavar="N",
        help="commit after at most N records",
    )
    parser.add_argument(
        "--tasks",
        default=0,
        type=whole_number(1, 2**31 - 1),
        metavar="N",
        help="tasks of a batch (default: two for each core)",
    )
    parser.add_argument(
        "--dead-letters",
        default="topic",
        metavar="topic|FILE|none",
        help="where dead letters go: the group's deadLetterTopic (the default), a file of JSON lines, or "
        "nowhere; they are counted in any case",
    )
    parser.add_argument(
        "--allow-overlap",
        action="store_true",
        help="write to the group's own table even where the group may have rows of these records",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be read, and write nothing")
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="text (the default), or a JSON object a line: the plan, each batch, and what was written",
    )
    parser.set_defaults(run=run)


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be letters, digits, '.', '_' or '-', not {text!r}")
    return text


def _setting(text: str) -> tuple[str, str]:
    name, is_given, value = text.partition("=")
    if not is_given or not name.startswith("spark."):
        raise argparse.ArgumentTypeError(f"must be spark.NAME=VALUE, not {text!r}")
    return name, value


def _spark(given: SparkConfig, arguments: argparse.Namespace) -> SparkConfig:
    """The settings with those of the command line. Raises ConfigError."""
    from slackwater.backfill.session import MASTER, SUBMITTED

    conf = {**given.conf, **dict(arguments.conf)}
    if arguments.master is None:
        return replace(
            given, conf=conf, remote=given.remote if arguments.remote is None else arguments.remote
        )
    if SUBMITTED in os.environ:
        raise ConfigError("--master: spark-submit has chosen the master; give it --master, before submit.py")
    return replace(given, conf={**conf, MASTER: arguments.master}, remote="")


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code. Raises WorkerError with the code of a worker for the same error, KafkaError."""
    from slackwater.backfill.report import BackfillReport, JsonReport, TextReport
    from slackwater.backfill.run import Options, backfill
    from slackwater.backfill.target import config_for, one_table

    live = config_of(arguments)
    config = config_for(one_table(live, arguments.route)[0], sink=arguments.sink, handler=arguments.handler)
    config = replace(config, spark=_spark(config.spark, arguments))
    options = Options(
        begins=arguments.begins,
        ends=arguments.ends,
        name=arguments.name or "",
        batch_rows=arguments.batch_rows,
        tasks=arguments.tasks,
        dead_letters=arguments.dead_letters,
        allow_overlap=arguments.allow_overlap,
        dry_run=arguments.dry_run,
        route=arguments.route,
    )
    if arguments.output == "json":
        report: BackfillReport = JsonReport(partial(print, flush=True))
        report.end(backfill(config, live, options, report))
        return EXIT_OK
    with ProgressLines() as lines:
        report = TextReport(lines.say, lines.progress)
        counts = backfill(config, live, options, report)
    report.end(counts)
    return EXIT_OK
