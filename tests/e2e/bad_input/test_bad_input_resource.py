"""A resource or a configuration that cannot be used: one line, at once, and nothing has been started."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.commands import run
from tests.support.workers.local_run_site import LocalRunSite

FAULTS = [
    ("unknown field", "  replicas: 1", "  replica: 1", r"group\.yaml:13: spec\.replica: unknown field; did"),
    ("wrong type", "replicas: 1", "replicas: many", r"group\.yaml:13: spec\.replicas: .*whole number"),
    ("text for a list", "topics: [", "topics: x #[", r"group\.yaml:8: spec\.topics: .*list"),
    ("number for a text", '"10000"', "10000", r"spec\.kafka\.properties\[session\.timeout\.ms\].*text"),
    ("no handler", "    handler: handlers:keep\n", "", r"yaml:9: spec\.pipeline\.handler: is missing"),
    ("handler is no function", "handlers:keep", "keep", r"handler: .*flights\.pipeline:transform"),
    ("unknown engine", "engine: arrow", "engine: pandas", r"spec\.pipeline\.engine: .*spark.*arrow"),
    ("no YAML", "spec:", "spec: [", r"group\.yaml:\d+: is not YAML"),
    ("a tab", "spec:\n", "spec:\n\tx: 1\n", r"group\.yaml:\d+: is not YAML"),
    ("time", "engine: arrow", "handlerTimeout: soon", r"spec\.pipeline\.handlerTimeout: .*duration.*90s"),
    ("time too long", "engine: arrow", "handlerTimeout: 1h", r"handlerTimeout: .*max\.poll\.interval\.ms"),
    ("session", '"10000"', '"10"', r"session\.timeout\.ms\]: is 10, but brokers accept 6000 to 1800000"),
]  # fmt: skip


SHOWN = ("unknown field",)
"""By a process of its own each time; what `parse` says of the others is in tests/operator/unit/api."""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param(*fault[1:], id=fault[0], marks=[] if fault[0] in SHOWN else pytest.mark.long)
        for fault in FAULTS
    ],
)
def test_local_run_reports_an_invalid_resource(tmp_path: Path, old: str, new: str, words: str) -> None:
    site = LocalRunSite("127.0.0.1:1", tmp_path)
    site.change(old, new)
    ended = run(*site.arguments())
    assert ended.code == 2, ended
    assert ended.stderr.count("\n") == 1, ended
    assert re.search(words, ended.error), ended
    assert not site.work.exists()
    assert not site.out.exists()


@pytest.mark.long
def test_local_run_reports_a_missing_resource_file(tmp_path: Path) -> None:
    ended = run("local", "run", "-f", tmp_path / "nowhere.yaml")
    assert ended.code == 2, ended
    assert ended.stderr.count("\n") == 1, ended
    assert "nowhere.yaml: cannot be read: No such file" in ended.error


WORKER_FAULTS = [
    ("unknown field", {"topic": "x"}, r"worker\.json: topic: unknown field.*topics"),
    ("wrong type", {"drainTimeoutMs": "soon"}, r"worker\.json: drainTimeoutMs: must be a whole number"),
    ("empty handler", {"handler": ""}, r"worker\.json: handler: '' has an invalid format"),
    ("unknown property", {"properties": {"sesion.timeout.ms": "1"}}, r"properties: unknown property"),
]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(*fault[1:], id=fault[0], marks=[] if fault[0] in SHOWN else pytest.mark.long)
        for fault in WORKER_FAULTS
    ],
)
def test_a_worker_reports_an_invalid_configuration(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    config = worker_config(tmp_path, "127.0.0.1:1")
    ended = run(
        "worker",
        "--config",
        written(tmp_path, {**config, **changes}),
        environment={"SLACKWATER_INSTANCE_ID": "w-0"},
    )
    assert ended.code == 2, ended
    assert re.search(words, ended.error), ended
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def worker_config(folder: Path, bootstrap: str) -> dict[str, object]:
    """A worker's configuration, correct but for what its test changes."""
    return {
        "groupId": "g",
        "topics": ["t"],
        "bootstrapServers": bootstrap,
        "handler": "handlers:keep",
        "handlerPath": [str(folder)],
        "engine": "arrow",
        "sink": {"format": "parquet", "path": str(folder / "out")},
        "startTimeoutMs": 1000,
    }


def written(folder: Path, config: dict[str, object]) -> Path:
    """``config`` as a file."""
    path = folder / "worker.json"
    path.write_text(json.dumps(config))
    return path
