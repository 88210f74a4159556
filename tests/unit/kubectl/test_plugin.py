"""`kubectl slackwater`: its command line, completions, and what needs no API server."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from slackwater_operator.cli.kubectl import history, logs, plugin

NOW_MS = 1_700_000_060_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["statsu", "flights"], "there is no command statsu; did you mean status?"),
        (["xyz"], "there is no command xyz"),
        ([], "the following arguments are required: COMMAND"),
        (["scale", "flights", "--replicas", "-1"], "'-1' is not a number of workers"),
        (["rewind", "flights", "flights:3"], "'flights:3' is not TOPIC:PARTITION:OFFSET"),
        (["explain", "flights", "-o", "yaml"], "argument -o/--output: invalid choice: 'yaml'"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        plugin.main(arguments)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("kubectl slackwater")
    assert message in line


def completions(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert plugin.complete(words) == 0
    *candidates, directive = capsys.readouterr().out.splitlines()
    assert directive == ":4", "kubectl completes no file names"
    return candidates


def test_commands_and_options_are_completed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert completions(capsys, "re") == ["restart", "resume", "retry", "rewind"]
    assert "status" in completions(capsys, "")
    assert completions(capsys, "-n", "air", "hist") == ["history"]
    assert completions(capsys, "scale", "flights", "--re") == ["--replicas"]
    assert completions(capsys, "scale", "") == [], "no API server, no names"
    assert completions(capsys, "restart", "flights", "") == [], "there is one group"


def test_logs_are_those_of_the_workers() -> None:
    args = argparse.Namespace(group="flights", context="test", follow=True, since="10m", tail="5")
    line = logs.command(args, "/bin/kubectl", "air")
    assert line[:4] == ["/bin/kubectl", "logs", "--namespace", "air"]
    assert "app.kubernetes.io/name=slackwater-worker,slackwater.dev/group=flights" in line
    assert line[-5:] == ["--context", "test", "--follow", "--since", "10m"]


def revision(name: str, created: str, image: str, hash_: str) -> dict[str, object]:
    template = {
        "metadata": {"labels": {"slackwater.dev/revision": hash_}},
        "spec": {"containers": [{"name": "proxy", "image": "p"}, {"name": "worker", "image": image}]},
    }
    return {
        "metadata": {"name": name, "creationTimestamp": created},
        "revision": 1,
        "data": {"spec": {"template": template}},
    }


def test_the_history_names_what_is_wanted_good_and_failed() -> None:
    revisions = [
        revision("flights-1", "2023-11-14T20:13:20Z", "flights:1", "aa"),
        revision("flights-2", "2023-11-14T22:13:20Z", "flights:2", "bb"),
    ]
    status = {"rollout": {"target": "flights-1", "good": "flights-1", "failed": {"hash": "bb"}}}
    assert history.rows(revisions, status, {"flights-1": 3}, NOW_MS) == [
        ("flights-2", "1 min ago", "0", "flights:2", "failed"),
        ("flights-1", "2 h ago", "3", "flights:1", "wanted, good"),
    ]
    assert history.rows([], {}, {}, NOW_MS) == []
