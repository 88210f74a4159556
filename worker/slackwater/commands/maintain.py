"""``slackwater maintain``: compacts a group's tables and expires their history while the group writes.
The operator runs it for ``spec.maintenance``, a table at a time."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from slackwater.fields import FieldError, duration, file_size
from slackwater.tools.group_config import add_options, config_of

EXPIRE_AFTER = "168h"
TARGET_FILE_SIZE = "128Mi"


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "maintain",
        help="compact a group's tables and expire their history",
        description="Writes the small files of a group's Delta and Iceberg tables anew as large ones, and "
        "removes versions that are older than a time with the files that only they have. The group's workers "
        "go on undisturbed.",
    )
    add_options(parser)
    parser.add_argument(
        "--table",
        default="",
        metavar="NAME",
        help="the table, by its name or path: sink.table or sink.path (default: all tables of the group)",
    )
    parser.add_argument(
        "--target-file-size",
        default=TARGET_FILE_SIZE,
        type=_size,
        metavar="SIZE",
        help=f"about the size of a file, 1Mi to 1Gi (default: {TARGET_FILE_SIZE}); the rows of one are in "
        "memory",
    )
    parser.add_argument(
        "--expire-after",
        default=EXPIRE_AFTER,
        type=_duration,
        metavar="DURATION",
        help=f"how long versions are kept, 1h or longer (default: {EXPIRE_AFTER}); longer than any query "
        "takes",
    )
    parser.add_argument(
        "--cluster-by",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column that queries filter by, so that near values come to the same file; may be repeated",
    )
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="text (the default), or a JSON object a line for each table",
    )
    parser.set_defaults(run=run)


def _size(text: str) -> int:
    return _parsed(file_size().parse, text)


def _duration(text: str) -> int:
    return _parsed(duration("1h", "87600h").parse, text)


def _parsed(parse: Any, text: str) -> int:
    try:
        return int(parse(text, ""))
    except FieldError as exc:
        raise argparse.ArgumentTypeError(exc.problem) from None


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code: that of the first table that fails; the others are maintained all the same.
    Raises ConfigError."""
    from slackwater.pipeline.maintenance import maintenance_of
    from slackwater.runtime.errors import EXIT_OK, ConfigError, WorkerError
    from slackwater.runtime.telemetry.events import write_termination_message

    code, tables = EXIT_OK, maintenance_of(config_of(arguments))
    if arguments.table and arguments.table not in tables:
        raise ConfigError(
            f"--table: {arguments.table!r} is no table of the group; its tables: {', '.join(tables)}"
        )
    said = []
    for name, maintenance in tables.items():
        if arguments.table not in ("", name):
            continue
        report: dict[str, object] = {"table": name}
        if isinstance(maintenance, str):
            report["nothing"] = maintenance
        else:
            try:
                report |= asdict(
                    maintenance.run(arguments.target_file_size, arguments.expire_after, arguments.cluster_by)
                )
            except WorkerError as exc:
                report["error"] = str(exc)
                code = code or exc.exit_code
        print(json.dumps(report) if arguments.output == "json" else _text(report), flush=True)
        done = {key: value for key, value in report.items() if key != "table"}
        said.append(str(report["error"]) if "error" in report else json.dumps(done))
    write_termination_message("\n".join(said), os.environ)
    return code


def _text(report: dict[str, object]) -> str:
    if "nothing" in report or "error" in report:
        return f"{report['table']}: {report.get('nothing') or report['error']}"
    return (
        f"{report['table']}: {report['compacted']} files have become {report['written']}, "
        f"{report['removed']} files are removed, {report['expired']} snapshots expired"
    )
