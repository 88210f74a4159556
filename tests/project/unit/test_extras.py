"""The extras of `slackwater`: the errors name those that exist, and they install what the errors ask for."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from slackwater import cli, extras
from slackwater.extras import Extra, NotInstalledError
from slackwater.kafka.records import BatchBuilder, decode
from slackwater.pipeline import make_engine
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError
from slackwater_operator.demo.source import DEMO
from tests.support.docs.extras import distributions_of_modules

ROOT = Path(__file__).parents[3]


def declared(folder: str) -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    return {"": project["dependencies"], **optional}


def installed_by(folder: str, extra: str) -> set[str]:
    """Names of the distributions that an extra, with those that it names, installs."""
    names: set[str] = set()
    for requirement in declared(folder)[extra]:
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[([a-z0-9,-]+)\])?", requirement)
        assert match is not None
        if match[1] == "slackwater":
            for inner in (match[2] or "").split(","):
                names |= installed_by("worker", inner)
        else:
            names.add(match[1].lower())
    return names


HERE = [extra for extra in (*extras.ALL, DEMO) if extra is not extras.GLUE]
"""boto3 does not go with this environment's python-dateutil: tests/support/iceberg/glue.py."""


@pytest.mark.parametrize("extra", HERE, ids=lambda extra: extra.requirement)
def test_an_extra_installs_the_modules_that_its_part_needs(extra: Extra) -> None:
    assert extra.problem("x") == "", "this environment has everything"
    distribution, _, name = extra.requirement.removesuffix("]").partition("[")
    folder = {"slackwater": "worker", "slackwater-operator": "operator"}[distribution]
    wanted = installed_by(folder, name) | installed_by(folder, "")
    owners = distributions_of_modules()
    for module in extra.modules:
        top = module.partition(".")[0]
        assert {owner.lower().replace("_", "-") for owner in owners[top]} & (wanted | {"sqlalchemy"}), module


def test_every_extra_has_an_error() -> None:
    named = {extra.requirement.removeprefix("slackwater[").removesuffix("]") for extra in extras.ALL}
    assert named == set(declared("worker")) - {""}


def test_an_error_names_the_packages_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("yaml", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert extras.CLI.problem("a file") == (
        "a file needs yaml, which is not installed: pip install 'slackwater[cli]'"
    )
    with pytest.raises(NotInstalledError) as raised:
        extras.SPARK.require("the engine")
    assert str(raised.value) == (
        "the engine needs pyarrow and yaml, which are not installed: pip install 'slackwater[spark]'"
    )
    assert extras.AVRO.problem("avro") == ""
    nowhere = Extra("x[y]", ("nowhere.at.all",))
    assert nowhere.problem("it") == "it needs nowhere.at.all, which is not installed: pip install 'x[y]'"


def test_arrow_is_asked_for_by_who_wants_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = BatchBuilder("none", 1000)
    builder.append(0, None, b"value")
    columns = decode(builder.build(base_offset=0), fetch_offset=0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "slackwater.kafka.records.arrow", raising=False)
    assert [record.value for record in columns.records("t", 0)] == [b"value"]
    with pytest.raises(NotInstalledError, match=re.escape("pip install 'slackwater[arrow]'")):
        columns.to_arrow("t", 0)


def test_engine_spark_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(
        {
            "groupId": "g",
            "topics": ["t"],
            "bootstrapServers": "h:1",
            "handler": "m:f",
            "engine": "spark",
            "sink": {"format": "parquet", "path": "out"},
        }
    )
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigError) as raised:
        make_engine(config)
    assert raised.value.field == "engine"
    assert extras.SPARK.requirement in raised.value.problem


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("pyarrow", "slackwater[arrow]"),
        ("yaml", "slackwater[cli]"),
        ("prometheus_client", "slackwater[worker]"),
        ("opentelemetry", "slackwater[otel]"),
        ("pyspark.sql", "slackwater[spark]"),
        ("nobody", "No module named 'nobody'"),
    ],
)
def test_a_command_says_what_to_install(
    missing: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: object) -> int:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(cli, "_version", run)
    assert cli.main(["version"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
