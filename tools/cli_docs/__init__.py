"""docs/reference/cli.md, written from the argument parsers of the commands; a test holds the page to them."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from slackwater import cli
from slackwater_operator.cli import operator_options
from slackwater_operator.cli.kubectl import plugin

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
HEAD = """\
# Command line

`python -m tools.cli_docs` writes this page from the programs' own parsers. `slackwater` is part of the
distribution `slackwater`; its commands `local`, `explain` and `demo`, `kubectl slackwater` and
`slackwater-operator` are part of `slackwater-operator`. Every command has `--help`.

Exit codes of all commands: 0, 1 for an error, 2 for wrong arguments or input, 130 after Ctrl-C.
[A worker's exit codes](worker.md#exit-codes) are its own.
"""


def render() -> str:
    """The whole page."""
    programs = (cli.complete_parser(), plugin.parser(), operator_options.parser({}))
    return (
        "\n".join([HEAD, *(part for program in programs for part in _program(program))]).rstrip("\n") + "\n"
    )


def write() -> None:
    """Brings the page up to date."""
    PAGE.write_text(render(), encoding="utf-8")


def _program(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {parser.prog}\n"
    yield from _body(parser)
    for command, summary in _commands(parser):
        yield f"### {command.prog}\n"
        yield from _body(command, summary)
        for nested, nested_summary in _commands(command):
            yield f"#### {nested.prog}\n"
            yield from _body(nested, nested_summary)


def _body(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[str]:
    text = parser.description or summary
    if text:
        yield _sentence(text) + "\n"
    rows = list(_rows(parser))
    if rows:
        yield "\n".join(["| argument | |", "|---|---|", *rows]) + "\n"


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        must = " (required)" if action.option_strings and action.required else ""
        cells = (f"`{_name(action)}`{must}", _help(parser, action))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _name(action: argparse.Action) -> str:
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    elif isinstance(action.metavar, tuple):
        value = " ".join(action.metavar)
    else:
        value = action.metavar or action.dest.upper()
    if not action.option_strings:
        return value
    takes = "" if action.nargs == 0 else f" {value}"
    return ", ".join(action.option_strings) + takes


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return " ".join(text.split())


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name in sorted(action.choices):
                yield action.choices[name], summaries.get(name, "")


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    text = text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
