"""Names and connections of the conformance tests, fresh for each test; and which row runs on which broker."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka.wire.schema import Request
from tests.conformance.brokers import FIXTURES, OLD, OLDEST, RANGES, chosen, lacks, missing
from tests.conformance.differences import DIFFERENCES
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.parts import OF_BROKERS
from tests.support.wire.rawclient import RawClient

_NUMBERS = itertools.count(1)
ROW, OUTCOME = "conformance-row", "conformance-outcome"
"""Properties of a test's report: `row@broker`; whether the row `runs` there, `differs`, or is `absent`."""


@pytest.fixture(scope="session", params=list(FIXTURES))
def broker(request: pytest.FixtureRequest) -> KafkaCluster | DevBroker:
    """Each row runs against every broker."""
    return chosen(request)


@pytest.fixture
def broker_name(request: pytest.FixtureRequest) -> str:
    """The name of the broker under test."""
    name = broker_of(request.node)
    assert name is not None
    return name


@pytest.fixture
def name() -> str:
    """A name that no other test uses: for groups and topics."""
    return f"c-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def bootstrap(broker: KafkaCluster | DevBroker) -> str:
    """The address of the broker under test."""
    return broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    """A connection of the test's own."""
    with RawClient.to(bootstrap) as connection:
        yield connection


# --- which row runs where ------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rows on real brokers need these. Most rows meet an old broker only when the long tests run."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in (item for item in items if str(item.path).startswith(here)):
        if (broker := broker_of(item)) is None or broker == "devbroker":
            continue
        item.add_marker(pytest.mark.parts(*OF_BROKERS[broker]))
        if broker in OLD:
            item.add_marker(pytest.mark.xdist_group(FIXTURES[broker]))
            if not (broker == OLDEST and _is_for_the_gate(item)):
                item.add_marker(pytest.mark.long)


def _is_for_the_gate(item: pytest.Item) -> bool:
    """Whether the oldest broker meets the row in `make verify`: of each call, its newest version there."""
    if item.get_closest_marker("on_old_brokers") is None:
        return False
    assert isinstance(item, pytest.Function)
    return all(version == RANGES[OLDEST][message][1] for message, version in needed_by(item))


def broker_of(item: pytest.Item) -> str | None:
    """The broker that a test is about, by its parameters; None: it is none of these tests."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    broker = str(params.get("broker", params.get("target", params.get("move"))))
    return next((name for name in FIXTURES if broker.startswith(name)), None)


def row_of(item: pytest.Function) -> str:
    """The test's name with its parameters, but for the broker."""
    left = item.callspec.id.replace(broker_of(item) or "", "").strip("-").replace("--", "-")
    left = re.sub("-(stop|move|kill)$", "", left) if "move" in item.callspec.params else left
    return f"{item.originalname}[{left}]" if left else item.originalname


def needed_by(item: pytest.Function) -> list[tuple[type[Request[Any]], int]]:
    """The versions that a row is about."""
    own = item.callspec.params.get("version", 0)
    needed = []
    for mark in item.iter_markers("needs"):
        message, version = mark.args
        needed.append((message, int(str(own)) if version is None else version))
    return needed


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Holds a row to what is declared for its broker."""
    broker = broker_of(pyfuncitem)
    if broker is None:
        return (yield)
    absent = missing(broker, needed_by(pyfuncitem))
    differs = DIFFERENCES.get((broker, row_of(pyfuncitem)))
    outcome = "absent" if absent else "differs" if differs else "runs"
    pyfuncitem.user_properties += [(ROW, f"{row_of(pyfuncitem)}@{broker}"), (OUTCOME, outcome)]
    if absent:
        pyfuncitem.obj = lambda **_: None
    try:
        result = yield
    except Exception as exc:
        if not differs or not re.search(differs.answers, str(exc)):
            raise
        return True
    assert not differs, f"{broker} answers as the others do; it is declared otherwise: {differs}"
    if absent:
        assert lacks(pyfuncitem._request.getfixturevalue("bootstrap"), *absent)
    return result
