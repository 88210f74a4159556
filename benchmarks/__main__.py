"""Runs benchmarks by their modules' names, or all of them, each with its defaults."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

import benchmarks

NAMES = sorted(
    module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")
)


def main(arguments: Sequence[str]) -> int:
    """Returns 0. Exits with 2 and a message for a name that does not exist, and for an option."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="Options of a benchmark: python -m benchmarks.NAME --help",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of: {', '.join(NAMES)}")
    names = parser.parse_args(arguments).names
    for name in names:
        if name not in NAMES:
            parser.error(f"there is no {name!r}; there are {', '.join(NAMES)}")
    for name in names or NAMES:
        print(f"## {name}", flush=True)
        # Most take their options from here where they are given none.
        sys.argv[1:] = []
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
