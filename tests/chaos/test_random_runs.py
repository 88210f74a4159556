"""Random runs (tests/chaos/random_runs.py) on a real Kafka, and whether their judge sees what is wrong.

`SLACKWATER_RANDOM_RUNS=200` says how many, `SLACKWATER_CHAOS_SEED=17` with which seed they begin.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import confluent_kafka
import pytest

from tests.chaos import random_runs
from tests.chaos.random_runs import BROKER, RandomRun, Sites, run_many, run_one
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.peers.librdkafka import read_topic
from tests.support.waiting import WAIT_S
from tests.support.workers.stoppable_site import StoppableSite

RUNS = int(os.environ.get("SLACKWATER_RANDOM_RUNS", "12"))
SIDE_BY_SIDE = 4
HOSTILE = ("arrow/parquet", "arrow/delta", "arrow/postgres", "spark/parquet")


@pytest.mark.long
@pytest.mark.parts("kafka", "postgres", "spark")
@pytest.mark.timeout(120 + 60 * RUNS)
@pytest.mark.parametrize("hostile", [(), HOSTILE], ids=["plain", "hostile"])
def test_random_runs_lose_and_duplicate_nothing(hostile: Sequence[str]) -> None:
    seed = int(os.environ.get("SLACKWATER_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"SLACKWATER_CHAOS_SEED={seed}")
    with KafkaCluster(1, BROKER) as cluster, Sites(cluster.bootstrap, hostile) as sites:
        outcomes = list(run_many(sites, range(seed, seed + RUNS), jobs=SIDE_BY_SIDE))
    for outcome in outcomes:
        if not outcome.good:
            print(json.dumps(asdict(outcome), indent=2))
    assert [outcome.good for outcome in outcomes] == [True] * RUNS


@pytest.mark.long
def test_lost_and_duplicated_rows_are_reported(devbroker: DevBroker, tmp_path: Path) -> None:
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
        differences = site.differences()
        assert len(differences) == doubled
        for line in differences:
            place = re.search(r"'good \d+', stored at (partition \d+ offset \d+): 2 rows for 1: ", line)
            assert place is not None, line
            assert line.count(place[1]) == 3, "where it was stored, and the place that each row names"
            assert file.name in line
            assert "again.parquet" in line
        with pytest.raises(AssertionError, match="2 rows for 1"):
            site.check()
        file.unlink()
        Path(copied).unlink()
        assert site.difference() == (doubled, 0, 0)
        assert [line.rpartition(": ")[2] for line in site.differences()] == ["nowhere"] * doubled
        with pytest.raises(AssertionError, match="nowhere"):
            site.check()


@pytest.mark.long
def test_duplicated_dead_letters_are_named(devbroker: DevBroker, tmp_path: Path) -> None:
    with StoppableSite(devbroker.bootstrap, tmp_path) as site:
        worker = site.start(0)
        site.produce(40)
        site.until_done()
        assert worker.terminate() == 0
        assert site.differences() == []
        letter = next(read_topic(devbroker.bootstrap, site.letters_topic))
        producer = confluent_kafka.Producer({"bootstrap.servers": devbroker.bootstrap})
        producer.produce(
            site.letters_topic, letter.value, letter.key, partition=1, headers=list(letter.headers.items())
        )
        assert producer.flush(WAIT_S) == 0
        assert site.difference() == (0, 1, 0)
        (difference,) = site.differences()
        partition, offset = letter.source
        assert f"stored at partition {partition} offset {offset}: 2 dead letters for 1" in difference
        assert f"at {site.letters_topic}-{letter.partition} offset {letter.offset}" in difference
        assert f"at {site.letters_topic}-1 offset" in difference


@pytest.mark.long
def test_a_failed_run_reports_its_cause_and_keeps_its_folder(
    devbroker: DevBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of this run has its output copied as it ends."""

    def run(self: RandomRun) -> None:
        worker = self._site.start(0)
        self._site.produce(40)
        self._site.until_done()
        assert worker.terminate() == 0
        shutil.copy(next(self._site.out.glob("*.parquet")), self._site.out / "again.parquet")

    monkeypatch.setattr(RandomRun, "run", run)
    monkeypatch.setattr(random_runs, "SESSION_MS", 6_000)  # the least that this broker allows
    outcome = run_one(Sites(devbroker.bootstrap), 17, keep=tmp_path)
    assert not outcome.good
    assert len(outcome.differences) == outcome.doubled > 0
    kept = tmp_path / "seed-17"
    assert (kept / "out" / "again.parquet").exists()
    assert json.loads((kept / "outcome.json").read_text())["differences"] == outcome.differences
