"""The command ``slackwater``. Each subcommand is a module of its own, imported when it is called.

Other distributions add subcommands through the entry point group ``slackwater.commands``. They are
looked up only if the subcommand is not one of :data:`COMMANDS`: reading the installed distributions takes
longer than a returning worker can spare before it joins its group.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from importlib import import_module
from typing import Any, NoReturn

from slackwater import completion
from slackwater.extras import explained
from slackwater.version import VERSION

COMMANDS = {
    "backfill": "slackwater.commands.backfill",
    "devbroker": "slackwater.devbroker.cli",
    "dlq": "slackwater.commands.dlq",
    "lag": "slackwater.commands.lag",
    "maintain": "slackwater.commands.maintain",
    "produce": "slackwater.commands.produce",
    "rewind": "slackwater.commands.rewind",
    "tail": "slackwater.commands.tail",
    "topics": "slackwater.commands.topics",
    "try": "slackwater.commands.try_handler",
    "worker": "slackwater.commands.worker",
}
ENTRY_POINTS = "slackwater.commands"
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """As argparse's; for a command it names the nearest."""
        if not isinstance(action, argparse._SubParsersAction) or value in action.choices:
            super()._check_value(action, value)
            return
        import difflib

        near = difflib.get_close_matches(str(value), list(action.choices), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentError(None, f"there is no command {value}{hint}")


def _parser() -> tuple[argparse.ArgumentParser, Any]:
    parser = Parser(prog="slackwater", description="Runs Kafka consumer groups without needless rebalances.")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    version = subparsers.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    completion.register(subparsers, "slackwater", complete_parser)
    return parser, subparsers


def _version(_: argparse.Namespace) -> int:
    print(VERSION)
    return 0


def _register(subparsers: Any, arguments: list[str]) -> None:
    """Adds the subcommand that ``arguments`` names; all of them if it is not one of :data:`COMMANDS`."""
    named = next((argument for argument in arguments if not argument.startswith("-")), "")
    if named in ("completion", "version"):
        return
    if named in COMMANDS:
        import_module(COMMANDS[named]).register(subparsers)
        return
    for module in COMMANDS.values():
        import_module(module).register(subparsers)
    from importlib.metadata import entry_points

    entries = list(entry_points(group=ENTRY_POINTS))
    mine = [entry for entry in entries if entry.name == named]
    for entry in mine:
        entry.load()(subparsers)
    if not mine:  # the list of commands, or the nearest to one that does not exist
        for entry in entries:
            _register_if_it_loads(subparsers, entry)


def _register_if_it_loads(subparsers: Any, entry: Any) -> None:
    """Adds the subcommand of ``entry`` for the list of commands. A broken one must not hide the others."""
    try:
        entry.load()(subparsers)
    except Exception as exc:
        print(f"slackwater: the command {entry.name} cannot be loaded: {exc}", file=sys.stderr)


def complete_parser() -> argparse.ArgumentParser:
    """The parser with all commands of the installed distributions, for help and documentation."""
    parser, subparsers = _parser()
    _register(subparsers, [])
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit code."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    finally:
        flush_output()


def output_is_closed() -> bool:
    """Whether nobody reads the standard output any more, as after ``| head``: that is no error."""
    watched = select.poll()
    watched.register(sys.stdout, 0)
    return any(events & select.POLLERR for _, events in watched.poll(0))


def flush_output() -> None:
    """Writes what is buffered for the standard output; where nobody reads it, discards that."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    if arguments[:1] == ["--version"]:
        arguments = ["version"]
    try:
        parser, subparsers = _parser()
        _register(subparsers, arguments)
        args = parser.parse_args(arguments)
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as exc:
        if isinstance(exc, BrokenPipeError) and output_is_closed():
            return 0
        if debug:
            raise
        message = explained(exc) if isinstance(exc, ModuleNotFoundError) else ""
        message = message or " ".join(str(exc).split()) or type(exc).__name__
        print(f"slackwater: error: {message}", file=sys.stderr)
        return int(getattr(exc, "exit_code", 1))


if __name__ == "__main__":
    sys.exit(main())
