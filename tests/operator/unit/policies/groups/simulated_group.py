"""A consumer group in virtual time, in the hands of the Autoscaler: partitions, workers, and what a step
costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.scaling.autoscaler import Autoscaler
from slackwater_operator.policies.scaling.types import ScalingDecision, ScalingPolicy

TICK_MS = 500


@dataclass
class StepMade:
    """A step as it was made."""

    at_ms: int
    before: int
    after: int
    reason: str


@dataclass
class SimulatedGroup:
    """One group.

    A step up: the new workers warm up while the others read on, then all partitions stand unread for
    `rebalance_ms`. A step down: the surplus drains, and then the same. A worker reads `capacity_per_s` at
    most, from whichever of its partitions has something.
    """

    partitions: int
    replicas: int
    capacity_per_s: float
    policy: ScalingPolicy
    produced_per_s: Callable[[int], float]
    warm_up_ms: int = 6_000
    rebalance_ms: int = 3_000
    lag: float = 0.0
    weights: list[float] | None = None
    noise: Callable[[int], float] = lambda now_ms: 1.0
    now_ms: int = 1_000_000
    rebalances: int = 0
    steps: list[StepMade] = field(default_factory=list)
    decisions: list[ScalingDecision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = tuple(TopicPartition("t", number) for number in range(self.partitions))
        weights = self.weights or [1.0] * self.partitions
        self.weights = [weight / sum(weights) for weight in weights]
        self.ends = [self.lag * share for share in self.weights]
        self.positions = [0.0] * self.partitions
        self.readers = self.replicas
        self.autoscaler = Autoscaler(self.policy, window_ms=20_000, down_window_ms=60_000, settle_ms=10_000)
        self.settled_since_ms: int | None = self.now_ms
        self.step_began_ms: int | None = None

    def run(self, until_ms: int) -> None:
        """Goes on for `until_ms` of virtual time."""
        end = self.now_ms + until_ms
        while self.now_ms < end:
            self.tick()

    def tick(self) -> None:
        """Half a second: produce, consume, observe, decide."""
        self.now_ms += TICK_MS
        self._produce()
        self._step_goes_on()
        if self.state == "Stable":
            self._consume()
        snapshot = self.snapshot()
        self.autoscaler.observe(snapshot, self.readers)
        decision = self.autoscaler.decide(
            snapshot, self.replicas, now_ms=self.now_ms, settled_since_ms=self.settled_since_ms
        )
        self.decisions.append(decision)
        if decision.applied != self.replicas and self.step_began_ms is None:
            self._begin(decision)

    @property
    def state(self) -> str:
        """The group's state."""
        if self.step_began_ms is not None and self.now_ms - self.step_began_ms >= self.warm_up_ms:
            return "PreparingRebalance"
        return "Stable" if self.readers else "Empty"

    @property
    def total_lag(self) -> int:
        """Records not read yet."""
        return sum(int(end) - int(done) for end, done in zip(self.ends, self.positions, strict=True))

    def snapshot(self) -> KafkaSnapshot:
        """What the broker would say."""
        members = tuple(
            MemberView(f"m-{number}", f"w-{number}", frozenset(self.topic[number :: self.readers]), True)
            for number in range(self.readers)
        )
        ends = {partition: int(end) for partition, end in zip(self.topic, self.ends, strict=True)}
        done = {
            partition: int(position) for partition, position in zip(self.topic, self.positions, strict=True)
        }
        return KafkaSnapshot(self.now_ms, GroupView(self.state, members), self.topic, ends, done)

    def _produce(self) -> None:
        made = self.produced_per_s(self.now_ms) * self.noise(self.now_ms) * TICK_MS / 1000
        assert self.weights is not None
        for number, share in enumerate(self.weights):
            self.ends[number] += made * share

    def _consume(self) -> None:
        for worker in range(self.readers):
            own = range(worker, self.partitions, self.readers)
            left = self.capacity_per_s * TICK_MS / 1000
            for index, number in enumerate(
                sorted(own, key=lambda partition: self.ends[partition] - self.positions[partition])
            ):
                take = min(left / (len(own) - index), self.ends[number] - self.positions[number])
                self.positions[number] += take
                left -= take

    def _begin(self, decision: ScalingDecision) -> None:
        self.steps.append(StepMade(self.now_ms, self.replicas, decision.applied, decision.reason))
        self.autoscaler.stepping(self.replicas, decision.applied, decision, now_ms=self.now_ms)
        self.replicas = decision.applied
        self.step_began_ms, self.settled_since_ms = self.now_ms, None

    def _step_goes_on(self) -> None:
        if self.step_began_ms is None:
            return
        took_ms = self.now_ms - self.step_began_ms
        if took_ms >= self.warm_up_ms + self.rebalance_ms:
            self.rebalances += 1
            self.readers = self.replicas
            self.step_began_ms, self.settled_since_ms = None, self.now_ms
            self.autoscaler.stepped(took_ms, self.rebalance_ms * self.partitions)
