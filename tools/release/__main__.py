"""`python -m tools.release`: what `make release-check` and the workflow of a release run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.release import project
from tools.release.chart import Publication
from tools.release.check import check
from tools.release.project import ROOT, ReleaseProblem


def main(arguments: list[str] | None = None) -> int:
    """Makes and checks what a release publishes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--tag", default="", help="the tag, such as v0.1.0; default: a rehearsal")
    parser.add_argument("--repository", default=project.REPOSITORY, help="the repository's address")
    parser.add_argument("--site", default=project.SITE, help="the address of the documentation")
    parser.add_argument("--registry", default="", help="where images go, such as ghcr.io/acme")
    parser.add_argument(
        "--out", type=Path, default=ROOT / ".cache" / "release", help="the folder to write to"
    )
    args = parser.parse_args(arguments)
    publication = Publication(args.repository.rstrip("/"), args.site.rstrip("/"), args.registry.lower())
    try:
        check(args.out, publication, args.tag, lambda line: print(line, flush=True))
    except ReleaseProblem as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
