"""Runs one benchmark by its module's name, or all of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks


def main(arguments: list[str]) -> int:
    known = sorted(
        module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")
    )
    for name in arguments or known:
        if name not in known:
            print(f"benchmarks: there is no {name!r}; there are {', '.join(known)}", file=sys.stderr)
            return 2
        print(f"## {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
