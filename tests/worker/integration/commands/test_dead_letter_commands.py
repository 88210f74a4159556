"""``slackwater dlq``: a worker's dead letters are listed, shown and sent again, each once."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest

from slackwater import cli
from slackwater.clock import SYSTEM_CLOCK, SystemClock
from slackwater.kafka import KafkaAdmin, KafkaProducer
from slackwater.kafka.admin import NewTopic
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import WorkerConfig, parse
from slackwater.runtime.delivery.dead_letters import DeadLetters, DeadLetterTopic, Letter, unreadable
from slackwater.runtime.delivery.partition import CommitNote, OwnedPartition
from slackwater.tools import clients
from slackwater.tools.letters import LetterLog, Selection
from slackwater.tools.receipts import BEGIN, RECEIPT_HEADER, Receipt
from slackwater.tools.replay import UNFINISHED_MS, Replay, ReplayCounts, ReplayError
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.peers.librdkafka import StoredRecord, read_topic
from tests.support.workers.fakes import corrupt

PARTITIONS = 3
STACK = "Traceback (most recent call last):\n  File x\nValueError: seven\n"


class LetterSite:
    """A topic of 3 partitions and a dead-letter topic of 2, with letters of a group.

    ``configs``: settings of both topics.
    """

    def __init__(self, bootstrap: str, folder: Path, configs: dict[str, str] | None = None) -> None:
        name = f"dlq-{uuid4().hex[:8]}"
        self.bootstrap, self.topic, self.dlq, self.group = bootstrap, name, f"{name}.dlq", f"group-{name}"
        document = {
            "groupId": self.group,
            "topics": [name],
            "bootstrapServers": bootstrap,
            "handler": "a:b",
            "sink": {"format": "parquet", "path": "/nowhere"},
            "deadLetterTopic": self.dlq,
        }
        self.file = folder / "worker.json"
        self.file.write_text(json.dumps(document))
        self.config: WorkerConfig = parse(document)
        self.create(
            NewTopic(self.topic, PARTITIONS, configs=configs or {}),
            NewTopic(self.dlq, 2, configs=configs or {}),
        )
        self.letters = DeadLetterTopic(
            self.dlq,
            producer=lambda: clients.producer(self.config),
            reader=lambda: clients.reader(self.config),
            clock=SYSTEM_CLOCK,
        )
        self.written_ms = SYSTEM_CLOCK.wall_ms()

    def create(self, *topics: NewTopic) -> None:
        with KafkaAdmin(self.bootstrap) as admin:
            admin.create_topics(topics).unwrap()
            for topic in topics:
                admin.wait_for_topic(topic.name)

    def reject(self, partition: int, *letters: Letter, group: str = "") -> None:
        """Writes letters as a worker does."""
        owned = OwnedPartition(TopicPartition(self.topic, partition), letters=set())
        DeadLetters(group or self.group, self.letters, SYSTEM_CLOCK).write([(owned, list(letters))])

    def letter(self, offset: int, error: str = "is bad", **changes: Any) -> Letter:
        """A letter whose record is a minute old."""
        fields: dict[str, Any] = {
            "key": b"k%d" % offset,
            "value": b"\xff%d" % offset,
            "headers": [("h", b"x")],
            "timestamp_ms": self.written_ms - 60_000 + offset,
        }
        return Letter(offset, error, **{**fields, **changes})

    def known(self, partition: int) -> set[int] | None:
        """What a worker reads back of its letters."""
        owned = OwnedPartition(TopicPartition(self.topic, partition))
        DeadLetters(self.group, self.letters, SYSTEM_CLOCK).read_back([owned])
        return owned.letters

    def dlq_command(self, name: str, *arguments: str) -> int:
        return cli.main(["dlq", name, "--config", str(self.file), *arguments])

    def replayed(self, topic: str = "") -> list[StoredRecord]:
        return list(read_topic(self.bootstrap, topic or self.topic))


@pytest.fixture
def site(
    broker: KafkaCluster | DevBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[LetterSite]:
    """With the parameter as both topics' ``message.timestamp.type``."""
    times = getattr(request, "param", "CreateTime")
    made = LetterSite(broker.bootstrap, tmp_path, {"message.timestamp.type": times})
    yield made
    made.letters.close()


def test_letters_are_listed_shown_and_sent_again_once(
    site: LetterSite, capsys: pytest.CaptureFixture[str]
) -> None:
    site.reject(0, site.letter(4), site.letter(5), site.letter(9, "too long"))
    site.reject(1, site.letter(7, f"boom, at {site.topic}-1 offset 7", attempt=3, stack=STACK))
    site.reject(1, site.letter(8, f"boom, at {site.topic}-1 offset 8"))
    site.reject(0, site.letter(4, "another's"), group="another")

    assert site.dlq_command("list") == 0
    lines = capsys.readouterr().out.splitlines()
    counted = [(line.split()[:4], line.split("Z  ")[-1]) for line in lines[1:-1]]
    assert counted == [
        (["2", "0", site.topic, "0"], "is bad"),
        (["2", "0", site.topic, "1"], "boom"),
        (["1", "0", site.topic, "0"], "too long"),
    ]
    assert lines[-1] == f"dead letters of the group {site.group} in {site.dlq}: 5, replayed: 0"

    assert site.dlq_command("show", "--error", "boom", "--limit", "1") == 0
    shown = capsys.readouterr().out
    assert f"letter {site.dlq}-1 offset 0, written 2" in shown
    assert f"  record:   {site.topic}-1 offset 7, 2" in shown
    assert "  attempt:  3\n  key:      k7 (2 B)\n  value:    0xff37 (2 B)\n" in shown
    assert "  header:   h: x (1 B)\n  stack:\n    Traceback (most recent call last):\n" in shown
    assert "there are more: raise --limit (1)" in shown
    assert site.dlq_command("show", "--offset", "9", "--output", "json") == 0
    (document,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert base64.b64decode(document["valueBase64"]) == b"\xff9"
    assert (document["attempt"], document["stack"], document["replayed"]) == (1, None, False)

    assert site.dlq_command("replay", "--error", "bad", "--dry-run") == 0
    assert "selected: 2, would be sent: 2, sent before: 0" in capsys.readouterr().out
    assert site.replayed() == []

    assert site.dlq_command("replay", "--error", "bad") == 0
    assert "selected: 2, sent: 2, sent before: 0" in capsys.readouterr().out
    assert site.dlq_command("replay", "--all") == 0
    assert "selected: 5, sent: 3, sent before: 2" in capsys.readouterr().out
    assert site.dlq_command("replay", "--all") == 0
    assert "selected: 5, sent: 0, sent before: 5" in capsys.readouterr().out
    records = site.replayed()
    assert [(it.partition, it.key, it.value, it.headers["slackwater.replayed.from"]) for it in records] == [
        (0, b"k4", b"\xff4", f"{site.topic}:0:4".encode()),
        (0, b"k5", b"\xff5", f"{site.topic}:0:5".encode()),
        (0, b"k9", b"\xff9", f"{site.topic}:0:9".encode()),
        (1, b"k7", b"\xff7", f"{site.topic}:1:7".encode()),
        (1, b"k8", b"\xff8", f"{site.topic}:1:8".encode()),
    ]
    assert records[0].headers == {
        "h": b"x",
        "slackwater.replayed": f"{site.dlq}:0:0".encode(),
        "slackwater.replayed.from": f"{site.topic}:0:4".encode(),
    }
    assert timestamps(site.bootstrap, site.topic, 0) == [site.written_ms - 60_000 + at for at in (4, 5, 9)]

    assert site.dlq_command("list") == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("replayed: 5")
    assert site.known(0) == {4, 5, 9}, "workers pass over a replay's receipts"
    assert site.dlq_command("replay", "--offset", "7", "--again") == 0
    assert "selected: 1, sent: 1, sent before: 0" in capsys.readouterr().out


def timestamps(bootstrap: str, topic: str, partition: int) -> list[int]:
    options = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(options)
    place = confluent_kafka.TopicPartition(topic, partition, 0)
    end = consumer.get_watermark_offsets(place, 30)[1]
    consumer.assign([place])
    messages = [consumer.poll(30) for _ in range(end)]
    consumer.close()
    return [message.timestamp()[1] for message in messages if message is not None]


def test_records_go_to_another_topic_with_the_present_time(
    site: LetterSite, capsys: pytest.CaptureFixture[str]
) -> None:
    site, other = site, f"{site.topic}.again"
    site.create(NewTopic(other, 1))
    site.reject(2, site.letter(1), site.letter(2), site.letter(3))
    assert (
        site.dlq_command("replay", "--partition", "2", "--to", other, "--timestamp", "now", "--limit", "2")
        == 0
    )
    assert f"{other}: 2\n" in capsys.readouterr().out
    assert [record.value for record in site.replayed(other)] == [b"\xff1", b"\xff2"]
    assert min(timestamps(site.bootstrap, other, 0)) >= site.written_ms
    assert site.replayed() == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["replay"], 2, "say which letters: --topic"),
        (["replay", "--all", "--to", "no-such-topic"], 2, "there is no topic no-such-topic"),
        (["replay", "--all", "--to", "{dlq}"], 2, "is the dead-letter topic"),
        (["list", "--since", "soon"], 2, "must be a time such as"),
        (["show", "--offset", "-1"], 2, "must be a whole number"),
    ],
)
def test_what_cannot_be_done_is_named_in_one_line(
    site: LetterSite,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    site.reject(0, site.letter(1))
    command, *rest = (argument.format(dlq=site.dlq) for argument in arguments)
    try:
        ended = site.dlq_command(command, *rest)
    except SystemExit as exc:  # argparse's
        ended = int(exc.code or 0)
    error = capsys.readouterr().err
    assert (ended, error.count("\n")) == (code, 1), error
    assert words in error
    assert site.replayed() == []


def test_a_group_without_dead_letters(
    site: LetterSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(site.file.read_text())
    del document["deadLetterTopic"]
    (tmp_path / "none.json").write_text(json.dumps(document))
    assert cli.main(["dlq", "list", "--config", str(tmp_path / "none.json")]) == 2
    assert f"the group {site.group} has no deadLetterTopic" in capsys.readouterr().err


# -- replays that are cut short, and two at once -------------------------------------------------------------


class Cut(BaseException):
    """Ends the replay as SIGKILL would: nothing of it is run any more."""


class CutProducer:
    """The real producer, which ends the replay when it is given the record number ``after`` (from 0), or when
    the broker has all."""

    def __init__(self, config: WorkerConfig, after: int) -> None:
        self._producer, self._left = clients.producer(config), after

    def send(self, topic: str, **record: Any) -> Any:
        if "partition" in record and topic.endswith(".dlq"):
            return self._producer.send(topic, **record)
        if not self._left:
            self._producer.flush()
            raise Cut
        self._left -= 1
        return self._producer.send(topic, **record)

    def flush(self) -> None:
        self._producer.flush()
        raise Cut

    def close(self) -> None:
        self._producer.close()


class WaitedClock(SystemClock):
    """Its waits are over at once. ``meanwhile`` is called in the first."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.waited_ms, self._meanwhile = 0.0, meanwhile

    def wall_ms(self) -> int:
        return super().wall_ms() - 48 * 3_600_000  # behind the clock of whoever has begun

    def mono_ms(self) -> float:
        return super().mono_ms() + self.waited_ms

    def sleep(self, ms: float) -> None:
        self.waited_ms += ms
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()


def replay(site: LetterSite, producer: Any = None, **options: Any) -> ReplayCounts:
    with clients.reader(site.config) as first, clients.reader(site.config) as second:
        make = producer or (lambda: clients.producer(site.config))
        return Replay(LetterLog(first, site.dlq), second, make, **options).run(Selection(site.group))


@pytest.mark.parametrize("site", ["CreateTime", "LogAppendTime"], indirect=True)
def test_letters_are_read_back_from_an_offset_whatever_their_times_are(site: LetterSite) -> None:
    site.reject(0, *(site.letter(offset) for offset in range(4)))
    assert site.letters.end(0) == 4
    owned = OwnedPartition(TopicPartition(site.topic, 0))
    owned.set_committed(0, CommitNote(1, "w-0", letters=(0, 2, 9)).encode())
    DeadLetters(site.group, site.letters, SYSTEM_CLOCK).read_back([owned])
    assert (owned.letters, owned.letters_place) == ({2, 3}, (0, 4))
    assert len(list(site.letters.headers_since(0, 100))) == 4, "of a topic that was made again"


def test_a_letter_that_its_topic_does_not_take_is_cut_and_not_sent_again(
    site: LetterSite, capsys: pytest.CaptureFixture[str]
) -> None:
    site.dlq += ".small"
    site.create(NewTopic(site.dlq, 1, configs={"max.message.bytes": "15000"}))
    document = json.loads(site.file.read_text())
    site.file.write_text(json.dumps({**document, "deadLetterTopic": site.dlq}))
    site.letters._topic = site.dlq
    value, headers = random.Random(1).randbytes(14_990), [("h", b"x" * (11 << 20))]
    site.reject(
        0, site.letter(1), site.letter(2, value=value), site.letter(3, key=value, stack="\x1b" * 4000)
    )
    site.reject(0, site.letter(4, headers=headers), site.letter(5, error="long" * 1000, value=None))
    assert site.known(0) == {1, 2, 3, 4, 5}

    assert site.dlq_command("show", "--output", "json") == 0
    letters = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = {letter["source"]["offset"]: letter for letter in letters}
    whole = [offset for offset, letter in shown.items() if letter["cut"] is None]
    assert sorted(whole) == [1, 5]
    assert json.loads(shown[2]["cut"]) == {
        "keyBytes": 2,
        "valueBytes": len(value),
        "sha256": hashlib.sha256(value).hexdigest(),
    }
    assert base64.b64decode(shown[2]["valueBase64"]) == value[:1024]
    assert [shown[3]["key"], shown[4]["headers"], shown[4]["error"]] == [None, [], "is bad"]
    counts = replay(site)
    assert (counts.selected, counts.sent, counts.cut) == (5, 2, 3)


def test_a_batch_that_could_not_be_read_is_a_letter_and_not_sent_again(site: LetterSite) -> None:
    batch = unreadable(corrupt(TopicPartition(site.topic, 0), 2, range(2, 5)))
    site.reject(0, site.letter(1), batch)
    assert site.known(0) == {1, ~2}
    counts = replay(site)
    assert (counts.selected, counts.sent, counts.batches) == (2, 1, 1)


def test_a_replay_that_goes_on_while_another_waits_for_its_end_is_left_alone(site: LetterSite) -> None:
    site.reject(0, *(site.letter(offset) for offset in range(5)))
    with pytest.raises(Cut):
        replay(site, lambda: CutProducer(site.config, 2))
    begun = TopicPartition(site.dlq, 0), Receipt(BEGIN, "other", (3,), site.topic, {0: 0, 1: 0})

    def goes_on() -> None:
        with clients.producer(site.config) as producer:
            headers = [(RECEIPT_HEADER, BEGIN.encode())]
            producer.send(begun[0].topic, value=begun[1].encode(), headers=headers, partition=0).get()

    with pytest.raises(ReplayError, match="another replay is at work"):
        replay(site, clock=WaitedClock(goes_on))
    assert len(site.replayed()) == 2


@pytest.mark.parametrize(
    ("after", "site"),
    [(0, "CreateTime"), (2, "CreateTime"), (5, "CreateTime"), (2, "LogAppendTime")],
    indirect=["site"],
)
def test_a_replay_that_was_killed_is_finished_by_the_next_one(site: LetterSite, after: int) -> None:
    site = site
    site.reject(0, *(site.letter(offset) for offset in range(5)))
    with pytest.raises(Cut):
        replay(site, lambda: CutProducer(site.config, after))
    assert [record.key for record in site.replayed()] == [b"k%d" % at for at in range(after)]
    clock = WaitedClock()
    assert replay(site, dry_run=True, clock=clock) == ReplayCounts(
        selected=5, sent=5 - after, before=after, by_target={site.topic: 5 - after} if after < 5 else {}
    )
    assert clock.waited_ms > UNFINISHED_MS / 2, "the killed one may have been at work"
    assert replay(site, clock=WaitedClock()).sent == 5 - after
    assert sorted(record.key or b"" for record in site.replayed()) == [b"k%d" % at for at in range(5)]
    assert replay(site).before == 5, "the end of the killed one is noted"


def test_what_a_killed_replay_has_sent_cannot_be_seen_any_more(site: LetterSite) -> None:
    """The records that it may have sent were deleted: its letters are left out, unless they are asked for."""
    site = site
    site.reject(0, *(site.letter(offset) for offset in range(3)))
    other = f"{site.topic}.gone"
    site.create(NewTopic(other, 1))
    with pytest.raises(Cut):
        replay(site, lambda: CutProducer(site.config, 1), to=other)
    with KafkaAdmin(site.bootstrap) as admin:
        admin.delete_topics([other]).unwrap()
        admin.wait_for_topic_deleted(other)
    counts = replay(site, clock=WaitedClock())
    assert (counts.sent, counts.unknown) == (0, 3)
    assert replay(site, clock=WaitedClock(), again=True).sent == 3


def test_of_two_replays_at_once_one_sends(site: LetterSite) -> None:
    """The second one runs as a whole between the first one's reading and its first receipt."""
    site = site
    site.reject(0, *(site.letter(offset) for offset in range(3)))

    def overtaken() -> KafkaProducer:
        assert replay(site).sent == 3
        return clients.producer(site.config)

    with pytest.raises(ReplayError, match="another replay is at work"):
        replay(site, overtaken)
    assert [record.key for record in site.replayed()] == [b"k0", b"k1", b"k2"]
    assert replay(site).before == 3, "the one that gave way leaves nothing unfinished"


def test_records_that_retention_would_delete_are_refused(
    kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a real broker's settings; the dev broker has no retention."""
    site = LetterSite(kafka.bootstrap, tmp_path)
    short = f"{site.topic}.short"
    site.create(NewTopic(short, 1, configs={"retention.ms": "30000"}))
    site.reject(0, site.letter(1))
    site.letters.close()
    assert site.dlq_command("replay", "--all", "--to", short) == 2
    assert (
        f"older than the retention.ms of {short}, which would delete it: send with" in capsys.readouterr().err
    )
    assert site.dlq_command("replay", "--all", "--to", short, "--timestamp", "now") == 0
    assert len(site.replayed(short)) == 1


def test_a_letter_cannot_send_records_to_a_topic_that_the_group_does_not_consume(
    site: LetterSite, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever can write to the dead-letter topic can write letters of any topic."""
    site, other = site, f"{site.topic}.payments"
    site.create(NewTopic(other, 1))
    owned = OwnedPartition(TopicPartition(other, 0), letters=set())
    DeadLetters(site.group, site.letters, SYSTEM_CLOCK).write([(owned, [site.letter(1)])])
    assert site.dlq_command("replay", "--all") == 2
    error = capsys.readouterr().err
    assert f"is of {other}, a topic that the group does not consume" in error
    assert site.replayed(other) == []
    assert site.dlq_command("replay", "--topic", other, "--to", other) == 0
    assert len(site.replayed(other)) == 1


def test_many_letters_go_in_batches(site: LetterSite, capsys: pytest.CaptureFixture[str]) -> None:
    site = site
    site.reject(0, *(site.letter(offset, value=b"v") for offset in range(1201)))
    assert site.dlq_command("replay", "--all") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[2].split(",")[0] for line in lines[:3]] == ["500", "500", "201"]
    assert [record.key for record in site.replayed()] == [b"k%d" % at for at in range(1201)]
