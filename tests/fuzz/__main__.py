"""``python -m tests.fuzz --seed N --inputs M [--target T] [--start I]``: counts, or the first failure."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.batches import Records, Twins
from tests.fuzz.engine import Counts, Target, run
from tests.fuzz.members import Assignors, Members
from tests.fuzz.wire import Frames, Wire

SHARES: dict[type[Target], float] = {
    Wire: 0.54,
    Records: 0.28,
    Twins: 0.06,
    Members: 0.07,
    Frames: 0.03,
    Assignors: 0.02,
}
"""How many of the inputs go to each target, where none is named."""


def main() -> int:
    targets = {kind.name: kind for kind in SHARES}
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="0 and up; the same seed, the same inputs")
    parser.add_argument("--inputs", type=int, required=True, help="how many in all")
    parser.add_argument("--target", choices=sorted(targets), help="all for this one")
    parser.add_argument("--start", type=int, default=0, help="the number of the first input of each target")
    asked = parser.parse_args()
    shares = {targets[asked.target]: 1.0} if asked.target else SHARES
    total = 0
    for kind, share in shares.items():
        result = run(kind(), asked.seed, asked.start, max(1, round(asked.inputs * share)))
        if not isinstance(result, Counts):
            print(f"FAILED (seed {asked.seed})\n{result}", flush=True)
            return 1
        print(f"{kind.name:<10} {result}", flush=True)
        total += result.inputs
    print(f"{'all':<10} {total} inputs, seed {asked.seed}, no failure", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
