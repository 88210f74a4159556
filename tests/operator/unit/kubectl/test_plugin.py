"""`kubectl slackwater`: its command line, completions, and what needs no API server."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.cli.kubectl import history, lag, logs, plugin, undo
from slackwater_operator.cli.kubectl.cluster import CommandError
from slackwater_operator.cli.kubectl.undo import KeptRevision
from slackwater_operator.model.worker_status import WorkerStatus
from tests.operator.unit.kubernetes.kubeconfig_files import document, written

NOW_MS = 1_700_000_060_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["statsu", "flights"], "there is no command statsu; did you mean status?"),
        (["xyz"], "there is no command xyz"),
        ([], "the following arguments are required: COMMAND"),
        (["scale", "flights", "--replicas", "-1"], "must be a whole number of at least 0, not '-1'"),
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


def logs_command(*arguments: str) -> list[str]:
    return logs.command(plugin.parser().parse_args(["logs", "flights", *arguments]), "/bin/kubectl", "air")


def test_logs_are_those_of_the_workers() -> None:
    line = logs_command("--context", "test", "-f", "--since", "10m", "--tail", "5", "--previous")
    assert line[:4] == ["/bin/kubectl", "logs", "--namespace", "air"]
    assert "app.kubernetes.io/name=slackwater-worker,slackwater.dev/group=flights" in line
    assert line[-6:] == ["--context", "test", "--follow", "--since", "10m", "--previous"]
    assert line[line.index("--tail") + 1] == "5"


def test_logs_of_some_pods() -> None:
    line = logs_command("--pod", "flights-0", "--pod", "flights-3")
    selector = line[line.index("--selector") + 1]
    assert selector.endswith(",statefulset.kubernetes.io/pod-name in (flights-0,flights-3)")


def test_events_are_looked_for_in_all_lines() -> None:
    line = logs_command("--event", "error")
    assert line[line.index("--tail") + 1] == "-1"
    lines = [
        '[pod/flights-0/worker] {"event": "error", "message": "the sink is away"}\n',
        '[pod/flights-0/worker] {"event": "joined", "message": "error"}\n',
        "[pod/flights-1/worker] error: no JSON\n",
        "[pod/flights-1/worker] [1]\n",
    ]
    assert list(logs.of_events(lines, ["error"])) == lines[:1]


@pytest.mark.parametrize(
    "words", [["restart", "flights"], ["suspend", "flights"], ["scale", "flights", "--replicas", "2"]]
)
async def test_what_the_plugin_writes_names_the_plugin(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator gives up fields of the spec that are its own in managedFields (`ReleaseSpec`)."""
    managers: list[tuple[str | None, str]] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "PATCH":
            managers.append((request.query.get("fieldManager"), request.headers["User-Agent"]))
        return web.json_response({"metadata": {"name": "flights"}, "spec": {}})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        [(host, port)] = runner.addresses
        config = document(server=f"http://{host}:{port}")
        monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "config", config)))
        args = plugin.parser().parse_args(words)
        await args.run_async(args)
    finally:
        await runner.cleanup()
    assert managers == [("kubectl-slackwater", "kubectl-slackwater")]


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
    older = KeptRevision(1, "00", "2023-11-14T20:13:20Z", {"spec": {"pipeline": {"image": "flights:0"}}})
    kept = [KeptRevision(3, "bb", "", {"spec": {}}), KeptRevision(2, "aa", "", {"spec": {}}), older]
    rollout = {"good": "flights-1", "wanted": "bb", "failed": {"hash": "bb"}}
    rows = history.rows(revisions, kept, {"rollout": rollout, "revision": "aa"}, {"aa": 3}, NOW_MS)
    assert rows == [
        ("3", "bb", "1 min ago", "0", "flights:2", "wanted, failed"),
        ("2", "aa", "2 h 1 min ago", "3", "flights:1", "good"),
        ("1", "00", "2 h 1 min ago", "0", "flights:0", ""),
    ]
    assert history.rows([], [], {}, {}, NOW_MS) == []


def test_undo_takes_the_latest_revision_that_is_neither_present_nor_failed() -> None:
    def kept(number: int, name: str) -> KeptRevision:
        return KeptRevision(number, name, "", {"spec": {"image": name}, "restartedAt": None})

    revisions = [kept(4, "dd"), kept(3, "cc"), kept(2, "bb"), kept(1, "aa")]
    rollout = {"wanted": "dd", "failed": {"hash": "cc"}}
    group = {"metadata": {}, "spec": {"image": "dd"}, "status": {"rollout": rollout}}
    assert undo.chosen(revisions, group, "").name == "bb"
    assert undo.chosen(revisions, group, "1").name == "aa"
    assert undo.chosen(revisions, group, "cc").number == 3
    with pytest.raises(CommandError, match="revision 7 is not kept; kept: 4, 3, 2, 1"):
        undo.chosen(revisions, group, "7")
    with pytest.raises(CommandError, match="no earlier revision"):
        undo.chosen(revisions[:2], group, "")
    body = undo.patch(group, kept(3, "cc"))
    assert body["spec"] == {"image": "cc"}
    assert body["metadata"]["annotations"]["slackwater.dev/retry"], "it failed, and is wanted all the same"
    assert undo.patch(group, kept(4, "dd")) == {}


def test_a_merge_patch_removes_what_the_earlier_spec_does_not_have() -> None:
    before = {"a": {"b": 1, "c": {"d": 2}}, "e": [1, 2], "f": 1}
    after = {"a": {"b": 1, "c": {"g": 3}}, "e": [2], "h": {"i": 1}}
    patch = undo.merge_patch(before, after)
    assert patch == {"f": None, "a": {"c": {"d": None, "g": 3}}, "e": [2], "h": {"i": 1}}


def test_the_partitions_are_listed_with_their_lag() -> None:
    topics = [TopicPartition("flights", 1), TopicPartition("flights", 0), TopicPartition("b", 0)]
    member = WorkerStatus("running", 3, assignment=frozenset(topics), lag={topics[0]: 12_345, topics[1]: 2})
    reports: dict[str, WorkerStatus | str] = {"flights-0": member, "flights-1": "does not answer: x"}
    assert lag.rows(reports) == [
        ("b", "0", "?", "flights-0"),
        ("flights", "0", "2", "flights-0"),
        ("flights", "1", "12,345", "flights-0"),
    ]
    assert lag.rows(reports, by_lag=True)[0] == ("flights", "1", "12,345", "flights-0")
