"""docs/reference/cli.md is what the argument parsers say."""

from __future__ import annotations

from tools.cli_docs import PAGE, render


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tools.cli_docs`"


def test_every_program_and_command_has_a_heading() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for heading in (
        "## slackwater\n",
        "### slackwater lag",
        "#### slackwater local run",
        "### kubectl slackwater logs",
    ):
        assert heading in page
    assert "| `-f, --file FILE` (required) |" in page
