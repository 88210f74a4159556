"""`python -m tools.release COMMAND`: what `make release-check` and the workflow of a release run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.release import archive, changelog, chart, project
from tools.release.chart import Publication
from tools.release.check import check
from tools.release.project import ROOT, ReleaseProblem


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--tag", default="", help="the tag, such as v0.1.0; default: a rehearsal")
    place.add_argument("--repository", default=project.REPOSITORY, help="the repository's address")
    place.add_argument("--site", default=project.SITE, help="the address of the documentation")
    place.add_argument("--registry", default="", help="where images go, such as ghcr.io/acme")
    place.add_argument("--out", type=Path, default=ROOT / ".cache" / "release", help="the folder to write to")
    commands.add_parser("check", parents=[place], help="do everything that needs no public registry")
    commands.add_parser("version", parents=[place], help="print the version, the same everywhere")
    commands.add_parser("notes", parents=[place], help="print the section of CHANGELOG.md")
    commands.add_parser("chart", parents=[place], help="write the package of the chart into --out")
    commands.add_parser("checksums", parents=[place], help="write SHA256SUMS of the files in --out")
    args = parser.parse_args(arguments)
    publication = Publication(args.repository, args.site, args.registry)
    try:
        if args.command == "check":
            check(args.out, publication, args.tag, lambda line: print(line, flush=True))
            return 0
        if args.command == "checksums":
            print(archive.write_checksums(args.out))
            return 0
        version = project.single_version(project.versions(), args.tag)
        if args.command == "version":
            print(version)
            return 0
        section = changelog.section(
            project.CHANGELOG.read_text(encoding="utf-8"), version, released=bool(args.tag)
        )
        if args.command == "notes":
            print(section.text)
            return 0
        args.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            print(chart.package(chart.stage(Path(scratch), publication, section), args.out))
    except ReleaseProblem as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
