"""The code blocks of README.md and docs/, and which of them no test runs.

A block with a title in its fence (```` ```python title="orders.py" ````) is a file of that name.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
LANGUAGES = ("sh", "python", "yaml")
_BLOCK = re.compile(r'^( *)```(\w+)(?: title="([^"]+)")?\n(.*?)^ *```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block: the page below the repository's root, the line of its fence, and its text without indent."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class NotRun(NamedTuple):
    """A block that no test runs: the beginning of its page's path below docs/, a part of its text, why."""

    page: str
    part: str
    reason: str


NOT_RUN = (
    NotRun("README.md", "make demo", "the demo and the tests have their own targets"),
    NotRun("tutorials/", "pip install", "installs packages; commands/test_packaging.py does"),
    NotRun("how-to/install/install.md", "pip install", "installs packages; commands/test_packaging.py does"),
    NotRun("reference/client.md", "pip install", "installs packages; commands/test_packaging.py does"),
    NotRun("reference/spark-source.md", "pip install", "installs packages; commands/test_packaging.py does"),
    NotRun(
        "how-to/install/install.md", "docker build", "no container engine; test_chart_images.py reads them"
    ),
    NotRun(
        "how-to/install/gitops.md", "obj.metadata", "operator/unit/policies/groups/test_argo_cd.py runs it"
    ),
    NotRun("how-to/install/gitops.md", "argocd.argoproj.io", "annotations of Argo CD's own"),
    NotRun("how-to/install/gitops.md", "kind: Kustomization", "a resource of Flux's own"),
    NotRun("tutorials/first-group.md", "docker build", "tests/node/test_node_tutorial.py runs it"),
    NotRun(
        "how-to/repair/backfill.md", "--master", "test_backfill_cluster.py runs it on a cluster of its own"
    ),
    NotRun(
        "how-to/repair/backfill.md", "--allow-overlap", "test_backfill_changes.py does, on a site of its own"
    ),
    NotRun("how-to/repair/backfill.md", "spark-submit", "needs Spark on Kubernetes; the page says so"),
    NotRun("how-to/pipeline/decode-values.md", "df.select", "a line for each engine, not a program"),
    NotRun("how-to/pipeline/run-locally.md", "Launch(", "commands/test_local_run_story.py makes the calls"),
    NotRun("how-to/pipeline/write-a-handler.md", "engine: spark", "three signatures, not a program"),
    NotRun("how-to/pipeline/write-a-handler.md", "batch.ranges", "a fragment without a result; compiled"),
    NotRun(
        "how-to/tables/write-a-sink.md",
        "class SqliteSink",
        "test_pipeline_custom_sink.py compares it with examples/",
    ),
    NotRun("how-to/tables/write-a-sink.md", "SinkContract", "test_sink_contract.py runs and compares it"),
    NotRun("how-to/tables/write-a-sink.md", "requests.post", "posts to a service; compiled"),
    NotRun(
        "how-to/tables/write-parquet-to-an-object-store.md",
        "pyarrow.dataset",
        "a line for each reader; compiled",
    ),
    NotRun("reference/sinks.md", "pyarrow.dataset", "a line for each reader; compiled"),
    NotRun(
        "reference/producer.md", "transactional_id", "the dev broker has none; test_transactions_brokers.py"
    ),
    NotRun("reference/client.md", "new.stand_by", "two processes; integration/takeover makes the calls"),
    NotRun("reference/worker.md", "schemaFile: FILE", "names every field, of which a file has some"),
    NotRun("reference/worker.md", "sparkFormat: orc", "names every field, of which a file has some"),
    NotRun(
        "how-to/install/uninstall.md", "kafka-consumer-groups.sh", "removes a finalizer by hand; Kafka's tool"
    ),
)


def blocks(*languages: str) -> list[Block]:
    """The blocks of README.md and docs/ (without docs/design) in these languages."""
    return [block for block in _all() if block.language in languages]


@cache
def _all() -> list[Block]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [block for page in pages if (ROOT / "docs" / "design") not in page.parents for block in _of(page)]


def commands(block: Block) -> list[list[str]]:
    """The commands of a block of shell, as words, without comments, variables and redirections."""
    lines = re.sub(r"\\\n", " ", block.text).splitlines()
    parted = [part for line in lines for part in re.split(r" \| | && ", line)]
    return [words for part in parted if (words := shlex.split(part, comments=True))]


def why_not_run(block: Block) -> str:
    """The declared reason why no test runs the block; "" if there is none."""
    page = block.page.removeprefix("docs/")
    return next((n.reason for n in NOT_RUN if page.startswith(n.page) and n.part in block.text), "")


def _of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        _, language, title, body = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, language, title or "", textwrap.dedent(body))
