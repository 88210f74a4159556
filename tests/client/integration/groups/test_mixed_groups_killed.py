"""Ours and another client in one group whose members are killed and added while records flow.

Each member is a process of its own. All stories that were asked for run side by side, since they mostly
wait for the sessions of the killed to end; what is tested is each one's outcome.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from slackwater.kafka.wire import messages as m
from tests.support.java.programs import compiled
from tests.support.kafka import KafkaCluster
from tests.support.peers.group_journal import Verdict, check
from tests.support.peers.numbered_producer import NumberedProducer
from tests.support.peers.peer import BROKER_ASSIGNS, JAVA, OURS, Peer, peers, wait_for
from tests.support.waiting import HANG_S
from tests.support.wire.rawclient import RawClient, create_topic, describe

pytestmark = pytest.mark.long

PARTITIONS = 8
SIDE_BY_SIDE = 4
"""How many stories at a time: each has four or five processes."""


class Story(NamedTuple):
    """Who is in the group besides ours, by which assignor, and which of the two comes first, and leads."""

    other: str
    strategy: str
    first: str


def _stories() -> list[Any]:
    stories = []
    for other, strategy in itertools.product(
        (JAVA, "confluent-kafka", "kafka-python", "aiokafka"), ("range", "cooperative-sticky", BROKER_ASSIGNS)
    ):
        if (other, strategy) in (
            ("aiokafka", "cooperative-sticky"), ("aiokafka", BROKER_ASSIGNS), ("kafka-python", BROKER_ASSIGNS)
        ):  # fmt: skip
            continue  # It has no such assignor, or not this protocol.
        for first in (OURS, other):
            story = Story(other, strategy, first)
            marks = [pytest.mark.parts("java")] if other == JAVA else []
            stories.append(pytest.param(story, marks=marks, id="-".join(story)))
    return stories


class Scene:
    """A story under way: the group's topic, its members, and the records that flow."""

    def __init__(self, bootstrap: str, story: Story, running: list[Peer]) -> None:
        self.bootstrap, self.story, self._started = bootstrap, story, running
        self.topic = f"killed-{uuid.uuid4().hex[:8]}"
        self.here: list[Peer] = []

    def add(self, kind: str, instance: str | None = None) -> Peer:
        """Starts a member; a static one with an ``instance``."""
        name = f"{kind}-{len(self._started)}"
        where: dict[str, Any] = {"bootstrap": self.bootstrap, "topic": self.topic, "group": self.topic}
        # confluent-kafka adds a NUL to the metadata that it commits, and reads on behind the end of others'.
        note = "" if "confluent-kafka" in self.story else name
        peer = Peer(kind, name, strategy=self.story.strategy, instance=instance, metadata=note, **where)
        self._started.append(peer)
        self.here.append(peer)
        return peer

    def kill(self, peer: Peer) -> None:
        """SIGKILL."""
        self.here.remove(peer)
        peer.kill()

    def leave(self, peer: Peer) -> None:
        """A close as it should be."""
        self.here.remove(peer)
        peer.close()

    def settle(self, client: RawClient, what: str) -> None:
        """Waits until the group is Stable, all are in, and every partition is owned by exactly one."""

        def settled() -> bool:
            owned = sorted(number for peer in self.here for number in peer.owned)
            shown: Any
            if self.story.strategy == BROKER_ASSIGNS:
                asked = m.ConsumerGroupDescribeRequest(group_ids=[self.topic])
                shown = client.request(asked, 1).groups[0]
            else:
                shown = describe(client, self.topic)
            return (
                owned == list(range(PARTITIONS))
                and all(peer.owned for peer in self.here)
                and (shown.group_state, len(shown.members)) == ("Stable", len(self.here))
            )

        wait_for(what, settled, self.here)


class Outcome(NamedTuple):
    """``refused``: by kind, how many commits the broker refused."""

    verdict: Verdict
    produced: int
    refused: Counter[str]


def play(bootstrap: str, story: Story) -> Outcome:
    """Members of both kinds come; one of each is killed, the leader too; others come; one leaves.

    Returns the verdict on what all said.
    """
    second = story.other if story.first == OURS else OURS
    with peers() as running, RawClient.to(bootstrap) as client:
        scene = Scene(bootstrap, story, running)
        create_topic(client, scene.topic, PARTITIONS)
        with NumberedProducer(bootstrap, scene.topic, PARTITIONS, rate=400) as producer:
            lead = scene.add(story.first)
            scene.settle(client, "the first member")
            scene.add(second)
            scene.settle(client, "the second member")
            kept, doomed = scene.add(story.first), scene.add(second)
            scene.settle(client, "four members")
            scene.kill(lead)
            scene.kill(doomed)
            scene.settle(client, "the survivors of both kills")
            scene.add(story.first)
            scene.settle(client, "a newcomer")
            scene.leave(kept)
            scene.settle(client, "the others after one has left")
            producer.finish()
            wait_for("reading all", lambda: all_read(running, producer), scene.here)
        ends = {number: max(stored) + 1 for number, stored in producer.stored.items()}
        _agree_on_commits(scene.here, ends)
        for peer in list(scene.here):
            scene.leave(peer)
        events = [event for peer in running for event in peer.events]
        refused = Counter(peer.kind for peer in running for _ in peer.said("refused"))
        return Outcome(check(events, producer.stored), producer.count, refused)


def all_read(running: Sequence[Peer], producer: NumberedProducer) -> bool:
    furthest = dict.fromkeys(range(PARTITIONS), -1)
    for peer in running:
        for event in peer.said("committed"):
            for number, offset in event.fields["offsets"].items():
                furthest[int(number)] = max(furthest[int(number)], offset - 1)
    return all(furthest[number] >= max(stored) for number, stored in producer.stored.items())


def _agree_on_commits(here: Sequence[Peer], ends: dict[int, int]) -> None:
    """Each member reads the group's offsets, whoever committed them: the ends of the log."""
    for peer in here:
        peer.order("committed")
    wait_for("telling the group's offsets", lambda: all(peer.said("group") for peer in here), here)
    for peer in here:
        offsets = peer.said("group")[-1].fields["offsets"]
        assert {int(number): offset for number, (offset, _) in offsets.items()} == ends, peer.name
        # Not by aiokafka, which gives no metadata, and not with confluent-kafka, see add().
        notes = {metadata.rstrip("\0") for _, metadata in offsets.values()} - {""}
        assert notes <= {resource.name for resource in here}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, kafka: KafkaCluster) -> Iterator[dict[Story, Future[Outcome]]]:
    """Every story that was asked for, some at a time."""
    wanted: list[Any] = [
        item.callspec.params["story"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_no_record_is_missed.__name__
    ]
    if any(story.other == JAVA for story in wanted):
        compiled()  # so that its members all start at once
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {story: pool.submit(play, kafka.bootstrap, story) for story in wanted}


@pytest.mark.parametrize("story", _stories())
def test_no_record_is_missed(outcomes: dict[Story, Future[Outcome]], story: Story) -> None:
    """All records are read. Only uncommitted records are read again, and no committed offset decreases."""
    verdict, produced, refused = outcomes[story].result(timeout=HANG_S)
    print(f"{produced} records, {verdict.again} again, {verdict.commits} commits, refused: {dict(refused)}")
    assert verdict.problems == []
    assert len(verdict.read) == produced
