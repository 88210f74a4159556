"""Tables and progress: on a terminal by rich, elsewhere and without rich plain."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

from slackwater import cli
from slackwater.commands.display import ProgressLines, print_table
from slackwater.kafka import KafkaAdmin
from slackwater.kafka.admin import NewTopic
from tests.support.devbroker import DevBroker
from tests.support.peers.librdkafka import write_topic
from tests.support.workers.commands import Terminal

TOPICS = ["shown-a", "shown-b"]
PLAIN = [
    "TOPIC    PARTITIONS  REPLICAS  OFFSETS IN THE LOG",
    "shown-a  3           1         1",
    "shown-b  3           1         0",
]


@pytest.fixture(scope="module")
def bootstrap(devbroker: DevBroker) -> str:
    with KafkaAdmin(devbroker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 3) for name in TOPICS])
    write_topic(devbroker.bootstrap, TOPICS[0], [(0, b"[bold]x")])
    return devbroker.bootstrap


def on_terminal(*words: str) -> str:
    """What a command shows on a terminal of its own."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "slackwater", *words],
        stdout=its,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(its)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other side is closed
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0
    return shown.decode()


def test_a_pipe_gets_plain_columns(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topics", *TOPICS, "-b", bootstrap]) == 0
    assert capsys.readouterr().out.splitlines() == PLAIN


def test_a_terminal_gets_a_table(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        assert cli.main(["topics", *TOPICS, "-b", bootstrap]) == 0

    shown = shown_by(work, Terminal(), monkeypatch)
    assert "────" in shown
    assert TOPICS[0] in shown
    assert shown_by(work, Terminal(), monkeypatch, term="dumb").splitlines() == PLAIN
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    assert shown_by(work, Terminal(), monkeypatch).splitlines() == PLAIN


def test_a_record_is_shown_as_it_is(bootstrap: str) -> None:
    shown = on_terminal("tail", f"{TOPICS[0]}:start", "-b", bootstrap)
    assert "[bold]x" in shown, "no markup of rich's"
    assert "\x1b[36mshown-a:" in shown


def shown_by(
    work: Callable[[], None], screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, term: str = "xterm"
) -> str:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "100")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", screen)
        work()
    return screen.getvalue()


def test_cells_are_no_markup_and_control_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("[red]x\x1b[2J", 7), ("y", 1000)]
    shown = shown_by(lambda: print_table(("NAME", "COUNT"), rows), Terminal(), monkeypatch)
    assert "[red]x\\x1b[2J" in shown
    assert "\x1b[2J" not in shown


def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with ProgressLines() as lines:
            lines.say("begins")
            lines.progress(1, 4, "1 of 4 records")
            lines.progress(4, 4, "4 of 4 records")

    shown = shown_by(work, Terminal(), monkeypatch)
    assert "begins" in shown
    assert "━" in shown
    assert "100%" in shown
    plain = shown_by(work, io.StringIO(), monkeypatch)
    assert plain.splitlines() == ["begins", " 25%  1 of 4 records", "100%  4 of 4 records"]


def test_a_bar_without_an_end_shows_how_much_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with ProgressLines(bar_only=True) as lines:
            lines.progress(1_000, 0, "1,000 records sent")

    assert "1,000 records sent" in shown_by(work, Terminal(), monkeypatch)
    assert shown_by(work, io.StringIO(), monkeypatch) == ""


@pytest.mark.parametrize(
    "module",
    ["slackwater.cli", pytest.param("slackwater_operator.cli.kubectl.plugin", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("buffered", [True, pytest.param(False, marks=pytest.mark.long)])
def test_nobody_who_reads_the_output_is_no_error(module: str, buffered: bool) -> None:
    """As ``slackwater lag | head -1`` has it."""
    reads, writes = os.pipe()
    os.close(reads)
    start = "import sys; from importlib import import_module as m; sys.exit(m(sys.argv.pop(1)).main())"
    done = subprocess.run(
        [sys.executable, *([] if buffered else ["-u"]), "-c", start, module, "--version"],
        stdout=writes,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")
