"""What ``slackwater local run`` shows: tables on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.cli.local import Screen
from slackwater_operator.local.report.views import RunSnapshot, WorkerRow
from slackwater_operator.model.group import terms
from tests.support.workers.commands import Terminal

T0 = TopicPartition("flights", 0)
SNAPSHOT = RunSnapshot(
    ts_ms=0,
    group_id="group-1",
    group_state="Stable",
    generation=3,
    terms=terms(consumer_protocol=True),
    replicas=1,
    workers=(),
    partitions=(T0,),
    lag={T0: 1234},
    total_lag=1234,
    ends={T0: 2000},
    positions={T0: 766},
    owners={},
    operation=None,
    decisions=(),
    records=766,
    out=766,
    dead=0,
    consumed_per_s=None,
    problems=("no broker answers",),
)


def worker(port: int | None) -> WorkerRow:
    """A worker whose process has told its port, or has not."""
    return WorkerRow("flights-0", "flights-0", 0, "spawned", 7, port, -1, False, (), None, "", 0, None, "")


def shown(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, snapshots: tuple[RunSnapshot, ...] = (SNAPSHOT,) * 2
) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", screen)
        with Screen() as display:
            display.say("starting")
            for snapshot in snapshots:
                display.update(snapshot)
    return screen.getvalue()


def test_a_terminal_gets_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch)
    for words in ("starting", "group-1", "Stable", "flights-0", "1,234", "no broker answers"):
        assert words in text


def test_a_pipe_gets_lines_and_the_same_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = shown(io.StringIO(), monkeypatch).splitlines()
    assert first.endswith(" starting")
    assert second.endswith(" group Stable | epoch 3 | lag 1234 | no workers | no broker answers")


def test_each_page_of_a_worker_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = tuple(replace(SNAPSHOT, workers=(worker(port),)) for port in (None, 5001, 5001, None, 5002))
    text = shown(io.StringIO(), monkeypatch, snapshots)
    assert [line.split()[-1] for line in text.splitlines() if "http:" in line] == [
        "http://127.0.0.1:5001/",
        "http://127.0.0.1:5002/",
    ]
