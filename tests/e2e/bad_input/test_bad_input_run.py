"""`slackwater local run` where something does not work once it runs: handlers, broker, topic, folders, Java.

Each time: one line on stderr that says what, the run ends by itself, with 1, no process is left, nothing
counts as done, and no offset is committed.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.commands import Ended, run
from tests.support.devbroker import DevBroker
from tests.support.processes import reserve_ports
from tests.support.workers.local_run_site import LocalRunSite

LONGEST_S = 120.0
"""For what cannot heal by itself, a worker's tries included: 20 s where nothing else wants the processors."""


def check(site: LocalRunSite, ended: Ended, words: str, code: int = 1) -> None:
    """The run said ``words`` in one line, and nothing counts as done."""
    assert ended.code == code, ended
    assert ended.stderr.count("\n") == 1, ended
    assert ended.error.startswith("slackwater"), ended
    assert re.search(words, ended.error), ended
    assert "Traceback" not in ended.stdout, ended
    assert ended.seconds < LONGEST_S, ended
    site.check_nothing_done()


UNUSABLE = [
    ("nowhere:keep", r"handler nowhere:keep: no module nowhere in handlerPath \(/"),
    ("handlers:kep", r"handler handlers:kep: .*handlers\.py\) has no function kep; did you mean keep\?"),
    ("handlers:a_number", r"a_number in handlers .* is no function but int"),
    ("broken:f", r"handler broken:f: importing it raised ImportError: .*NoSuchThing.*broken\.py line 1"),
    ("handlers:no_offset", r"must have the column offset .*\(handler handlers:no_offset\)"),
    ("handlers:no_table", r"returned int, not a table \(handler handlers:no_table\)"),
    ("handlers:exits", r"handlers:exits fails on a table without rows.*SystemExit"),
]
SHOWN = ("handlers:no_offset",)
"""The others say the same of other causes."""


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        pytest.param(*case, id=case[0], marks=[] if case[0] in SHOWN else pytest.mark.long)
        for case in UNUSABLE
    ],
)
def test_an_unusable_handler_is_reported_before_any_record_is_read(
    site: LocalRunSite, handler: str, words: str
) -> None:
    site.produce([100] * 20)
    site.change("handlers:keep", handler)
    ended = run(*site.arguments())
    check(site, ended, words)
    assert re.search(rf"{site.name}-preflight-\S+ ended with code 2: ", ended.stdout), "reported early"


def java_11(folder: Path) -> dict[str, str]:
    """The environment of somebody whose JAVA_HOME has a Java 11."""
    java = folder / "jdk-11" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'echo "Property settings:" >&2\n'
        f'echo "    java.home = {java.parent.parent}" >&2\n'
        'echo "    java.version = 11.0.22" >&2\n'
        "echo 'openjdk version \"11.0.22\" 2024-01-16' >&2\n"
    )
    java.chmod(0o755)
    return {"JAVA_HOME": str(java.parent.parent)}


TOO_OLD = (
    r"JAVA_HOME is \S+/jdk-11, and \S+/bin/java is Java 11\.0\.22, and Spark needs 17 or newer: set JAVA_HOME"
)


RETRIED = [
    (
        "a handler that raises",
        {"handlers:keep": "handlers:fails"},
        r"code 4: the handler .* failed 3 times on the batch .* offsets 0 to .*ValueError: cannot take it",
    ),
    (
        "a handler that hangs",
        {"handlers:keep": "handlers:hangs\n    handlerTimeout: 1s"},
        r"code 4: handler handlers:hangs did not end within 1000 ms \(handlerTimeout",
    ),
    (
        "a wrong schema, with records only",
        {"handlers:keep": "handlers:no_offset_later"},
        r"code 4: .*must have the column offset.*handlers:no_offset_later, batch ",
    ),
]
"""What a worker meets is tried again, as a kubelet would, then given up. The waits between are most of the
time, so these runs go on side by side."""


@pytest.fixture(scope="module")
def retried(
    devbroker: DevBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[LocalRunSite, Ended]]]]:
    def play(changes: dict[str, str], folder: Path) -> tuple[LocalRunSite, Ended]:
        site = LocalRunSite(devbroker.bootstrap, folder)
        site.group.create_topic()
        site.produce([100] * 20)
        for old, new in changes.items():
            site.change(old, new)
        return site, run(*site.arguments())

    with ThreadPoolExecutor(4) as pool:
        yield {
            name: pool.submit(play, changes, tmp_path_factory.mktemp("retried"))
            for name, changes, _ in RETRIED
        }


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [pytest.param(name, words, id=name) for name, _, words in RETRIED],
)
def test_a_fault_that_stops_each_worker_is_reported_at_once_and_ends_the_run(
    retried: dict[str, Future[tuple[LocalRunSite, Ended]]], name: str, words: str
) -> None:
    site, ended = retried[name].result()
    check(site, ended, words.partition(": ")[2])
    assert f"{site.name}-0 failed 5 times in a row: " in ended.error, ended
    assert re.search(rf"^\S+ {site.name}-0 ended with {words}", ended.stdout, re.MULTILINE), ended


@pytest.mark.long
def test_an_output_folder_that_cannot_be_created_ends_the_run(site: LocalRunSite) -> None:
    site.change("out}", "handlers.py/out}")
    ended = run(*site.arguments())
    check(
        site, ended, r"the sink cannot make the folder \S+/handlers\.py/out: Not a directory; give the sink"
    )


@pytest.mark.long
def test_a_missing_dead_letter_topic_ends_the_run(site: LocalRunSite) -> None:
    site.change("engine: arrow", "engine: arrow\n    deadLetterTopic: no-such-letters")
    check(site, run(*site.arguments()), "topic no-such-letters does not exist; create it")


@pytest.mark.long
def test_a_java_too_old_for_the_workers_ends_the_run(site: LocalRunSite, tmp_path: Path) -> None:
    site.change("engine: arrow", "engine: spark")
    ended = run(*site.arguments(), environment=java_11(tmp_path))
    check(site, ended, f"the preflight failed: Spark found no Java: {TOO_OLD}")


@pytest.fixture(scope="module")
def closed_port() -> int:
    """A port that nobody listens on."""
    return reserve_ports(1)[0]


@pytest.fixture(scope="module")
def black_hole() -> Iterator[str]:
    """The address of a port that takes connections, and what they send, and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=100)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def unreachable(
    closed_port: int, black_hole: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Ended]]]:
    """Runs against brokers that are not there, side by side: each waits for ten seconds."""
    refused, empty = f"127.0.0.1:{closed_port}", tmp_path_factory.mktemp("demo")
    site = LocalRunSite(refused, tmp_path_factory.mktemp("unreachable"))
    with ThreadPoolExecutor(2) as pool:
        yield {
            "black hole": pool.submit(run, *site.arguments("--bootstrap", black_hole)),
            "demo": pool.submit(run, "demo", "--bootstrap", refused, cwd=empty),
        }


@pytest.mark.long
def test_an_unreachable_broker_ends_the_run(closed_port: int, tmp_path: Path) -> None:
    ended = run(*LocalRunSite(f"127.0.0.1:{closed_port}", tmp_path).arguments())
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert ended.error.endswith(
        f"no broker could be reached: 127.0.0.1:{closed_port}: Connection refused; "
        "start it, or correct spec.kafka.bootstrapServers"
    ), ended
    assert ended.seconds < LONGEST_S


def test_a_broker_that_never_answers_ends_the_run(
    unreachable: dict[str, Future[Ended]], black_hole: str
) -> None:
    ended = unreachable["black hole"].result()
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert re.search(rf"no .*broker answered within \d+ ms.*{black_hole}.*; start it", ended.error), ended
    assert ended.seconds < LONGEST_S


def test_an_unreachable_broker_ends_the_demo(unreachable: dict[str, Future[Ended]], closed_port: int) -> None:
    ended = unreachable["demo"].result()
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert f"127.0.0.1:{closed_port}: Connection refused" in ended.error, ended
    assert ended.seconds < LONGEST_S


def test_a_missing_topic_ends_the_run(devbroker: DevBroker, tmp_path: Path) -> None:
    site = LocalRunSite(devbroker.bootstrap, tmp_path)
    ended = run(*site.arguments())
    check(site, ended, rf"{devbroker.bootstrap}: .*{site.name}.* does not exist; create it")


@pytest.mark.long
def test_an_unknown_property_ends_the_run(site: LocalRunSite) -> None:
    site.change("session.timeout.ms:", 'sesion.timeout.ms: "1", session.timeout.ms:')
    check(
        site,
        run(*site.arguments()),
        r"unknown property 'sesion\.timeout\.ms'; did you mean 'session\.timeout\.ms'",
        code=2,
    )


@pytest.mark.long
def test_a_work_folder_that_cannot_be_created_ends_the_run(site: LocalRunSite, tmp_path: Path) -> None:
    site.work = tmp_path / "handlers.py" / "work"
    check(
        site,
        run(*site.arguments()),
        rf"{tmp_path}/handlers\.py.*: Not a directory|{tmp_path}/handlers\.py.*File exists",
        code=2,
    )


@pytest.mark.long
def test_a_java_too_old_for_spark_connect_ends_the_run(site: LocalRunSite, tmp_path: Path) -> None:
    site.produce([100] * 20)
    site.change("engine: arrow", "engine: spark")
    ended = run(*site.arguments("--spark", "connect"), environment=java_11(tmp_path))
    check(site, ended, f"Spark Connect: Spark found no Java: {TOO_OLD}")


@pytest.mark.long
def test_a_java_too_old_for_the_demo_ends_it(tmp_path: Path) -> None:
    ended = run("demo", cwd=tmp_path, environment=java_11(tmp_path))
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert re.search("slackwater.*: .*" + TOO_OLD, ended.error), ended
    assert not (tmp_path / ".demo" / "report.json").exists()


def test_a_worker_ends_when_its_broker_never_answers(site: LocalRunSite, black_hole: str) -> None:
    file = site.folder / "worker.yaml"
    file.write_text(
        f"""\
groupId: {site.name}
topics: [{site.name}]
bootstrapServers: {black_hole}
handler: handlers:keep
handlerPath: [{site.folder}]
engine: arrow
sink: {{format: parquet, path: {site.out}}}
startTimeoutMs: 2000
"""
    )
    ended = run("worker", "--config", file, environment={"SLACKWATER_INSTANCE_ID": "w-0"})
    assert ended.code == 1, ended
    assert black_hole in ended.error, ended
    assert "within startTimeoutMs (2000)" in ended.error, ended
    assert "Traceback" not in ended.stderr, ended
    assert ended.seconds < 28  # the default is 30 s
    site.check_nothing_done()


@pytest.mark.long
def test_a_wrong_spark_schema_is_reported_before_any_record_is_read(site: LocalRunSite) -> None:
    site.produce([100] * 20)
    site.change("engine: arrow", "engine: spark")
    site.change("handlers:keep", "handlers:no_offset_in_spark")
    ended = run(*site.arguments("--spark", "local"))
    check(site, ended, r"must have the column offset .*\(handler handlers:no_offset_in_spark\)")
    assert re.search(rf"{site.name}-preflight-\S+ ended with code 2: ", ended.stdout), ended
