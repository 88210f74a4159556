"""The Python blocks of README.md and docs/ run, on the dev broker where they read or write."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import KafkaProducer
from tests.support.devbroker import DevBroker
from tests.support.docs.blocks import blocks, why_not_run
from tests.support.docs.preludes import PRELUDES, Enough, Prelude

ADDRESSES = ("localhost:9092", "kafka:9092", "kafka.kafka.svc:9092")
PAGES = sorted({block.page for block in blocks("python") if not block.title and not why_not_run(block)})


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with DevBroker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for topic in ("flights", "orders"):
                producer.send(topic, b'{"carrier": "UA", "delay": 1.5}').get(10)
        yield broker.bootstrap


def marked(page: str) -> Any:
    spark = page in PRELUDES and PRELUDES[page].spark
    return pytest.param(page, id=page, marks=[pytest.mark.parts("spark"), pytest.mark.long] if spark else [])


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
async def test_the_blocks_run(
    page: str, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    prelude = PRELUDES[page]
    namespace: dict[str, Any] = {"bootstrap": bootstrap, "tmp_path": tmp_path, "Enough": Enough}
    await run(prelude.before, namespace, Prelude(), "the prelude")
    ended = 0
    for block in blocks("python"):
        if block.page != page or why_not_run(block):
            continue
        text = block.text
        for address in ADDRESSES:
            text = text.replace(f'"{address}"', repr(bootstrap))
        try:
            await run(text.replace("/reference/", f"{tmp_path}/"), namespace, prelude, str(block))
        except Enough:
            ended += 1
    assert ended == prelude.endless
    await run(prelude.after, namespace, Prelude(), "what is checked after the blocks")


async def run(text: str, namespace: dict[str, Any], prelude: Prelude, name: str) -> None:
    """Runs the text as the body of a coroutine function would run, in this namespace."""
    tree = ast.parse(text, name)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            node.names = [alias for alias in node.names if alias.name not in prelude.keeps]
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom) or node.names]
    code = compile(tree, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, namespace)
    if inspect.iscoroutine(result):
        await result


def test_every_prelude_is_of_a_page_with_blocks() -> None:
    assert sorted(PRELUDES) == PAGES
