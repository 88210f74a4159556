"""What must always hold. A check that fails ends the run with :class:`Broken`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from slackwater.devbroker.group.store import OffsetRecord
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from tests.client.simulation.logs import id_of

if TYPE_CHECKING:
    from tests.client.simulation.pod import Pod
    from tests.client.simulation.site import Site

REQUESTS_A_SECOND = 100
"""How many requests a pod may send in a second of virtual time, beside commits that are new."""
_API_KEY = slice(4, 6)
_CORRELATION_ID = slice(8, 12)


class Broken(AssertionError):
    """Something that must always hold does not. ``rule`` is its short name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


def is_of_consumer_protocol(group: dict[str, Any]) -> bool:
    """Whether the group, as the coordinator describes it, is one of the consumer protocol."""
    return "epoch" in group


def generation_of(group: dict[str, Any]) -> int:
    """The group's generation, or epoch."""
    return int(group["epoch"] if is_of_consumer_protocol(group) else group["generation"])


class Checks:
    """Watches a site. ``counts`` counts what happened, to show that runs are not empty."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.broken: Broken | None = None
        self.handled: dict[TopicPartition, int] = {}
        """Up to where every record was handled by some application."""
        self.counts: Counter[str] = Counter()
        self.peak = 0
        """The most requests that a pod has sent in a second."""
        self._second: dict[str, tuple[int, int]] = {}
        self._commits_sent: set[tuple[str, bytes]] = set()

    def fail(self, rule: str, text: str) -> None:
        """Ends the run; the first failure is the one that counts."""
        if self.broken is None and not self._site.over:
            self.broken = Broken(rule, text)
            self._site.story.tell("BROKEN", str(self.broken))
            self._site.end()

    # -- at the broker

    def count_request(self, client: str, frame: bytes) -> None:
        """No pod sends without end.

        An application that takes a backlog record by record may commit each of them in no time: how many
        commits that are is its own doing. So one that says what this pod has not said before does not count;
        one that is repeated does.
        """
        self.counts["requests"] += 1
        key = int.from_bytes(frame[_API_KEY], "big")
        if key == m.OffsetCommitRequest.api_key and self._is_new(client, frame):
            return
        second = int(self._site.loop.time())
        at, number = self._second.get(client, (second, 0))
        number = number + 1 if at == second else 1
        self._second[client] = (second, number)
        self.peak = max(self.peak, number)
        if number > REQUESTS_A_SECOND:
            self.fail("busy loop", f"{client} sent {number} requests within a second; the last has key {key}")

    def _is_new(self, client: str, frame: bytes) -> bool:
        said = client, frame[: _CORRELATION_ID.start] + frame[_CORRELATION_ID.stop :]
        if said in self._commits_sent:
            return False
        self._commits_sent.add(said)
        return True

    def offset_stored(self, record: OffsetRecord, before: int) -> None:
        """A commit was accepted."""
        tp = TopicPartition(record.topic, record.partition)
        committer = self._site.coordination.committer
        client, request = committer if committer is not None else ("?", None)
        self.counts["commits"] += 1
        if record.offset < before:
            self.fail(
                "committed goes back", f"{client} committed {tp} at {record.offset}, it was at {before}"
            )
        if record.offset > self.handled.get(tp, 0):
            self.fail(
                "record lost",
                f"{client} committed {tp} at {record.offset}, but only what is before "
                f"{self.handled.get(tp, 0)} has been handled",
            )
        if request is None:
            return
        for pod in self._site.live_pods():
            if pod.name != client and tp in pod.held and self.may_commit(pod, tp):
                self.fail(
                    "two owners",
                    f"{client} ({request.member_id}) committed {tp} in generation "
                    f"{request.generation_id_or_member_epoch}, in which it is {pod.name}'s ({pod.identity})",
                )

    def may_commit(self, pod: Pod, tp: TopicPartition) -> bool:
        """Whether the coordinator takes this pod for a member of the current generation; in a group of the
        consumer protocol, for a member to which the partition is assigned."""
        group = self._site.coordination.described()
        if group is None:
            return False
        generation, member_id = pod.identity
        if is_of_consumer_protocol(group):
            topic_id = str(id_of(tp.topic))
            return any(
                tp.partition in member[how].get(topic_id, ())
                for member in group["members"]
                if member["member_id"] == member_id
                for how in ("assigned", "revoking")
            )
        return generation == group["generation"] and any(
            member["member_id"] == member_id for member in group["members"]
        )

    # -- at the application

    def assigned(self, pod: Pod, partitions: Iterable[TopicPartition]) -> None:
        """A listener was told of new partitions."""
        partitions = list(partitions)
        self.counts["assigned"] += bool(partitions)
        for tp in partitions:
            if tp in pod.held:
                self.fail("listener", f"{pod.name} was assigned {tp}, which it has")
            if tp.topic not in pod.topics:
                self.fail("listener", f"{pod.name} was assigned {tp}, which it does not read")
            owners = [
                other
                for other in self._site.live_pods()
                if (tp in other.held or other is pod) and self.may_commit(other, tp)
            ]
            if len(owners) > 1:
                names = ", ".join(f"{owner.name} {owner.identity}" for owner in owners)
                self.fail("two owners", f"{tp} is owned by {names}, who may both commit")

    def taken(self, pod: Pod, partitions: Iterable[TopicPartition], how: str) -> None:
        """A listener was told that partitions go."""
        partitions = list(partitions)
        self.counts[how] += 1
        if not partitions:
            self.fail("listener", f"{pod.name} was told that nothing is {how}")
        for tp in partitions:
            if tp not in pod.held:
                self.fail("listener", f"{pod.name} was told that {tp} is {how}, which it does not have")

    def delivered(self, pod: Pod, tp: TopicPartition, first: int, following: int) -> None:
        """``poll()`` gave records ``first`` to ``following`` (not included)."""
        self.counts["delivered"] += following - first
        if tp not in pod.held:
            self.fail("delivery", f"{pod.name} got records of {tp}, which it does not have")
        if pod.fenced:
            self.fail("fence", f"{pod.name} was fenced and got records of {tp}")
        expected = pod.following.get(tp)
        if expected is None and first > self.handled.get(tp, 0):
            self.fail(
                "record lost", f"{pod.name} begins {tp} at {first}; handled before {self.handled.get(tp, 0)}"
            )
        if expected is not None and first != expected:
            self.fail("delivery", f"{pod.name} got {tp} from {first} after {expected}")

    def done(self, tp: TopicPartition, first: int, following: int) -> None:
        """An application has handled records ``first`` to ``following`` (not included)."""
        if first <= self.handled.get(tp, 0):
            self.handled[tp] = max(self.handled.get(tp, 0), following)

    # -- at the end

    def unsettled(self) -> str:
        """What is not yet as it should be when all faults are over; empty: all is well."""
        site = self._site
        group = site.coordination.described()
        pods = [pod for pod in site.live_pods() if not pod.fenced]
        if group is None or group["state"] != "Stable":
            return f"the group is {group['state'] if group else 'without a coordinator'}"
        members = sorted(member["member_id"] for member in group["members"])
        if members != sorted(pod.identity[1] for pod in pods):
            return f"members {members}, pods {[(pod.name, *pod.identity) for pod in pods]}"
        wanted = {
            log.tp for topic in {t for pod in pods for t in pod.topics} for log in site.logs.topics[topic]
        }
        owned = Counter(tp for pod in pods for tp in pod.held)
        if not is_of_consumer_protocol(group) and not any(pod.leads for pod in pods):
            # A static leader that comes back at JoinGroup v8 and below is not told that it leads (KIP-814),
            # so nobody sees new partitions: as with Java's clients, until the next rebalance.
            old = max(site.versions[m.JoinGroupRequest.api_key]) < 9
            # Nor is anybody where the last member of the consumer protocol was replaced.
            if not old and not site.coordination.store.was_migrated:
                return "no pod leads"
            self.counts["nobody leads"] += 1
            wanted = wanted & set(owned) if old else wanted
        store = site.coordination.store
        if generation_of(group) == store.migrated_at and wanted - set(owned):
            # As in Kafka, what nobody had when members changed their protocol in place has nobody until the
            # next rebalance: a topic's new partition, or one that was changing hands.
            self.counts["left out"] += 1
            wanted = {tp for tp in wanted if tp in owned or tp.partition >= store.counts.get(tp.topic, 0)}
        if set(owned) != wanted or any(count > 1 for count in owned.values()):
            return f"owned {sorted(owned.items())} of {sorted(wanted)}"
        for pod in pods:
            if pod.assignment() != pod.held:
                return f"{pod.name} holds {sorted(pod.held)}, assignment() is {sorted(pod.assignment())}"
        stored = group["offsets"]
        behind = [
            (str(tp), stored.get(tp.topic, {}).get(tp.partition, 0), log.end)
            for tp in sorted(wanted)
            if (log := site.logs.find(*tp)) is not None
            and stored.get(tp.topic, {}).get(tp.partition, 0) != log.end
        ]
        return f"not at the end: {behind}" if behind else ""
