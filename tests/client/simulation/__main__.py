"""``python -m tests.client.simulation --runs 10000 --seed 1``: many runs; ``--replay SEED``: one, by line."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.client.simulation.run import run
from tests.client.simulation.scenario import TROUBLE, draw

KINDS = tuple(dict.fromkeys(TROUBLE))


def main() -> int:
    """Exit code 1 if a run has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.client.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="tell one seed's story")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--trouble", default="", metavar="KINDS", help=f"only these: {', '.join(KINDS)}")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--protocol", default="classic", choices=("classic", "consumer", "mixed"))
    options = parser.parse_args()
    trouble = tuple(filter(None, options.trouble.split(",")))
    if unknown := set(trouble) - set(KINDS):
        parser.error(f"no such trouble: {', '.join(sorted(unknown))}; there is {', '.join(KINDS)}")
    if options.replay is not None:
        return replay(options.replay, trouble, options.protocol)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    done, virtual_s, peak = 0, 0.0, 0
    for seed in range(options.seed, options.seed + options.runs):
        if time.monotonic() - began > options.seconds:
            break
        outcome = run(seed, trouble=trouble, protocol=options.protocol)
        counts += outcome.counts
        done += 1
        virtual_s += outcome.virtual_s
        peak = max(peak, outcome.peak)
        if outcome.broken is not None:
            failed[outcome.broken.rule] += 1
            print(outcome.message, flush=True)
            if not options.keep_going:
                break
    took = time.monotonic() - began
    print(
        f"{done} runs, {sum(failed.values())} failed {dict(failed)}, {took:.1f} s, {virtual_s:.0f} virtual s"
    )
    print(f"the most requests a pod sent in a virtual second: {peak}")
    print(", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    return 1 if failed else 0


def replay(seed: int, trouble: tuple[str, ...], protocol: str) -> int:
    """Prints a seed's story."""
    print(draw(seed, trouble, protocol))
    outcome = run(seed, tell=True, trouble=trouble, protocol=protocol)
    print("\n".join(outcome.story))
    print(outcome.message if outcome.broken is not None else f"seed {seed}: all holds")
    return 1 if outcome.broken is not None else 0


if __name__ == "__main__":
    sys.exit(main())
