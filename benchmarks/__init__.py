"""Measurements against the peers at their best settings: `python -m benchmarks NAME`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def without_arguments(main: Callable[[], None], description: str | None) -> None:
    """Runs a benchmark that has no arguments, or shows its help."""
    argparse.ArgumentParser(
        prog=f"python -m {main.__globals__['__spec__'].name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    main()
