"""Scripts that complete a command line in a shell, made of its parser by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from slackwater.extras import CLI
from slackwater.runtime.errors import ConfigError

_NOTHING = "{ true }"
"""For zsh: completes a positional argument to nothing. Without an action zsh offers no options either."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for ``bash``, ``fish`` or ``zsh``. Raises ConfigError where shtab is not installed."""
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
