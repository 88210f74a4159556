"""``slackwater topics | produce | tail | lag`` against the dev broker and Apache Kafka."""

from __future__ import annotations

import io
import json
from pathlib import Path
from uuid import uuid4

import pytest

from slackwater import cli
from slackwater.kafka import KafkaConsumer
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster


class Shell:
    """Runs commands with a standard input, and reads what they print."""

    def __init__(
        self, bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = f"look-{uuid4().hex[:8]}"
        monkeypatch.setenv("SLACKWATER_BOOTSTRAP", bootstrap)
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str, stdin: bytes = b"") -> list[str]:
        """The lines on the standard output. The command must succeed."""
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main(list(words))
        shown = self._capsys.readouterr()
        assert (code, shown.err) == (0, "")
        return shown.out.splitlines()

    def refused(self, *words: str, stdin: bytes = b"") -> tuple[int, str]:
        """The exit code, and the line that says why."""
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main(list(words))
        shown = self._capsys.readouterr()
        assert shown.out == ""
        [line] = shown.err.splitlines()
        return code, line


@pytest.fixture(params=["devbroker", pytest.param("kafka", marks=pytest.mark.parts("kafka"))])
def shell(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    broker: DevBroker | KafkaCluster = request.getfixturevalue(request.param)
    return Shell(broker.bootstrap, monkeypatch, capsys)


def test_a_first_look(shell: Shell) -> None:
    topic = shell.topic
    assert shell("topics", "--create", topic, "--partitions", "2") == [f"created {topic} with 2 partitions"]
    lines = b"a=1\nb=2\r\nc=\nd==4\n"
    assert shell("produce", topic, "--key-separator", "=", "--partition", "0", stdin=lines) == [
        f"sent 4 records to {topic}"
    ]
    assert shell("produce", topic, "--partition", "1", stdin=b'{"n": 1}\n\xff\x00') == [
        f"sent 2 records to {topic}"
    ]
    assert shell("topics", topic) == [
        "TOPIC          PARTITIONS  REPLICAS  OFFSETS IN THE LOG",
        f"{topic}  2           1         6",
    ]
    assert any(line.split()[0] == topic for line in shell("topics")[1:])
    assert json.loads(shell("topics", topic, "--output", "json")[0])["offsets"] == 6

    text = shell("tail", topic)
    assert {line.split("  ")[0] for line in text} == {f"{topic}:0:{n}" for n in range(4)} | {
        f"{topic}:1:{n}" for n in range(2)
    }
    assert shell("tail", f"{topic}:0:end-2", "--output", "value") == ["", "=4"]
    shell("produce", topic, "--partition", "1", stdin=b"x\n" * 20)
    assert len(shell("tail", topic)) == 4 + 10, "the last ten of each partition"
    assert len(shell("tail", f"{topic}:start")) == 4 + 22
    assert shell("tail", f"{topic}:0:1", "--limit", "1", "--output", "value") == ["2"]
    records = [json.loads(line) for line in shell("tail", f"{topic}:1:0", "--output", "json")][:2]
    assert [record["value"] for record in records] == ['{"n": 1}', "0xff00"]
    assert records[0]["key"] is None
    assert shell("tail", f"{topic}:0:2100-01-01T00:00:00Z") == [], "nothing is of that time yet"


def test_the_end_of_a_topic_with_empty_partitions(shell: Shell) -> None:
    shell("topics", "--create", shell.topic, "--partitions", "6")
    shell("produce", shell.topic, "--partition", "3", stdin=b"a\n")
    shell("produce", shell.topic, "--partition", "5", stdin=b"b\n")
    assert sorted(shell("tail", shell.topic, "--output", "value")) == ["a", "b"]


def test_the_lag_of_groups(shell: Shell) -> None:
    topic, group = shell.topic, f"group-{shell.topic}"
    shell("topics", "--create", topic, "--partitions", "2")
    shell("produce", topic, "--partition", "0", stdin=b"1\n2\n3\n")
    with KafkaConsumer(
        topic,
        bootstrap_servers=shell.bootstrap,
        group_id=group,
        group_instance_id="w-0",
        enable_auto_commit=False,
    ) as consumer:
        while len(consumer.assignment()) < 2:
            consumer.poll(100)
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "")})
        head, columns, row, uncommitted = shell("lag", group)
        assert head == f"{group}: Stable, 1 members, lag at least 2"
        assert columns.split() == ["GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
        assert row.split() == [group, topic, "0", "1", "3", "2", "w-0"]
        assert uncommitted.split() == [group, topic, "1", "-", "0", "-", "w-0"]
        summed = next(line for line in shell("lag")[1:] if line.startswith(f"{group} "))
        assert summed.split() == [group, "Stable", "1", "2", "at", "least", "2"]
    assert [json.loads(line)["lag"] for line in shell("lag", group, "--output", "json")] == [2, None]
    assert shell.refused("lag", "no-such-group") == (
        2,
        "slackwater: error: there is no group no-such-group; slackwater lag lists all groups",
    )


def test_what_is_wrong_is_one_line(shell: Shell, tmp_path: Path) -> None:
    assert "no-such-topic" in shell.refused("topics", "no-such-topic")[1]
    assert "there is no topic no-such-topic" in shell.refused("tail", "no-such-topic")[1]
    assert "no-such-topic" in shell.refused("produce", "no-such-topic", stdin=b"x\n")[1]
    shell("topics", "--create", shell.topic, "--partitions", "1")
    code, line = shell.refused("produce", shell.topic, "--key-separator", ":", stdin=b"k:1\nnothing\n")
    assert line == "slackwater: error: line 2 has no key: it lacks ':'; the lines before it were sent"
    assert shell("tail", f"{shell.topic}:0:start", "--output", "value") == ["1"]
    properties = tmp_path / "client.properties"
    properties.write_text("# comment\n\nsecurity.protocol=NONE\n")
    code, line = shell.refused("topics", "--command-config", str(properties))
    assert code == 2
    assert "security.protocol" in line
    assert str(properties) in line
    properties.write_text("security.protocol\n")
    assert "line 1 is not name=value" in shell.refused("topics", "--command-config", str(properties))[1]
