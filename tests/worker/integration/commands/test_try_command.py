"""``slackwater try``: a handler on real records; nothing is joined, committed or written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from slackwater.commands.try_handler import SHOWN
from tests.support.workers.commands import run_command
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite
from tests.support.workers.process import leaner


def run_try(site: DeliverySite, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    """With a worker's file."""
    return run_command(site.folder, "try", "--config", str(written(site, **changes)), *arguments)


def written(site: DeliverySite, **changes: Any) -> Path:
    """A worker's file."""
    file = site.folder / "try.yaml"
    file.write_text(json.dumps(site.config(**changes)))
    return file


def test_rows_dead_letters_and_counts_and_nothing_is_changed(site: DeliverySite) -> None:
    site.produce(400, bad_every=100)
    arguments = ["--from", f"{site.topic}:0:20", "--from", f"{site.topic}:1:end-30", "--limit", "90"]
    command = [sys.executable, "-m", "slackwater", "try", "--config", str(written(site)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | leaner({}))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["topic", "partition", "offset", "text"]
    assert lines[1].split() == [site.topic, "0", "20", "v-80"]
    assert f"dead letter {site.topic}-0 offset 25: is bad" in lines
    assert "  value: bad-100" in lines
    assert f"read {site.topic}-0 from offset 20 up to 80: 60" in lines
    assert f"read {site.topic}-1 from offset 70 up to 100: 30" in lines
    assert "records: 90, rows: 87, dead letters: 3, records without a row: 0" in lines
    assert lines[-1].startswith("reading took ")
    assert site.describe().state == "Dead", "there is no such group"
    assert site.dead_letters() == []
    assert not site.out.exists()


def test_json_of_a_whole_topic_in_batches_like_a_workers(site: DeliverySite) -> None:
    """``max.poll.records`` of the site is 50."""
    site.produce(130, bad_every=13)
    done = run_try(site, "--from", site.topic, "--limit", "1000", "--output", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert sorted(row["text"] for row in document["rows"]) == sorted(
        text for text in site.produced if text.startswith("v")
    )
    assert [letter["value"] for letter in document["deadLetters"]] == sorted(
        (text for text in site.produced if text.startswith("bad")),
        key=lambda text: (int(text[4:]) % PARTITIONS, int(text[4:])),
    )
    assert document["deadLetters"][0].keys() == {"topic", "partition", "offset", "error", "key", "value"}
    assert document["counts"] == {"records": 130, "rows": 120, "deadLetters": 10, "dropped": 0}
    assert [(part["records"], part["first"], part["next"]) for part in document["read"]] == [
        (33, 0, 33),
        (33, 0, 33),
        (32, 0, 32),
        (32, 0, 32),
    ]


def test_rows_of_several_tables_are_shown_by_table(site: DeliverySite) -> None:
    """Nothing is written, and no table is asked for."""
    site.produce(8)
    routes = [{"when": "text = 'v-1'", "sink": {"format": "iceberg", "table": "lake.one"}}]
    sink = {"format": "delta", "path": "/nowhere/{partition}", "tables": {"allow": "[0-2]"}}
    done = run_try(site, "--from", f"{site.topic}:1:start", routes=routes, sink=sink)
    assert done.returncode == 0, done.stderr
    shown = [line.split()[-1] for line in done.stdout.splitlines() if line.endswith(":") or " v-" in line]
    assert shown == ["lake.one:", "v-1", "/nowhere/1:", "v-5"]
    whole = run_try(site, "--from", site.topic, "--output", "json", routes=routes, sink=sink)
    assert whole.returncode == 4
    assert "the column partition has the value '3', which names no table (sink.tables.allow)" in whole.stderr
    sink["tables"] = {}
    whole = run_try(site, "--from", site.topic, "--output", "json", routes=routes, sink=sink)
    assert json.loads(whole.stdout)["counts"]["tables"] == {
        "lake.one": 1,
        **{f"/nowhere/{number}": 1 if number == 1 else 2 for number in range(PARTITIONS)},
    }


def test_rows_of_whole_batches_have_no_position(site: DeliverySite) -> None:
    site.produce(8, bad_every=4)
    done = run_try(site, "--from", site.topic, lineage="batch")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["text"]
    assert lines[-2] == "records: 8, rows: 6, dead letters: 2"


@pytest.mark.parametrize(
    ("option", "terminal", "shown"), [((), True, SHOWN), (("--all",), True, 30), ((), False, 30)]
)
def test_a_terminal_shows_the_first_of_many(
    option: tuple[str, ...], terminal: bool, shown: int, site: DeliverySite
) -> None:
    site.produce(60, bad_every=2)
    words = ["try", "--config", str(written(site)), "--from", site.topic, *option]
    done = run_command(site.folder, *words, terminal=terminal)
    lines = done.stdout.splitlines()
    assert sum("v-" in line for line in lines) == shown
    assert sum(line.startswith("dead letter ") for line in lines) == shown
    left_out = [line.split()[1:4] for line in lines if line.startswith("and ")]
    assert left_out == ([["10", "more", what] for what in ("rows;", "dead")] if shown < 30 else [])


def test_the_resource_and_an_arrow_file(site: DeliverySite) -> None:
    site.produce(8)
    resource = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "tried"},
        "spec": {
            "topics": [site.topic],
            "kafka": {"bootstrapServers": "127.0.0.1:1"},
            "pipeline": {
                "handler": "site_handler:transform",
                "engine": "arrow",
                "sink": {"format": "parquet", "path": "out"},
            },
        },
    }
    file = site.folder / "handlers" / "group.yaml"
    file.write_text(yaml.safe_dump(resource))
    rows = site.folder / "rows.arrow"
    arguments = ["--bootstrap", site.bootstrap, "--from", site.topic, "--output", str(rows)]
    done = run_command(site.folder, "try", "-f", str(file), *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"8 rows are in {rows}" in done.stdout
    with pa.memory_map(str(rows)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert sorted(table["text"].to_pylist()) == sorted(site.produced)


def test_dead_letters_without_a_topic_for_them(site: DeliverySite) -> None:
    site.produce(8, bad_every=8)
    done = run_try(site, "--from", site.topic, deadLetterTopic=None)
    assert done.returncode == 4
    assert "records: 8, rows: 7, dead letters: 1" in done.stdout
    assert "a worker would end with code 4" in done.stderr


@pytest.mark.parametrize(
    ("start", "changes", "code", "words"),
    [
        ("no-such-topic", {}, 2, "there is no topic no-such-topic"),
        ("{topic}:99:0", {}, 2, "-99 does not exist: the topic has 4 partitions"),
        ("{topic}:0:4200", {}, 2, "-0: offset 4200 is not in the log, which has offsets 0 to 4"),
        ("{topic}:0", {}, 2, "has a partition and no offset"),
        ("{topic}", {"bootstrapServers": "127.0.0.1:1", "startTimeoutMs": 300}, 1, "127.0.0.1:1"),
    ],
)
def test_a_position_that_is_not_there_is_named_in_one_line(
    site: DeliverySite, start: str, changes: dict[str, Any], code: int, words: str
) -> None:
    site.produce(20)
    done = run_try(site, "--from", start.format(topic=site.topic), **changes)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("handler", "code", "words"),
    [
        ("nothing", 2, "has no function nothing"),
        ("wrong", 4, "must have the column partition"),
        ("raises", 4, "More than 10 of its 20 records fail"),
    ],
)
def test_a_handler_that_cannot_be_used_is_named_in_one_line(
    site: DeliverySite, handler: str, code: int, words: str
) -> None:
    site.produce(20)
    done = run_try(site, "--from", site.topic, handler=f"site_handler:{handler}")
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr


def test_records_that_are_too_large_together(site: DeliverySite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.commands.try_handler.MOST_BYTES", 1000)
    site.produce(200)
    done = run_try(site, "--from", site.topic, "--limit", "200")
    assert done.returncode == 2
    assert "more than 1000 bytes: give a smaller --limit than 200" in done.stderr


def test_a_partition_that_is_named_twice(site: DeliverySite) -> None:
    done = run_try(site, "--from", site.topic, "--from", f"{site.topic}:0:start")
    assert done.returncode == 2
    assert f"{site.topic}-0 is named twice" in done.stderr
