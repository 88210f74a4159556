"""What a page's `pip install` brings, and what the page's blocks need, as names of distributions.

Known are what pip is told and the requirements and extras of this repository's distributions, not what others
require. Blocks for a cluster need nothing here: there the code is in an image.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

import yaml

from slackwater import extras
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from tests.support.docs.blocks import ROOT, Block, commands

_OURS = {"worker": "slackwater", "operator": "slackwater-operator"}
"""Folder -> its distribution."""
_MODULES = {"slackwater.spark": extras.SPARK, "slackwater.testing": extras.WORKER}
"""Modules of Slackwater that need more than the client."""
_SINKS = {"delta": extras.DELTA, "iceberg": extras.ICEBERG, "postgres": extras.POSTGRES}
_VALUES = {"avro": extras.AVRO, "protobuf": extras.PROTOBUF}


@dataclass(frozen=True)
class Need:
    """A distribution, and the part of the page that needs it."""

    distribution: str
    part: str


def missing(page: Iterable[Block]) -> dict[str, set[str]]:
    """What the blocks of a page need and its `pip install` does not bring: distribution -> the parts."""
    given = list(page)
    brought = {name for block in given if block.language == "sh" for name in _brought(block)}
    lacking: dict[str, set[str]] = {}
    for need in _needs(given):
        if need.distribution not in brought:
            lacking.setdefault(need.distribution, set()).add(need.part)
    return lacking


# ---- what pip brings


def _brought(block: Block) -> Iterator[str]:
    for words in commands(block):
        if words[:2] == ["pip", "install"]:
            for word in words[2:]:
                yield from _with_requirements(word)


def _with_requirements(requirement: str) -> set[str]:
    """A requirement, or a folder of this repository, with what it requires."""
    match = re.match(r"(\./)?([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
    assert match, requirement
    local, name, wanted = match.groups()
    distribution = _OURS[name] if local else _name(name)
    names = {distribution}
    if project := _projects().get(distribution):
        further = list(project["dependencies"])
        for extra in (wanted or "").split(",") if wanted else ():
            further += project["optional-dependencies"][extra]
        for requirement in further:
            names |= _with_requirements(requirement)
    return names


@cache
def _projects() -> dict[str, dict[str, Any]]:
    """The metadata of this repository's distributions by name."""
    texts = [(ROOT / folder / "pyproject.toml").read_text(encoding="utf-8") for folder in _OURS]
    return {project["name"]: project for text in texts for project in [tomllib.loads(text)["project"]]}


@cache
def distributions_of_modules() -> Mapping[str, list[str]]:
    """The distributions that each top-level module here belongs to."""
    return packages_distributions()


def _name(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


# ---- what the blocks need


def _needs(page: list[Block]) -> Iterator[Need]:
    files = {block.title: block for block in page if block.title}
    for block in page:
        if block.language == "python":
            yield from _of_python(block.text, files, str(block))
        elif block.language == "sh":
            for words in commands(block):
                yield from _of_command(words, files, str(block))


def _of_command(words: list[str], files: dict[str, Block], where: str) -> Iterator[Need]:
    if words[:2] == ["python", "-c"]:
        yield from _of_python(words[2], files, where)
    elif words[:2] == ["python", "-m"] and words[2] not in sys.stdlib_module_names:
        yield from _of_module(words[2], where)
    elif words[0] == "slackwater":
        if words[1] in _projects()["slackwater-operator"]["entry-points"]["slackwater.commands"]:
            yield Need("slackwater-operator", f"{where}: slackwater {words[1]}")
        if "-f" in words:
            yield from _of_group(files[words[words.index("-f") + 1]])


def _of_python(code: str, files: dict[str, Block], where: str) -> Iterator[Need]:
    for node in ast.walk(ast.parse(code)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        for module in modules:
            if f"{module}.py" not in files and module.partition(".")[0] not in sys.stdlib_module_names:
                yield from _of_module(module, where)


def _of_module(module: str, where: str) -> Iterator[Need]:
    top = module.partition(".")[0]
    part = f"{where}: {module}"
    if top in ("slackwater", "slackwater_operator"):
        yield Need(_name(top), part)
        for beginning, extra in _MODULES.items():
            if f"{module}.".startswith(f"{beginning}."):
                yield from _of_extra(extra, part)
        return
    distributions = distributions_of_modules().get(top)
    assert distributions, f"{part} is not installed here"
    yield Need(_name(distributions[0]), part)


def _of_extra(extra: extras.Extra, part: str) -> Iterator[Need]:
    for name in _with_requirements(extra.requirement):
        yield Need(name, f"{part}: {extra.requirement}")


def _of_group(block: Block) -> Iterator[Need]:
    """A ConsumerGroup that runs on this machine."""
    group: ConsumerGroup = parse(yaml.safe_load(block.text))
    pipeline = group.spec.pipeline
    yield Need("slackwater-operator", f"{block}: kind ConsumerGroup")
    engine = extras.SPARK if pipeline.engine == "spark" else extras.WORKER
    yield from _of_extra(engine, f"{block}: engine {pipeline.engine}")
    sink = pipeline.sink
    if sink.format in _SINKS:
        yield from _of_extra(_SINKS[sink.format], f"{block}: sink {sink.format}")
    elif sink.format == "parquet" and "://" in sink.path:
        yield from _of_extra(extras.OBJECT_STORES, f"{block}: sink {sink.path}")
    if pipeline.value is not None and pipeline.value.format in _VALUES:
        yield from _of_extra(_VALUES[pipeline.value.format], f"{block}: value {pipeline.value.format}")
