"""The `pip install` of each tutorial brings what its blocks import, run and configure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.docs.blocks import LANGUAGES, Block, blocks, commands
from tests.support.docs.extras import missing


def installs(block: Block) -> bool:
    return block.language == "sh" and any(words[:2] == ["pip", "install"] for words in commands(block))


TUTORIALS = sorted(
    {block.page for block in blocks("sh") if block.page.startswith("docs/tutorials/") and installs(block)}
)


def page(name: str, old: str = "", new: str = "") -> list[Block]:
    """The blocks of a page, with a text replaced that must be there."""
    given = [block for block in blocks(*LANGUAGES) if block.page == name]
    assert any(old in block.text for block in given), old
    return [replace(block, text=block.text.replace(old, new)) if old else block for block in given]


def test_the_tutorials_without_a_cluster_install_what_they_need() -> None:
    assert TUTORIALS == [
        "docs/tutorials/first-consumer.md",
        "docs/tutorials/first-pipeline.md",
        "docs/tutorials/first-table-of-changes.md",
    ]


@pytest.mark.parametrize("name", TUTORIALS)
def test_pip_brings_what_the_blocks_need(name: str) -> None:
    lacking = missing(page(name))
    assert not lacking, f"add to the pip install of {name}: {lacking}"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("'./worker[worker]' ./operator pytest", "./worker ./operator pytest", {"pyarrow"}),
        ("'./worker[worker]' ./operator pytest", "'./worker[worker]' ./operator", {"pytest"}),
        ("'./worker[worker]' ./operator pytest", "'./worker[worker]' pytest", {"slackwater-operator"}),
        ("engine: python", "engine: spark", {"pandas", "pyspark"}),
        ("sink: {path: out}", "sink: {format: delta, path: out}", {"deltalake"}),
        ("sink: {path: out}", "sink: {path: 's3://lake/out'}", {"obstore"}),
        ("sink: {path: out}", "sink: {format: postgres, table: public.orders}", {"psycopg"}),
        ("engine: python", "engine: python\n    value: {format: avro, schemaFile: /s.avsc}", {"fastavro"}),
        ("import pyarrow.dataset as d", "import pyspark", {"pyspark"}),
        ("import json", "import json, pandas", {"pandas"}),
    ],
)
def test_what_is_missing_is_named(old: str, new: str, expected: set[str]) -> None:
    lacking = missing(page("docs/tutorials/first-pipeline.md", old, new))
    assert set(lacking) == expected, lacking


def test_extras_bring_the_extras_that_they_contain() -> None:
    """Extra spark has extra worker, which has extra arrow."""
    old, new = "'./worker[worker]' ./operator pytest", "'./worker[spark]' ./operator pytest"
    assert missing(page("docs/tutorials/first-pipeline.md", old, new)) == {}
