"""What a person gives to a command and it cannot use: exit code 2, and one line that says what and where."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slackwater import cli
from slackwater.kafka import KafkaAdmin
from slackwater.kafka.admin import NewTopic
from slackwater_operator.cli import operator
from slackwater_operator.cli.kubectl import plugin
from tests.support.devbroker import DevBroker
from tests.support.processes import reserve_ports
from tests.worker.integration.commands.group_settings import group_settings

Main = Callable[[Sequence[str]], int]

NOT_YAML = "a: [\n"
FILES = {
    "empty.yaml": "",
    "list.yaml": "- 1\n",
    "not.yaml": NOT_YAML,
    "no-handler.yaml": "handler: nowhere:f\n",
    "no-letters.yaml": "handler: os:getcwd\n",
    "good.properties": "",
    "bad.properties": "security.protocol=NONE\n",
    "none.kubeconfig": NOT_YAML,
    "list.kubeconfig": "- 1\n",
}

WORDS = [  # of every program: the words, and what the line must have
    ("", "COMMAND"),
    ("no-such", "there is no command no-such"),
    ("--no-such", "COMMAND"),
]

CLIENTS = [
    ("topics --no-such", "--no-such"),
    ("topics -b kafka:port", "'kafka:port' is not host:port"),
    ("topics -b ''", "write host:port"),
    ("topics --command-config none.properties", "none.properties: cannot be read: No such file"),
    ("topics --command-config bad.properties", "bad.properties: security.protocol='NONE'"),
    ("topics --command-config .", "cannot be read: Is a directory"),
    ("topics no-such", "there is no topic no-such"),
    ("topics 'a b'", "'a b'"),
    ("topics --create 'a b'", "'a b'"),
    ("topics --create t", "the topic t exists already"),
    ("topics --create u --partitions 0", "at least 1, not '0'"),
    ("topics --create u --partitions many", "at least 1, not 'many'"),
    ("topics --create u --replication-factor 9", "INVALID_REPLICATION_FACTOR"),
    ("topics --create u t", "--create takes no other TOPIC"),
    ("topics --partitions 3", "are for --create"),
    ("topics --output xml", "'xml'"),
    ("produce", "TOPIC"),
    ("produce no-such", "there is no topic no-such"),
    ("produce t --partition 2", "t-2 does not exist: the topic has 2 partitions"),
    ("produce t --partition -1", "not '-1'"),
    ("produce t --key-separator ''", "--key-separator"),
    ("produce t -b kafka:port", "'kafka:port'"),
    ("tail", "required"),
    ("tail no-such", "there is no topic no-such"),
    ("tail t:2:start", "t-2 does not exist"),
    ("tail t:0:7", "offset 7 is not in the log"),
    ("tail t:yesterday", "'t:yesterday'"),
    ("tail t --limit 0", "at least 1, not '0'"),
    ("tail t -b kafka:port", "'kafka:port'"),
    ("lag no-such", "there is no group no-such"),
    ("lag -b kafka:port", "'kafka:port'"),
    ("rewind", "--config"),
    ("rewind --config none.yaml t:0:0", "none.yaml: cannot be read"),
    ("rewind --config not.yaml t:0:0", "not.yaml: line 2"),
    ("rewind --config group.yaml t", "'t' is not TOPIC:PARTITION:OFFSET"),
    ("rewind --config group.yaml no-such:0:1", "there is no topic no-such"),
    ("rewind --config group.yaml t:2:0", "t-2 does not exist"),
    ("rewind --config group.yaml t:0:7", "offset 7 is not in the log"),
    ("devbroker", "--data"),
    ("devbroker --data good.properties", "good.properties"),
    ("devbroker --data data --port 70000", "not '70000'"),
    ("devbroker --data data --control-port x", "not 'x'"),
    ("devbroker --data data --set num.partitions", "key=value"),
    ("devbroker --data data --set no.such=1", "no.such"),
    ("version now", "now"),
]

GROUP_COMMANDS = {  # a command that reads a group's file, and the rest of its words
    "try": "--from t",
    "dlq list": "",
    "dlq show": "",
    "dlq replay": "--all",
    "backfill": "--from earliest",
}
GROUP = [
    *(
        (f"{command} {given} {rest}", words)
        for command, rest in GROUP_COMMANDS.items()
        for given, words in (
            ("", "one of the arguments -f/--file --config"),
            ("--config none.yaml", "none.yaml: cannot be read: No such file"),
            ("--config not.yaml", "not.yaml: line 2"),
            ("--config list.yaml", "list.yaml: must be a mapping"),
            ("--config empty.yaml", "empty.yaml: must be a mapping"),
            ("--config .", "cannot be read: Is a directory"),
            ("-f none.yaml", "none.yaml: cannot be read: No such file"),
            ("-f not.yaml", "not.yaml:2: is not YAML"),
            ("-f empty.yaml", "empty.yaml: is empty"),
            ("-f group.yaml", "unknown field"),
            ("--config group.yaml --bootstrap kafka:port", "'kafka:port'"),
        )
    ),
    ("try --config group.yaml", "--from"),
    ("try --config group.yaml --from no-such", "there is no topic no-such"),
    ("try --config group.yaml --from t:2:start", "t-2 does not exist"),
    ("try --config group.yaml --from t --limit 0", "not '0'"),
    ("try --config group.yaml --from t --output rows.csv", "'rows.csv'"),
    ("try --config no-handler.yaml --from t", "handler nowhere:f"),
    ("dlq no-such --config group.yaml", "there is no command no-such"),
    ("dlq list --config no-letters.yaml", "has no deadLetterTopic"),
    ("dlq list --config group.yaml --since yesterday", "'yesterday'"),
    ("dlq list --config group.yaml --partition x", "'x'"),
    ("dlq show --config group.yaml --limit 0", "at least 1, not '0'"),
    ("dlq replay --config group.yaml", "say which letters"),
    ("dlq replay --config group.yaml --all --to no-such", "there is no topic no-such"),
    ("dlq replay --config group.yaml --all --to letters", "is the dead-letter topic"),
    ("backfill --config group.yaml", "--from"),
    ("backfill --config group.yaml --from t:", "'t:'"),
    ("backfill --config group.yaml --from no-such", "no-such, which is no topic of the group"),
    ("backfill --config group.yaml --from t:2:0", "t-2 does not exist"),
    ("backfill --config group.yaml --from earliest --sink none.yaml", "none.yaml: cannot be read"),
    ("backfill --config group.yaml --from earliest --sink not.yaml", "not.yaml: is no YAML"),
    ("backfill --config group.yaml --from earliest --sink empty.yaml", "empty.yaml: has no sink"),
    ("backfill --config group.yaml --from earliest --sink no-such=1", "sink.no-such: unknown field"),
    ("backfill --config group.yaml --from earliest --batch-rows 0", "not '0'"),
    ("backfill --config group.yaml --from earliest --name 'a b'", "'a b'"),
]

RESOURCES = [  # of the subcommands that the operator's distribution adds
    ("local", "COMMAND"),
    ("local no-such", "there is no command no-such"),
    ("local run", "-f/--file"),
    ("local run -f none.yaml", "none.yaml: cannot be read: No such file"),
    ("local run -f not.yaml", "not.yaml:2: is not YAML"),
    ("local run -f empty.yaml", "empty.yaml: is empty"),
    ("local run -f group.yaml", "unknown field"),
    ("local run -f .", "cannot be read: Is a directory"),
    ("demo --seconds x", "'x'"),
    ("demo --bootstrap kafka:port", "'kafka:port'"),
    ("explain", "GROUP"),
    ("explain g -o xml", "'xml'"),
]

PLUGIN = [
    ("status", "GROUP"),
    ("status g --no-such", "--no-such"),
    ("scale g", "--replicas"),
    ("scale g --replicas x", "'x'"),
    ("rewind g", "START"),
    ("rewind g t", "'t' is not TOPIC:PARTITION:OFFSET"),
]
OPERATOR = [
    ("--no-such", "--no-such"),
    ("no-such", "no-such"),
    ("--http-port x", "--http-port"),
    ("--namespace A_B", "--namespace A_B"),
    ("--lease A_B", "--lease A_B"),
    ("--traces-endpoint x", "--traces-endpoint x"),
    ("--log-level loud", "'loud'"),
    ("check", "--selector"),
    ("check --selector a=b --expect x", "'x'"),
]
CONNECTED = ["status g", "explain g", "restart g", "history g", "logs g", "scale g --replicas 1"]
KUBECONFIGS = {
    "missing": "does not exist",
    "none.kubeconfig": "cannot be used",
    "list.kubeconfig": "cannot be used",
}


@pytest.fixture(scope="module")
def bootstrap(devbroker: DevBroker) -> str:
    with KafkaAdmin(devbroker.bootstrap) as admin:
        admin.create_topics([NewTopic("t", 2), NewTopic("letters", 1)])
    return devbroker.bootstrap


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def files(folder: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files of a group on a broker that serves."""
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", bootstrap)
    group = group_settings(bootstrap, folder)
    (folder / "group.yaml").write_text(json.dumps(group))
    (folder / "no-handler.yaml").write_text(json.dumps(group | {"handler": "nowhere:f"}))
    del group["deadLetterTopic"]
    (folder / "no-letters.yaml").write_text(json.dumps(group))
    return folder


def check(main: Main, line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a command line: it must be refused in one line that has ``words``."""
    try:
        code: object = main(shlex.split(line))
    except SystemExit as exc:
        code = exc.code
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, ""), shown.err
    [message] = shown.err.splitlines()
    assert ": error: " in message
    assert words in message


@pytest.mark.parametrize(("line", "words"), [*WORDS, *CLIENTS, *GROUP, *RESOURCES])
def test_slackwater(files: Path, capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    check(cli.main, line, words, capsys)
    assert not (files / "rows").exists()


@pytest.mark.parametrize(("line", "words"), [*WORDS, *PLUGIN])
def test_kubectl_slackwater(folder: Path, capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    check(plugin.main, line, words, capsys)


@pytest.mark.parametrize(("line", "words"), OPERATOR)
def test_slackwater_operator(folder: Path, capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    check(operator.main, line, words, capsys)


@pytest.mark.parametrize("kubeconfig", KUBECONFIGS)
def test_a_kubeconfig(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kubeconfig: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(folder / kubeconfig))
    for line in CONNECTED:
        check(plugin.main, line, KUBECONFIGS[kubeconfig], capsys)
    check(cli.main, "explain g", KUBECONFIGS[kubeconfig], capsys)
    check(operator.main, "check --selector a=b", KUBECONFIGS[kubeconfig], capsys)


def test_a_context_that_the_kubeconfig_does_not_have(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [port] = reserve_ports(1)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "here",
    }
    (folder / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    check(plugin.main, "status g --context there", "context there cannot be used", capsys)


@pytest.mark.parametrize(
    ("name", "words", "options"),
    [
        ("none.yaml", "none.yaml: cannot be read: No such file", []),
        ("not.yaml", "not.yaml: line 2", []),
        ("list.yaml", "list.yaml: must be a mapping", ["--preflight"]),
    ],
)
def test_slackwater_worker(folder: Path, name: str, words: str, options: list[str]) -> None:
    """A worker's standard output has its events, whatever happens; its process ends at once."""
    done = subprocess.run(
        [sys.executable, "-m", "slackwater", "worker", "--config", name, *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SLACKWATER_INSTANCE_ID": "w-0"},
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
