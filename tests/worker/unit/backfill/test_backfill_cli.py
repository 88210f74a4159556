"""The command line of ``slackwater backfill``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater import cli
from slackwater.backfill import run as backfill_run
from slackwater.backfill.handler_files import HandlerFiles
from slackwater.backfill.report import BackfillCounts, BackfillReport, Plan, Progress
from slackwater.backfill.run import Options
from slackwater.handler import OffsetRange
from slackwater.kafka.structs import TopicPartition
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
        config: WorkerConfig, live: WorkerConfig, options: Options, report: BackfillReport
    ) -> BackfillCounts:
        calls.append((config, live, options))
        tp, counts = TopicPartition("orders", 0), BackfillCounts(offsets=6, batches=2, rows=5, letters=1)
        sent = HandlerFiles(("common", "orders"), {"common.py": b"1234", "orders.py": b"1" * 1000})
        report.plan(Plan("g", "m:f", "delta", "/lake", {tp: OffsetRange(3, 9)}, {tp: 4}, sent))
        report.failed(6, "bad")
        report.progress(Progress(6, 8, counts, 2_000))
        report.nothing("nothing is left to do")
        return counts

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
    assert capsys.readouterr().out.splitlines() == [
        "backfill g with m:f to delta /lake",
        "orders-0: from 3 up to 9 (not included), goes on at 4",
        "sends common, orders to the executors (2 files, 1,004 bytes)",
        "a batch of 6 records failed; it is tried in smaller parts: bad",
        " 75%  6 of 8 records, rows: 5, dead letters: 1, 3 records/s",
        "nothing is left to do",
        "batches: 2, rows: 5, dead letters: 1",
    ]
    assert (config.sink.path, live.sink.path) == ("/old", "/data")
    assert (config.handler, config.spark.remote) == ("orders:other", "sc://spark:15002")
    assert [bound.text for bound in options.begins] == ["orders:0:5", "orders:1:6"]
    assert [bound.text for bound in options.ends] == ["latest"]
    assert (options.name, options.batch_rows, options.tasks) == ("x", 7, 3)
    assert (options.dead_letters, options.allow_overlap, options.dry_run) == ("none", True, True)


def test_json_is_an_object_a_line(
    tmp_path: Path, given: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert backfill(tmp_path, "--from", "earliest", "--output", "json") == 0
    orders = {"topic": "orders", "partition": 0, "start": 3, "end": 9, "position": 4}
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "event": "plan", "group": "g", "handler": "m:f",
            "sink": {"format": "delta", "place": "/lake"}, "ranges": [orders],
            "sent": {"modules": ["common", "orders"], "files": 2, "bytes": 1004},
        },
        {"event": "failed", "records": 6, "why": "bad"},
        {
            "event": "progress", "done": 6, "total": 8, "rows": 5, "deadLetters": 1, "recordsPerSecond": 3,
        },
        {"event": "nothing", "why": "nothing is left to do"},
        {"event": "end", "batches": 2, "records": 6, "rows": 5, "deadLetters": 1},
    ]  # fmt: skip


def test_defaults(tmp_path: Path, given: list[Any]) -> None:
    assert backfill(tmp_path, "--from", "earliest") == 0
    ((config, live, options),) = given
    assert (config, options.name, options.tasks, options.ends) == (live, "", 0, [])
    assert (options.dead_letters, options.allow_overlap, options.dry_run) == ("topic", False, False)


def test_a_master_and_settings_go_before_those_of_the_file(
    tmp_path: Path, given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "worker.yaml"
    settings = {"spark.master": "local[1]", "spark.a": "file", "spark.b": "file"}
    document = {**yaml.safe_load(CONFIG), "spark": {"remote": "sc://spark:15002", "conf": settings}}
    file.write_text(yaml.safe_dump(document))
    arguments = ["--from", "earliest", "--conf", "spark.a=x=y", "--conf", "spark.c="]
    assert cli.main(["backfill", "--config", str(file), *arguments, "--master", "spark://m:7077"]) == 0
    assert cli.main(["backfill", "--config", str(file), *arguments]) == 0
    (on_master, _, _), (on_server, _, _) = given
    changed = {"spark.a": "x=y", "spark.b": "file", "spark.c": ""}
    assert (on_master.spark.remote, on_master.spark.conf) == (
        "", {**changed, "spark.master": "spark://m:7077"},
    )  # fmt: skip
    assert (on_server.spark.remote, on_server.spark.conf) == (
        "sc://spark:15002", {**changed, "spark.master": "local[1]"},
    )  # fmt: skip
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert cli.main(["backfill", "--config", str(file), *arguments, "--master", "local"]) == 2


def test_settings_are_for_engines_other_than_spark_too(tmp_path: Path, given: list[Any]) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text(f"{CONFIG}engine: python\n")
    settings = ["--master", "spark://m:7077", "--conf", "spark.cores.max=4"]
    assert cli.main(["backfill", "--config", str(file), "--from", "earliest", *settings]) == 0
    assert given[0][0].spark.conf == {"spark.master": "spark://m:7077", "spark.cores.max": "4"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: --from"),
        (["--from", "orders:0:"], "argument --from: 'orders:0:' has a partition and no offset"),
        (["--from", "earliest", "--conf", "cores=4"], "argument --conf: must be spark.NAME=VALUE"),
        (["--from", "earliest", "--remote", "sc://s:1", "--master", "local"], "not allowed with argument"),
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
