"""Seeds: whole groups in virtual time, every rule of ``checks.py`` in force."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.client.simulation.broken_rules import RULES, Rule
from tests.client.simulation.run import run
from tests.support.waiting import HANG_S

_HAPPENS = (
    "assigned", "revoked", "lost", "fenced", "commits", "delivered", "FencedInstanceIdError",
    "kill", "vanish", "shutdown", "hang", "move", "lead", "cut", "slow", "far", "loss", "grow", "crash",
    "stop", "twin", "stall", "topics", "phase", "remove",
)  # fmt: skip
SEEDS = range(24, 54)
"""Few in which all of this happens."""


def _run_all(seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(seed)
        assert outcome.broken is None, outcome.message
        counts += outcome.counts
    return counts


def test_every_rule_holds_in_random_runs() -> None:
    counts = _run_all(SEEDS)
    missing = [what for what in _HAPPENS if not counts[what]]
    assert not missing, f"{len(SEEDS)} runs without {missing}: the simulator tests less than it should"


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_every_rule_holds_for_ten_thousand_seeds() -> None:
    _run_all(range(100_000, 110_000))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(53590, id="another subscription before the listener is told"),
        pytest.param(69888, id="one slow member, a record a poll, and all the log to read"),
    ],
)
def test_every_rule_holds_for_seeds_that_once_failed(seed: int) -> None:
    _run_all(range(seed, seed + 1))


def _story(seed: int, hash_seed: int) -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "tests.client.simulation", "--replay", str(seed)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        check=False,
        timeout=HANG_S,
    ).stdout


@pytest.mark.parametrize("seed", [1, pytest.param(31, marks=pytest.mark.long)])
def test_a_seed_gives_the_same_story_every_time(seed: int) -> None:
    first = _story(seed, 1)
    assert first.count(b"\n") > 100
    assert _story(seed, 2) == first


def test_a_failure_names_the_command_that_replays_it() -> None:
    rule = next(rule for rule in RULES if rule.broken.__name__ == "fetched_ahead_counts_as_consumed")
    outcome = _first_failure(rule)
    assert f"python -m tests.client.simulation --replay {outcome[0]}" in outcome[2]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.broken.__name__)
def test_each_broken_rule_is_detected(rule: Rule) -> None:
    seed, failure, message = _first_failure(rule)
    assert failure in rule.found_by, message
    assert run(seed, trouble=rule.trouble).broken is None, f"seed {seed} fails without the broken rule, too"


def _first_failure(rule: Rule) -> tuple[int, str, str]:
    with rule.broken():
        for seed in range(rule.first, rule.first + rule.within):
            outcome = run(seed, trouble=rule.trouble)
            if outcome.broken is not None:
                return seed, outcome.broken.rule, outcome.message
    raise AssertionError(
        f"{rule.broken.__name__} was not noticed in {rule.within} runs from seed {rule.first} on"
    )
