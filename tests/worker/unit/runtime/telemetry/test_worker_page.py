"""The worker's page for people."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from slackwater.runtime.config.pipeline_config import SparkConfig
from slackwater.runtime.config.sink_config import SinkConfig
from slackwater.runtime.telemetry.html import MOST_ROWS, Text, facts, page, path_of, table
from slackwater.runtime.telemetry.page import worker_page
from slackwater.runtime.telemetry.status import Status
from tests.support.workers.fakes import Bench, VirtualClock, worker_config

NOW_MS = 1_700_000_100_000


class _Words(HTMLParser):
    """The text of a page, and the names of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: set[str] = set()
        self._hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self._hidden = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


def read(body: bytes) -> tuple[str, set[str]]:
    parser = _Words()
    parser.feed(body.decode())
    return " | ".join(parser.words), parser.elements


def document(**fields: Any) -> dict[str, Any]:
    status = Status("flights", "flights-0", VirtualClock(), pod="flights-0")
    for name, value in fields.items():
        setattr(status, name, value)
    counts = {"records": 0, "dead_letters": 0, "handler_failures": 0}
    return {**status.document(), "counts": counts}


def words(config: Any = None, **fields: Any) -> str:
    return read(worker_page(document(**fields), config or worker_config(), NOW_MS))[0]


def test_it_shows_the_assignment_with_offsets_lag_and_what_is_in_flight() -> None:
    text = words(
        phase="running",
        phase_since_ms=NOW_MS - 90_000,
        generation=7,
        is_leader=True,
        assignment=[["flights", 0], ["flights", 1]],
        committed={"flights-0": 12_000, "flights-1": None},
        lag={"flights-0": 345},
        in_flight={"flights-0": [12_000, 12_300]},
    )
    assert "running for 1 min" in text
    assert "generation 7, leader" in text
    assert "Partitions: 2, lag 345" in text
    assert "flights | 0 | 12,000 | 345 | 12,000 to 12,299 (300)" in text
    assert "flights | 1 | unknown | unknown | nothing" in text


def test_it_shows_the_last_batch() -> None:
    text = words(
        last_batch={"at_ms": NOW_MS - 3_000, "records": 2000, "rows": 1990, "dead_letters": 10,
                    "ms": {"transform": 41.7, "staging": 0.3, "publishing": 9.0}},
    )  # fmt: skip
    assert "Last batch | 2,000 records, 1,990 rows, 10 dead letters, 3 s ago" in text
    assert "Its time by phase | transform 41 ms, publishing 9 ms" in text
    assert "Last batch | none" in words()


def test_it_shows_the_rebalances_and_why() -> None:
    joins = [
        {"generation": 3, "at_ms": NOW_MS - 7_200_000, "kind": "joined", "reason": "the worker has started"},
        {
            "generation": 4,
            "at_ms": NOW_MS - 2_500,
            "kind": "follow_up",
            "reason": "two were revoked",
        },
    ]
    text = words(joins=joins, rebalance={"started_ms": NOW_MS - 400, "ended_ms": None})
    assert "0 s ago | unknown | in progress" in text
    later, earlier = text.index("two were revoked"), text.index("the worker has started")
    assert later < earlier, "the latest first"
    assert "2 s ago | 4 | second half of a cooperative rebalance" in text


def test_what_is_wrong_stands_on_it() -> None:
    stopped = {"partition": "flights-1", "reason": "LogTruncated", "message": "Do this.", "since_ms": NOW_MS}
    skip = {"partition": "flights-0", "from": 10, "to": 20, "cause": "retention", "at_ms": NOW_MS - 1000}
    gap = {"partition": "flights-0", "gap_ms": 2_345, "session_timeout_ms": 45_000, "session_share": 0.05}
    text = words(error="the sink is away", stopped=[stopped], skipped=[skip], last_gap=gap)
    for part in ("the sink is away", "LogTruncated", "Do this.", "retention", "flights-0, 2.3 s", "45 s"):
        assert part in text


def test_the_settings_in_force_have_defaults_and_no_secrets() -> None:
    sink = SinkConfig("delta", "s3://b/t", options={"aws_secret_access_key": "hidden-1"})
    spark = SparkConfig(conf={"spark.hadoop.fs.s3a.secret.key": "hidden-2", "spark.sql.ansi.enabled": "true"})
    config = replace(worker_config(), sink=sink, spark=spark, properties={"some.password": "hidden-3"})
    text = words(config)
    assert "hidden" not in text
    assert "sink.options.aws_secret_access_key | not shown" in text
    assert "spark.conf.spark.sql.ansi.enabled | true" in text
    assert "drainTimeoutMs | 15000" in text, "a default"


def test_a_worker_shows_why_it_joined() -> None:
    bench = Bench()
    bench.assign(bench.produce(0, "v"))
    bench.steps(3)
    assert [(join["kind"], join["reason"]) for join in bench.status.joins] == [
        ("joined", "the worker has started")
    ]


def test_nothing_in_a_page_is_taken_for_html() -> None:
    nasty = '"><script>alert(1)</script>'
    body = worker_page(document(error=nasty, assignment=[[nasty, 0]]), worker_config(), NOW_MS)
    text, elements = read(body)
    assert nasty in text
    assert "script" not in elements
    assert path_of("groups", nasty) == "/groups/%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E"
    assert b"<b>" not in page("t", [Text("x", link='"<b>')], [facts("f", {"<b>": "<b>"})], NOW_MS)


def test_a_long_table_is_cut_and_says_so() -> None:
    text, _ = read(table("Rows", ("n",), [[number] for number in range(MOST_ROWS + 5)]).html.encode())
    assert f"| {MOST_ROWS - 1:,} |" in text
    assert "and 5 more" in text
