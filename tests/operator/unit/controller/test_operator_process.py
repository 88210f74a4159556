"""Arguments, logs and the dead man's switch of the operator's process."""

from __future__ import annotations

import copy
import json
import logging
import sys
import threading
import time
from typing import cast

import pytest

from slackwater_operator.cli import operator
from slackwater_operator.cli.operator import allow_deep_objects, main
from slackwater_operator.cli.operator_options import parse
from slackwater_operator.kubernetes.kopf_thread import EndlessBackoff
from slackwater_operator.kubernetes.lease import Lease, LeaseWatchdog
from slackwater_operator.kubernetes.watch import settings
from slackwater_operator.telemetry import logs
from slackwater_operator.telemetry.logs import FewerRetries, JsonLines
from tests.support.telemetry.tracing import Recorded


def test_the_default_arguments_fit_a_pod() -> None:
    options = parse([], {"POD_NAME": "op-7", "POD_NAMESPACE": "sw"})
    assert (options.namespaces, options.lease, options.lease_namespace) == ((), "slackwater-operator", "sw")
    assert (options.identity, options.http_host, options.http_port) == ("op-7", "", 8080)
    assert options.pod_monitors


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="its C code has a limit of its own; the image has 3.11"
)
def test_an_object_as_deep_as_the_api_server_stores_is_read_and_copied() -> None:
    before, stack = sys.getrecursionlimit(), threading.stack_size()
    try:
        allow_deep_objects()
        assert copy.deepcopy(json.loads('{"a":' * 10_000 + "{}" + "}" * 10_000))
    finally:
        sys.setrecursionlimit(before)
        threading.stack_size(stack)


def test_two_processes_of_one_machine_have_different_identities() -> None:
    assert parse([], {}).identity != parse([], {}).identity


def test_traces_are_off_and_an_endpoint_turns_them_on() -> None:
    assert parse([], {}).traces_endpoint == ""
    assert parse([], {}).prometheus_url == ""
    assert parse(["--prometheus-url=http://prometheus:9090"], {}).prometheus_url == "http://prometheus:9090"
    url = "http://otel-collector.observability:4318"
    assert parse([], {"SLACKWATER_TRACES_ENDPOINT": url}).traces_endpoint == url
    assert parse([f"--traces-endpoint={url}/v1/traces"], {}).traces_endpoint == f"{url}/v1/traces"


def test_arguments_go_before_the_environment() -> None:
    environment = {
        "SLACKWATER_NAMESPACE": "a, b",
        "SLACKWATER_WORKER_IMAGE": "env",
        "SLACKWATER_NO_POD_MONITORS": "true",
        "SLACKWATER_LOG_FORMAT": "json",
    }
    options = parse([], environment)
    assert (options.namespaces, options.worker_image) == (("a", "b"), "env")
    assert (options.pod_monitors, options.log_format) == (False, "json")
    options = parse(["--namespace", "c", "--namespace=d", "--worker-image=arg"], environment)
    assert (options.namespaces, options.worker_image) == (("c", "d"), "arg")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--namespace", "A_b"], {}, "--namespace A_b: not a valid namespace name"),
        (["--namespace", "a,b"], {}, "give the option once for each"),
        (["--admission-webhook", "a.b"], {}, "--admission-webhook a.b: not a valid Service name"),
        (["--lease", "No Name"], {}, "--lease No Name: not a valid Lease name"),
        (["--http-port", "x"], {}, "argument --http-port: x must be a number between 0 and 65535"),
        (["--round-ms", "1"], {}, "--round-ms: 1 must be a number between 500 and 60000"),
        (
            [],
            {"SLACKWATER_ROUND_MS": "soon"},
            "SLACKWATER_ROUND_MS=soon must be a number between 500 and 60000",
        ),
        ([], {"SLACKWATER_LOG_LEVEL": "loud"}, "SLACKWATER_LOG_LEVEL=loud must be one of debug, info"),
        ([], {"SLACKWATER_NO_LEADER_ELECTION": "maybe"}, "true or false"),
        (["--prometheus-url=prometheus:9090"], {}, "--prometheus-url prometheus:9090: not a URL"),
        (["--traces-endpoint=otel:4317"], {}, "--traces-endpoint otel:4317: not a collector's URL"),
        (["--nonsense"], {}, "unrecognized arguments: --nonsense"),
        (["--leas=another"], {}, "unrecognized arguments: --leas=another"),
    ],
)
def test_bad_arguments_are_reported(
    arguments: list[str], environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, environment)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_kubeconfig_that_does_not_exist_ends_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/at/all")
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    monkeypatch.setattr(operator, "allow_deep_objects", lambda: None)  # stays for the whole process
    assert main([]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "/nowhere/at/all does not exist" in line


class FakeLease:
    """Held since now, with a deadline."""

    def __init__(self, left_s: float, *, held: bool = True) -> None:
        self.deadline_s = time.monotonic() + left_s
        self.held = held


@pytest.mark.parametrize(
    ("left_s", "held", "ends"), [(-1.2, True, True), (-1.2, False, False), (60.0, True, False)]
)
def test_a_loop_that_hangs_past_the_deadline_has_its_process_ended(
    left_s: float, held: bool, ends: bool
) -> None:
    """The loop here hangs in `wait`; the thread is what looks."""
    lease = FakeLease(left_s, held=held)
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    watchdog = LeaseWatchdog(cast(Lease, lease), 3, end=end)
    ended.wait(3 if ends else 1.2)
    watchdog.stop()
    assert codes == ([3] if ends else [])


def record(name: str, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "x.py", 1, message, (), None)


def test_the_log_is_written_as_json_lines() -> None:
    entry = json.loads(JsonLines().format(record("a.b", 'says "x"\nand y')))
    assert entry["message"] == 'says "x"\nand y'
    assert (entry["level"], entry["logger"]) == ("error", "a.b")
    assert isinstance(entry["ts_ms"], int)
    assert "trace_id" not in entry


def test_json_lines_carry_the_ids_of_the_current_span() -> None:
    recorded = Recorded()
    lines = JsonLines(recorded.tracing.fields)
    span = recorded.tracing.span("order the takeover", 1.0, always=True)
    with span.current():
        entry = json.loads(lines.format(record("a.b", "is asked to take over")))
    assert span.context is not None
    assert (entry["trace_id"], entry["span_id"]) == span.context[:2]
    assert "trace_id" not in json.loads(lines.format(record("a.b", "later")))


def test_kopfs_retries_are_logged_at_intervals_and_everything_else_always() -> None:
    fewer = FewerRetries()
    retry = record("kopf._cogs.clients.watching", "Request attempt #1 failed; will retry: GET /")
    other = record("kopf._cogs.clients.watching", "Request attempt #9 failed; escalating")
    assert [fewer.filter(retry) for _ in range(3)] == [True, False, False]
    assert all(fewer.filter(other) for _ in range(3))


def test_kopf_never_gives_up_and_never_waits_long() -> None:
    waits = iter(EndlessBackoff())
    assert max(next(waits) for _ in range(1000)) <= 5
    assert not hasattr(EndlessBackoff(), "__len__")


def test_kopf_writes_nothing() -> None:
    made = settings()
    assert made.scanning.disabled
    assert not made.posting.enabled
    assert made.persistence.finalizer.startswith("slackwater.dev/")
