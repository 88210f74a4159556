"""The kubectl plugin: `kubectl slackwater COMMAND` runs `kubectl-slackwater COMMAND`.

`kubectl_complete-slackwater` completes commands, options and names of groups.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from slackwater.cli import Parser, flush_output, output_is_closed
from slackwater.version import VERSION
from slackwater_operator.cli import explain
from slackwater_operator.cli.kubectl import actions, history, lag, logs, status, undo
from slackwater_operator.cli.kubectl.cluster import CommandError, connected
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeError

_COMPLETIONS_S = 2.0
_NO_FILES = ":4"
"""Ends the completions: no file names (cobra's ShellCompDirectiveNoFileComp)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code.

    Args:
        arguments: of the command line; None: the process's.
    """
    commands = parser()
    args = commands.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    try:
        if hasattr(args, "run_async"):
            return int(asyncio.run(args.run_async(args)))
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if output_is_closed():
            return 0
        raise
    except (CommandError, KubeError, KubeConfigError) as error:
        print(f"{commands.prog}: error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    finally:
        flush_output()


def parser() -> argparse.ArgumentParser:
    """The parser with all commands, for help and documentation."""
    return _parsers()[0]


def complete(arguments: Sequence[str] | None = None) -> int:
    """Prints what the last of the arguments may become, one a line, as kubectl asks plugins for it.

    Args:
        arguments: the words so far, the last of which is begun or empty; None: the process's.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    _, commands = _parsers()
    *before, begun = words
    command = next((word for word in before if word in commands), "")
    if begun.startswith("-"):
        candidates = _options(commands[command]) if command else ["--help", "--version"]
    elif not command:
        candidates = sorted(commands)
    else:
        candidates = _groups(before)
    for candidate in candidates:
        if candidate.startswith(begun):
            print(candidate)
    print(_NO_FILES)
    return 0


def _parsers() -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of its commands."""
    parser = Parser(prog="kubectl slackwater", description="Slackwater's consumer groups on Kubernetes.")
    parser.add_argument("--version", action="version", version=VERSION)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for each in (status, explain, lag, actions, undo, history, logs):
        each.register(subparsers)
    return parser, dict(subparsers.choices)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return sorted(
        option for action in parser._actions for option in action.option_strings if option[1] == "-"
    )


def _groups(words: Sequence[str]) -> list[str]:
    """The names of the groups in the namespace that the words so far name; none where they cannot be had."""
    place = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    place.add_argument("-n", "--namespace", default="")
    place.add_argument("--context", default="")
    try:
        args, rest = place.parse_known_args(list(words))
        if len([word for word in rest if not word.startswith("-")]) > 1:
            return []  # the group is there already
        return asyncio.run(_names(args))
    except (argparse.ArgumentError, KubeError, KubeConfigError, TimeoutError):
        return []


async def _names(args: argparse.Namespace) -> list[str]:
    async with asyncio.timeout(_COMPLETIONS_S), connected(args) as cluster:
        return sorted(str(group["metadata"]["name"]) for group in await cluster.names(cluster.namespace))


if __name__ == "__main__":
    sys.exit(main())
