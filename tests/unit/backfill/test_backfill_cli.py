"""The command line of ``slackwater backfill``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slackwater import cli
from slackwater.backfill import run as backfill_run
from slackwater.backfill.run import Counts, Options
from slackwater.runtime.config.worker_config import WorkerConfig

CONFIG = """
groupId: orders
bootstrapServers: kafka:9092
topics: [orders]
handler: orders:transform
sink: {format: parquet, path: /data}
"""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[WorkerConfig, WorkerConfig, Options]]:
    """What the command has passed on."""
    calls: list[tuple[WorkerConfig, WorkerConfig, Options]] = []

    def backfill(
        config: WorkerConfig, live: WorkerConfig, options: Options, say: Any, *, progress: Any
    ) -> Counts:
        calls.append((config, live, options))
        say("a line")
        return Counts(batches=2, rows=5, letters=1)

    monkeypatch.setattr(backfill_run, "backfill", backfill)
    return calls


def backfill(tmp_path: Path, *arguments: str) -> int:
    file = tmp_path / "worker.yaml"
    file.write_text(CONFIG)
    return cli.main(["backfill", "--config", str(file), *arguments])


def test_all_options(tmp_path: Path, given: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    code = backfill(
        tmp_path, "--from", "orders:0:5", "--from", "orders:1:6", "--to", "latest", "--sink", "path=/old",
        "--handler", "orders:other", "--remote", "sc://spark:15002", "--name", "x", "--batch-rows", "7",
        "--tasks", "3", "--dead-letters", "none", "--allow-overlap", "--dry-run",
    )  # fmt: skip
    ((config, live, options),) = given
    assert code == 0
    assert capsys.readouterr().out.splitlines() == ["a line", "batches: 2, rows: 5, dead letters: 1"]
    assert (config.sink.path, live.sink.path) == ("/old", "/data")
    assert (config.handler, config.spark.remote) == ("orders:other", "sc://spark:15002")
    assert [bound.text for bound in options.begins] == ["orders:0:5", "orders:1:6"]
    assert [bound.text for bound in options.ends] == ["latest"]
    assert (options.name, options.batch_rows, options.tasks) == ("x", 7, 3)
    assert (options.dead_letters, options.allow_overlap, options.dry_run) == ("none", True, True)


def test_defaults(tmp_path: Path, given: list[Any]) -> None:
    assert backfill(tmp_path, "--from", "earliest") == 0
    ((config, live, options),) = given
    assert (config, options.name, options.tasks, options.ends) == (live, "", 0, [])
    assert (options.dead_letters, options.allow_overlap, options.dry_run) == ("topic", False, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: --from"),
        (["--from", "orders:0:"], "argument --from: 'orders:0:' has a partition and no offset"),
        (["--from", "earliest", "--name", "a b"], "argument --name: must be letters, digits"),
        (
            ["--from", "earliest", "--batch-rows", "0"],
            "argument --batch-rows: must be a whole number from 1",
        ),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        backfill(tmp_path, *arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_sink_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert backfill(tmp_path, "--from", "earliest", "--sink", "pth=/x") == 2
    assert "sink.pth: unknown field" in capsys.readouterr().err
