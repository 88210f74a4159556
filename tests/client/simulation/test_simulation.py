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


_HAPPENS_TOO = ("assigned", "revoked", "lost", "refused", "commits", "delivered", "twin", "stall", "topics")
"""With the consumer protocol, where nobody is fenced: who comes second is refused."""
CONSUMER_SEEDS = range(1_049, 1_055)
_HAPPENS_IN_BOTH = (
    "assigned", "revoked", "lost", "fenced", "refused", "commits", "delivered", "migrate", "twin", "crash",
    "stop", "nobody leads",
)  # fmt: skip
"""With members of both protocols, which change it with and without the pod before."""
MIXED_SEEDS = range(12)


def _run_all(seeds: range, protocol: str = "classic") -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(seed, protocol=protocol)
        assert outcome.broken is None, outcome.message
        counts += outcome.counts
    return counts


def test_every_rule_holds_in_random_runs() -> None:
    counts = _run_all(SEEDS)
    missing = [what for what in _HAPPENS if not counts[what]]
    assert not missing, f"{len(SEEDS)} runs without {missing}: the simulator tests less than it should"


def test_every_rule_holds_in_random_runs_of_the_consumer_protocol() -> None:
    counts = _run_all(CONSUMER_SEEDS, "consumer")
    missing = [what for what in _HAPPENS_TOO if not counts[what]]
    assert not missing, f"{len(CONSUMER_SEEDS)} runs without {missing}"


def test_every_rule_holds_in_random_runs_of_both_protocols() -> None:
    counts = _run_all(MIXED_SEEDS, "mixed")
    missing = [what for what in _HAPPENS_IN_BOTH if not counts[what]]
    assert not missing, f"{len(MIXED_SEEDS)} runs without {missing}"


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("protocol", ["classic", "consumer", "mixed"])
def test_every_rule_holds_for_ten_thousand_seeds(protocol: str) -> None:
    first, end = (100_000, 110_000) if protocol == "classic" else (100_000, 103_000)
    _run_all(range(first, end), protocol)


@pytest.mark.parametrize(
    ("seed", "protocol"),
    [
        pytest.param(53590, "classic", id="another subscription before the listener is told"),
        pytest.param(69888, "classic", id="one slow member, a record a poll, and all the log to read"),
        pytest.param(1445, "consumer", id="a commit is refused when the member is dead"),
        pytest.param(1692, "consumer", id="a topic grows when a static member returns"),
        pytest.param(2139, "consumer", id="a topic is assigned that was just left"),
        pytest.param(284, "mixed", id="a fenced member's commit is refused for another reason"),
        pytest.param(100808, "mixed", id="a member is closed before its first heartbeat is sent"),
    ],
)
def test_every_rule_holds_for_seeds_that_once_failed(seed: int, protocol: str) -> None:
    _run_all(range(seed, seed + 1), protocol)


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
    sound = run(seed, trouble=rule.trouble, protocol=rule.protocol)
    assert sound.broken is None, f"seed {seed} fails without the broken rule, too"


def _first_failure(rule: Rule) -> tuple[int, str, str]:
    with rule.broken():
        for seed in range(rule.first, rule.first + rule.within):
            outcome = run(seed, trouble=rule.trouble, protocol=rule.protocol)
            if outcome.broken is not None:
                return seed, outcome.broken.rule, outcome.message
    raise AssertionError(
        f"{rule.broken.__name__} was not noticed in {rule.within} runs from seed {rule.first} on"
    )
