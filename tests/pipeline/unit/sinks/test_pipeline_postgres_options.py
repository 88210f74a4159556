"""The settings of a PostgreSQL sink that are refused before it connects."""

from __future__ import annotations

import sys

import pytest

from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.runtime.errors import ConfigError


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"sink\.format: .* pip install 'slackwater\[postgres\]'"):
        PostgresSink("g", "public.flights")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("flights", "give SCHEMA.TABLE"),
        ("a.b.c", "give SCHEMA.TABLE"),
        (".b", "give SCHEMA.TABLE"),
        ("public.a\0b", "has a NUL character"),
        ("public." + "ü" * 32, "is 64 bytes long; PostgreSQL's limit is 63"),
        ("public.slackwater_marks", "is the sink's own"),
    ],
)
def test_names_that_cannot_be_used_are_refused(table: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"sink.table: .*{problem}"):
        PostgresSink("g", table)


def test_a_parameter_that_libpq_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match='sink.options: .* invalid connection option "hots"'):
        PostgresSink("g", "public.flights", options={"hots": "x"})
