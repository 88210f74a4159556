"""Every code block of README.md and docs/ is run by a test, or its reason not to be is declared."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater import cli
from slackwater.runtime.config import worker_config
from slackwater_operator.api.v1alpha1.consumer_group import parse
from slackwater_operator.cli.kubectl import plugin
from tests.support.docs.blocks import LANGUAGES, NOT_RUN, ROOT, Block, blocks, commands, why_not_run
from tests.support.docs.scripts import SCRIPTS

CLUSTER = ("kubectl", "helm")
PROGRAMS = {"kubectl", "helm", "slackwater", "curl", "make", "REGISTRY=registry.example"}
GROUP = """
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {name: flights}
spec:
  kafka: {bootstrapServers: "kafka.kafka.svc:9092"}
  topics: [flights]
  pipeline: {handler: "flights.pipeline:transform", image: i, sink: {path: /data}, deadLetterTopic: dlq}
  replicas: 1
"""


def of_a_cluster(block: Block) -> bool:
    return any(words[0] in CLUSTER for words in commands(block))


@pytest.mark.parametrize("block", blocks(*LANGUAGES), ids=str)
def test_each_block_is_run_or_says_why_not(block: Block) -> None:
    if reason := why_not_run(block):
        print(f"{block} is not run: {reason}")
        return
    if block.language == "sh":
        assert of_a_cluster(block) or block.page in SCRIPTS, "add the page to SCRIPTS, or a reason to NOT_RUN"


def test_each_reason_is_about_a_block() -> None:
    known = blocks(*LANGUAGES)
    for beginning, part, _ in NOT_RUN:
        pages = [b for b in known if b.page.removeprefix("docs/").startswith(beginning) and part in b.text]
        assert pages, f"no block has {part!r} in {beginning}"


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    if "engine: spark\n" not in block.text:
        compile(block.text, str(block), "exec", flags=0x2000)  # top-level await


@pytest.mark.parametrize(
    "block", [b for b in blocks("sh") if of_a_cluster(b) and not why_not_run(b)], ids=str
)
def test_commands_for_a_cluster_have_known_options(block: Block) -> None:
    for words in commands(block):
        if words[:2] == ["kubectl", "slackwater"]:
            accepted(plugin.parser(), words[2:])
        elif words[0] == "helm" and words[1] in ("install", "upgrade"):
            assert words[2:4] == ["slackwater", "charts/slackwater"]
        elif words[0] == "kubectl" and words[1] in ("annotate", "patch", "delete", "get", "wait", "events"):
            assert re.search(r"\b(cg|crd|validatingwebhookconfiguration)\b", " ".join(words)), words
        else:
            assert words[0] in PROGRAMS, words


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_of_slackwater_have_known_options(block: Block) -> None:
    for words in commands(block):
        if words[0].endswith("slackwater") and words[0] != "make":
            accepted(cli.complete_parser(), [word for word in words[1:] if word not in ("&",)])


def accepted(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Parses the words up to a redirection; fails if the parser refuses them."""
    ends = [i for i, word in enumerate(words) if word in (">", "2>", "<", ">", "2>&1", "&", ";")]
    try:
        parser.parse_args(words[: min(ends, default=len(words))])
    except SystemExit as exit_:
        if exit_.code:
            pytest.fail(f"the parser refuses {words}")


def documents(block: Block) -> list[Any]:
    """The YAML documents of a block; each line of a list of examples is one."""
    lines = block.text.splitlines()
    if len(re.findall(r"^sink: \{", block.text, re.MULTILINE)) > 1:
        return [yaml.safe_load(line) for line in lines]
    return list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", [b for b in blocks("yaml") if not why_not_run(b)], ids=str)
def test_yaml_is_accepted_by_what_reads_it(block: Block) -> None:
    for document in documents(block):
        if document.get("kind") in ("ScaledObject", "HorizontalPodAutoscaler"):
            continue  # tests/e2e/operations/test_keda.py and test_hpa.py apply them
        if document.get("kind") == "ConsumerGroup":
            parse(document)
        elif block.page in ("docs/reference/worker.md", "docs/explanation/takeover.md"):
            worker_section(document)
        else:
            parse(merged(document))


def merged(fragment: dict[str, Any]) -> dict[str, Any]:
    """A ConsumerGroup with the fragment of a spec, or of spec.pipeline."""
    group = yaml.safe_load(GROUP)
    spec = group["spec"]
    for key, value in fragment.get("spec", fragment).items():
        if key in ("sink", "key", "value"):
            spec["pipeline"][key] = value
        elif key == "pipeline":
            spec["pipeline"].update(value)
        else:
            spec[key] = value
    if "scaling" in fragment:
        del spec["replicas"]
    if spec["pipeline"]["sink"].get("format") == "custom":
        spec["pipeline"]["handlerPath"] = ["/app"]
    return dict(group)


def worker_section(fragment: dict[str, Any]) -> None:
    """Checks a worker's configuration, or one of its sections."""
    whole = {
        "groupId": "flights",
        "topics": ["flights"],
        "bootstrapServers": "kafka:9092",
        "handler": "flights.pipeline:transform",
        "sink": {"format": "parquet", "path": "/data"},
    }
    worker_config.parse({**whole, **fragment})


def test_the_files_of_the_tutorials_are_named_once() -> None:
    for page in SCRIPTS:
        titles = [block.title for block in blocks("python", "yaml", "dockerfile") if block.page == page]
        named = [title for title in titles if title]
        assert len(named) == len(set(named))


def test_a_block_without_a_test_is_noticed(tmp_path: Path) -> None:
    unknown = Block("docs/how-to/new.md", 1, "sh", "", "echo new\n")
    assert not why_not_run(unknown)
    with pytest.raises(AssertionError, match="add the page to SCRIPTS"):
        test_each_block_is_run_or_says_why_not(unknown)
    assert (ROOT / "docs").is_dir()
