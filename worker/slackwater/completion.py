"""Scripts that complete a command line in a shell, made of its parser by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slackwater.extras import CLI

SHELLS = ("bash", "fish", "zsh")

_NOTHING = "{ true }"
"""For zsh: completes a positional argument to nothing. Without an action zsh offers no options either."""


def register(subparsers: Any, program: str, complete_parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``completion``.

    Args:
        subparsers: of the program's parser.
        program: its name on a command line.
        complete_parser: makes the parser with all commands; called when the script is asked for.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "completion",
        help="print a script that completes this command in a shell",
        description="Prints a script, which a shell's start-up file reads: "
        f'eval "$({program} completion bash)", for zsh the same after compinit, for fish '
        f"{program} completion fish | source.",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="bash|fish|zsh")

    def run(args: argparse.Namespace) -> int:
        print(script(complete_parser(), args.shell))
        return 0

    parser.set_defaults(run=run)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for ``bash``, ``fish`` or ``zsh``. Raises ConfigError where shtab is not installed."""
    from slackwater.runtime.errors import ConfigError

    try:
        import shtab
    except ModuleNotFoundError as exc:
        raise ConfigError(CLI.lacks("completion", "shtab")) from exc
    for action in _actions(parser):
        if action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif shell == "zsh" and not action.option_strings and action.choices is None:
            action.complete = {shell: _NOTHING}  # type: ignore[attr-defined]
    made: str = shtab.complete(parser, shell)
    return made


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in dict.fromkeys(action.choices.values()):
                yield from _actions(subparser)
        else:
            yield action
