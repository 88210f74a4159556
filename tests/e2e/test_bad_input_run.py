"""`slackwater local run` where something does not work once it runs: handlers, broker, topic, folders, Java.

Each time: one line on stderr that says what, the run ends by itself, with 1, no process is left, nothing
counts as done, and no offset is committed.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.commands import Ended, run
from tests.e2e.site import Site
from tests.support.devbroker import DevBroker
from tests.support.kafka import free_ports

LONGEST_S = 40.0
"""For what cannot heal by itself, tries of a worker again included."""


def check(site: Site, ended: Ended, told: str) -> None:
    """The run said ``told`` in one line, and nothing counts as done."""
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert ended.error.startswith("slackwater local run: "), ended
    assert re.search(told, ended.error), ended
    assert "Traceback" not in ended.stdout, ended
    assert ended.seconds < LONGEST_S, ended
    site.check_nothing_done()


UNUSABLE = [
    ("nowhere:keep", r"handler nowhere:keep: no module nowhere in handlerPath \(/"),
    ("handlers:kep", r"handler handlers:kep: .*handlers\.py\) has no function kep; did you mean keep\?"),
    ("handlers:a_number", r"a_number in handlers .* is no function but int"),
    ("broken:f", r"handler broken:f: importing it raised ImportError: .*NoSuchThing.*broken\.py line 1"),
    ("handlers:no_offset", r"handlers:no_offset.*offset|offset.*handlers:no_offset"),
    ("handlers:no_table", r"handlers:no_table.*int|int.*handlers:no_table"),
    ("handlers:exits", r"handlers:exits fails on a table without rows.*SystemExit"),
]


@pytest.mark.parametrize(("handler", "told"), UNUSABLE, ids=[one[0] for one in UNUSABLE])
def test_a_handler_that_cannot_be_used_is_seen_before_a_record_is_read(
    site: Site, handler: str, told: str
) -> None:
    site.produce([100] * 20)
    site.change("handlers:keep", handler)
    ended = run(*site.arguments())
    check(site, ended, told)
    assert f"{site.name}-0 ended with code 2: " in ended.stdout, "the reason is told when it shows"


FAILING = [
    ("handlers:fails", "", r"failed 3 times on the batch .* offsets 0 to .*ValueError: cannot take it"),
    ("handlers:hangs", "handlerTimeout: 500ms", r"did not end within 500 ms \(handlerTimeout"),
    ("handlers:no_offset_later", "", r"must have the column offset.*handlers:no_offset_later, batch "),
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("handler", "more", "told"), FAILING, ids=[one[0] for one in FAILING])
def test_a_handler_that_fails_on_records_is_tried_again_then_given_up(
    site: Site, handler: str, more: str, told: str
) -> None:
    site.produce([100] * 20)
    site.change("handlers:keep", handler + (f"\n    {more}" if more else ""))
    ended = run(*site.arguments())
    check(site, ended, told)
    assert f"{site.name}-0 failed 5 times in a row: " in ended.error
    first = ended.stdout.index(f"{site.name}-0 ended with code 4: ")
    assert first < ended.stdout.index("given up"), "the reason is told when it shows"


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ended = run(*Site(f"127.0.0.1:{port}", tmp_path).arguments())
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert f"127.0.0.1:{port}" in ended.error, ended
    assert "refused" in ended.error.lower(), ended
    assert ended.seconds < LONGEST_S


def test_a_broker_that_accepts_and_never_answers(tmp_path: Path, black_hole: str) -> None:
    ended = run(*Site("127.0.0.1:1", tmp_path).arguments("--bootstrap", black_hole))
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert black_hole in ended.error, ended
    assert ended.seconds < LONGEST_S


@pytest.fixture
def black_hole() -> Iterator[str]:
    """The address of a port that takes connections, and what they send, and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=100)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_topic_that_is_not_there(devbroker: DevBroker, tmp_path: Path) -> None:
    site = Site(devbroker.bootstrap, tmp_path)
    ended = run(*site.arguments())
    check(site, ended, rf"{devbroker.bootstrap}: .*{site.name}.* does not exist; create it")


def test_a_dead_letter_topic_that_is_not_there(site: Site) -> None:
    site.change("    engine: arrow\n", "    engine: arrow\n    deadLetterTopic: no-such-letters\n")
    check(site, run(*site.arguments()), r"no topic no-such-letters at .*: create it, or correct")


def test_a_property_that_no_client_has(site: Site) -> None:
    site.change("session.timeout.ms:", 'sesion.timeout.ms: "1", session.timeout.ms:')
    check(site, run(*site.arguments()), r"properties: unknown property 'sesion\.timeout\.ms'")


def test_an_output_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    site.change(str(site.out), str(tmp_path / "a-file" / "out"))
    check(site, run(*site.arguments()), rf"the sink cannot make the folder {tmp_path}/a-file/out: Not a dir")


def test_a_work_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    site.work = tmp_path / "handlers.py" / "work"
    check(
        site,
        run(*site.arguments()),
        rf"{tmp_path}/handlers\.py.*: Not a directory|{tmp_path}/handlers\.py.*File exists",
    )


@pytest.fixture
def java_11(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody whose JAVA_HOME has a Java 11."""
    java = tmp_path / "jdk-11" / "bin" / "java"
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


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spark", ["local", "connect"])
def test_a_java_that_is_too_old(site: Site, java_11: dict[str, str], spark: str) -> None:
    site.produce([100] * 20)
    site.change("engine: arrow", "engine: spark")
    check(site, run(*site.arguments("--spark", spark), environment=java_11), TOO_OLD)


@pytest.mark.timeout(120)
def test_a_java_that_is_too_old_for_the_demo(java_11: dict[str, str], tmp_path: Path) -> None:
    ended = run("demo", cwd=tmp_path, environment=java_11)
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert re.search("slackwater demo: .*" + TOO_OLD, ended.error), ended
    assert not (tmp_path / ".demo" / "report.json").exists()
