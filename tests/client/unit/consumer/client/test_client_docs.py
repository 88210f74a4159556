"""docs/reference/client.md says what the code says: its generated parts are complete and current."""

from __future__ import annotations

import re
from dataclasses import fields

from slackwater.kafka import errors
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.net.security import options as security_options
from slackwater.kafka.protocol.diagnostics import FindingKind
from slackwater.kafka.protocol.membership.states import TRANSITIONS, Event, State
from slackwater.kafka.protocol.subscription import MOVES, FetchState
from tools.client_docs import PAGE, PAGES, PARTS, fetch_picture, membership_picture, render
from tools.client_docs.described import DESCRIBED, SECURITY


def test_the_pages_are_up_to_date() -> None:
    parts = []
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        assert render(page) == page, "run `python -m tools.client_docs`"
        parts += re.findall(r"<!-- generated: ([a-z -]+) -->", page)
    assert sorted(parts) == sorted(PARTS)


def test_every_option_is_described() -> None:
    assert {field.name for field in fields(ConsumerConfig)} - {"security"} == set(DESCRIBED)
    assert set(security_options.OPTIONS) == set(SECURITY)


def test_the_diagrams_have_every_state_and_every_transition() -> None:
    drawn = membership_picture()
    moves = {(s.name, e.name, to.name) for s, row in TRANSITIONS.items() for e, to in row.items()}
    drawn_moves = set()
    for state, following, events in re.findall(r"^    (\w+) --> (\w+) : (.+)$", drawn, re.MULTILINE):
        drawn_moves |= {(state, event, following) for event in events.split(", ")}
    assert drawn_moves == moves
    assert {state.name for state in State} | {event.name for event in Event} <= set(re.findall(r"\w+", drawn))
    steps = set(re.findall(r"^    (\w+) --> (\w+)$", fetch_picture(), re.MULTILINE))
    assert steps == {(state.name, to.name) for state, row in MOVES.items() for to in row}
    assert {state.name for state in FetchState} <= {name for step in steps for name in step}


def test_every_diagnostic_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([a-z-]+)` \|", page[page.index("## Diagnostics") :], re.MULTILINE))
    assert explained == {kind.value for kind in FindingKind}


def test_every_error_that_the_page_names_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page[page.index("## Errors, and what to do") : page.index("## States")]
    named = set(re.findall(r"`(\w+(?:Error|Available))`", table))
    assert len(named) > 15
    assert {name for name in named if not hasattr(errors, name)} == set()
