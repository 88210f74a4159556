"""The command ``slackwater``. Each subcommand is a module of its own, imported when it is called.

Other distributions add subcommands through the entry point group ``slackwater.commands``. They are
looked up only if the subcommand is not one of :data:`COMMANDS`: reading the installed distributions takes
longer than a returning worker can spare before it joins its group.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any, NoReturn

COMMANDS = {
    "backfill": "slackwater.backfill_cli",
    "devbroker": "slackwater.devbroker.cli",
    "dlq": "slackwater.dlq_cli",
    "rewind": "slackwater.rewind_cli",
    "try": "slackwater.try_cli",
    "worker": "slackwater.worker_cli",
}
ENTRY_POINTS = "slackwater.commands"
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> tuple[argparse.ArgumentParser, Any]:
    parser = _Parser(prog="slackwater", description="Runs Kafka consumer groups without needless rebalances.")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    version = subparsers.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser, subparsers


def _version(_: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version as installed

    try:
        print(installed("slackwater"))
    except PackageNotFoundError:
        print("unknown: slackwater is not installed, but run from its sources")
    return 0


def _register(subparsers: Any, arguments: list[str]) -> None:
    """Adds the subcommand that ``arguments`` names; all of them if it is not one of :data:`COMMANDS`."""
    named = next((argument for argument in arguments if not argument.startswith("-")), "")
    if named == "version":
        return
    if named in COMMANDS:
        import_module(COMMANDS[named]).register(subparsers)
        return
    for module in COMMANDS.values():
        import_module(module).register(subparsers)
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == named:
            entry.load()(subparsers)
        elif not named:
            _register_if_it_loads(subparsers, entry)


def _register_if_it_loads(subparsers: Any, entry: Any) -> None:
    """Adds the subcommand of ``entry`` for the list of commands. A broken one must not hide the others."""
    try:
        entry.load()(subparsers)
    except Exception as exc:
        print(f"slackwater: the command {entry.name} cannot be loaded: {exc}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        parser, subparsers = _parser()
        _register(subparsers, arguments)
        args = parser.parse_args(arguments)
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as exc:
        if debug:
            raise
        message = " ".join(str(exc).split()) or type(exc).__name__
        print(f"slackwater: error: {message}", file=sys.stderr)
        return int(getattr(exc, "exit_code", 1))


if __name__ == "__main__":
    sys.exit(main())
