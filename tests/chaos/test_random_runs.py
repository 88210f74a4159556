"""Random runs (tests/chaos/random_runs.py) on a real Kafka, and whether their judge sees what is wrong.

`SLACKWATER_RANDOM_RUNS=200` says how many, `SLACKWATER_CHAOS_SEED=17` with which seed they begin.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.chaos.random_runs import BROKER, run_many
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.stoppable_site import StoppableSite

RUNS = int(os.environ.get("SLACKWATER_RANDOM_RUNS", "12"))
SIDE_BY_SIDE = 4


@pytest.mark.long
@pytest.mark.timeout(120 + 60 * RUNS)
def test_random_runs_lose_nothing_and_do_nothing_twice() -> None:
    seed = int(os.environ.get("SLACKWATER_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"SLACKWATER_CHAOS_SEED={seed}")
    with KafkaCluster(1, BROKER) as cluster:
        outcomes = list(run_many(cluster.bootstrap, range(seed, seed + RUNS), jobs=SIDE_BY_SIDE))
    assert len(outcomes) == RUNS
    assert not [outcome for outcome in outcomes if not outcome.good]


def test_the_judge_sees_rows_that_are_lost_or_there_twice(devbroker: DevBroker, tmp_path: Path) -> None:
    with StoppableSite(devbroker.bootstrap, tmp_path) as site:
        worker = site.start(0)
        site.produce(40)
        site.until_done()
        assert worker.terminate() == 0
        assert site.difference() == (0, 0, 0)
        site.check()
        file = next(site.out.glob("*.parquet"))
        copied = shutil.copy(file, site.out / "again.parquet")
        lost, doubled, _ = site.difference()
        assert lost == 0
        assert doubled > 0
        with pytest.raises(AssertionError, match="rows too many"):
            site.check()
        file.unlink()
        Path(copied).unlink()
        assert site.difference() == (doubled, 0, 0)
        with pytest.raises(AssertionError, match="lost"):
            site.check()
