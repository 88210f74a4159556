"""The number of workers in a closed loop: Slackwater's rule and KEDA's, on the same loads, in virtual time.

python -m benchmarks.scaling [LOAD ...]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.scaling.group import Load, ScalingRule, SimulatedGroup, Site
from benchmarks.scaling.keda import KedaRule
from benchmarks.scaling.loads import LOADS
from slackwater_operator.controller.settings import Settings
from slackwater_operator.policies.scaling.autoscaler import Autoscaler
from slackwater_operator.policies.scaling.types import ScalingPolicy

LAG_PER_REPLICA = 1_000


@dataclass(frozen=True)
class Outcome:
    """What a rule made of a load.

    Attributes:
        steps: changes of the number of workers.
        reversals: those in the other direction than the one before.
        mean_workers: over the whole time.
        most_workers: the highest number.
        p99_lag: the records of lag that were exceeded in 1% of the time.
        max_lag: the most records of lag.
        unread_s: partition-seconds in which partitions were not read because of steps.
    """

    steps: int
    reversals: int
    mean_workers: float
    most_workers: int
    p99_lag: int
    max_lag: int
    unread_s: float


class SlackwaterRule:
    """The operator's rule with its own settings: observed each 5 s, each second while a step is made."""

    def __init__(self, policy: ScalingPolicy) -> None:
        settings = Settings()
        self.autoscaler = Autoscaler(
            policy,
            window_ms=settings.window_ms,
            down_window_ms=settings.down_window_ms,
            up_window_ms=settings.up_window_ms,
            settle_ms=settings.settle_ms,
        )
        self._round_ms = settings.round_ms

    def decide(self, group: SimulatedGroup) -> tuple[int, str]:
        """The number of workers, and why."""
        settled = group.settled_since_ms is not None
        if settled and group.now_ms % self._round_ms:
            return group.replicas, ""
        snapshot = group.snapshot()
        self.autoscaler.observe(snapshot, group.readers)
        decision = self.autoscaler.decide(
            snapshot, group.replicas, now_ms=group.now_ms, settled_since_ms=group.settled_since_ms
        )
        if not settled:
            return group.replicas, ""
        if decision.applied != group.replicas:
            self.autoscaler.stepping(group.replicas, decision.applied, decision, now_ms=group.now_ms)
        return decision.applied, decision.reason

    def stepped(self, took_ms: int, lost_partition_ms: int) -> None:
        """Notes what a step cost."""
        self.autoscaler.stepped(took_ms, lost_partition_ms)


def run(rule: ScalingRule, load: Load, site: Site | None = None) -> SimulatedGroup:
    """Has a rule scale a group under a load, from one worker on."""
    return SimulatedGroup(site or Site(), load, rule).run()


def outcome(group: SimulatedGroup) -> Outcome:
    """The figures of a group that has run."""
    ways = [change.after > change.before for change in group.changes]
    lags = sorted(group.lags)
    return Outcome(
        steps=len(ways),
        reversals=sum(1 for before, after in itertools.pairwise(ways) if before != after),
        mean_workers=group.worker_ticks / len(lags),
        most_workers=max([change.after for change in group.changes], default=group.replicas),
        p99_lag=lags[int(len(lags) * 0.99)],
        max_lag=lags[-1],
        unread_s=group.unread_partition_ms / 1000,
    )


def compare(load: Load) -> tuple[Outcome, Outcome]:
    """The outcomes of Slackwater's rule, with nothing set but lagPerReplica, and of KEDA's."""
    ours = SlackwaterRule(ScalingPolicy(lag_per_replica=LAG_PER_REPLICA))
    return outcome(run(ours, load)), outcome(run(KedaRule(LAG_PER_REPLICA), load))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table: per load, the figures of Slackwater's rule / those of KEDA's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help="the first letters of a load's name")
    names = parser.parse_args(arguments).loads if arguments is not None else []
    for name in names:
        if not any(load.name.startswith(name) for load in LOADS):
            parser.error(f"no load begins with {name!r}; there are: {', '.join(load.name for load in LOADS)}")
    print("| load | steps | reversals | mean workers | most | p99 lag | max lag | partition-s unread |")
    print("|---|---|---|---|---|---|---|---|")
    for load in LOADS:
        if names and not any(load.name.startswith(name) for name in names):
            continue
        ours, keda = compare(load)
        cells = [
            f"{ours.steps} / {keda.steps}",
            f"{ours.reversals} / {keda.reversals}",
            f"{ours.mean_workers:.2f} / {keda.mean_workers:.2f}",
            f"{ours.most_workers} / {keda.most_workers}",
            f"{ours.p99_lag:,} / {keda.p99_lag:,}",
            f"{ours.max_lag:,} / {keda.max_lag:,}",
            f"{ours.unread_s:.0f} / {keda.unread_s:.0f}",
        ]
        print(f"| {load.name} | {' | '.join(cells)} |")
