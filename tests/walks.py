"""The first hour of strangers: the blocks of a page, pasted in their order into an empty environment.

`make walks` clones this repository into a folder for each reader, pastes what the reader's page says, with
nothing of this checkout on the PATH, and prints how long each block took. Exit code 1: a block failed.
The platform engineer's page needs a cluster: `make node ARGS="-k tutorial"` pastes it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.docs.blocks import ROOT, Block, blocks
from tests.support.docs.scripts import DOCUMENTED_PORTS, run, with_ports
from tests.support.processes import reserve_ports

WALKS = {
    "developer": "docs/tutorials/first-consumer.md",
    "data-engineer": "docs/tutorials/first-pipeline.md",
    "database": "docs/tutorials/first-table-of-changes.md",
    "adopter": "README.md",
}
"""Reader -> page."""
NOT_HERE = ("kubectl", "helm")
"""Blocks with these need a cluster."""
LIMIT_S = 3600.0
_STARTED = "=== block"


def main(arguments: list[str]) -> int:
    """Pastes the pages of the readers and prints the time of each block. Returns the exit code."""
    options = argparse.ArgumentParser(prog="python -m tests.walks", description=__doc__.partition("\n")[0])
    options.add_argument("reader", nargs="*", help=f"{', '.join(WALKS)} (default: all)")
    chosen = options.parse_args(arguments).reader or list(WALKS)
    if unknown := set(chosen) - set(WALKS):
        options.error(f"{', '.join(sorted(unknown))}: the readers are {', '.join(WALKS)}")
    return max(walk(reader, WALKS[reader]) for reader in chosen)


def walk(reader: str, page: str) -> int:
    """Pastes one page. Returns 0 where each block succeeded."""
    pasted = [block for block in blocks("sh", "python", "yaml") if block.page == page and _here(block)]
    with tempfile.TemporaryDirectory(prefix="walk-") as scratch:
        folder = Path(scratch)
        clone = folder / "slackwater"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        ports = reserve_ports(len(DOCUMENTED_PORTS))
        script = clone / "walk.sh"
        script.write_text("\n".join(_lines(pasted, ports)), encoding="utf-8")
        code, output = run(script, _environment(folder), LIMIT_S)
    print(f"\n{reader}: {page}")
    for block, took_s in zip(pasted, _times_s(output), strict=False):
        first = block.title or block.text.partition("\n")[0]
        print(f"  {took_s:7.1f} s  line {block.line}: {first[:80]}")
    if code:
        print(f"failed with {code}; it printed:\n{output[-8000:]}")
    return int(code != 0)


def _here(block: Block) -> bool:
    run_or_saved = block.language == "sh" or bool(block.title)
    return run_or_saved and not any(program in block.text for program in NOT_HERE)


def _lines(pasted: list[Block], ports: Sequence[int]) -> Iterator[str]:
    yield "set -e -m -o pipefail"
    for block in pasted:
        yield f'printf "\\n{_STARTED} %s\\n" "$(date +%s.%N)"'
        text = with_ports(block.text, ports)
        yield f"cat > {block.title} <<'END-OF-FILE'\n{text}END-OF-FILE" if block.title else text
    yield f'printf "\\n{_STARTED} %s\\n" "$(date +%s.%N)"'


def _environment(folder: Path) -> dict[str, str]:
    """What a login shell of a new user has."""
    (folder / "home").mkdir()
    own = Path(sys.executable).parent
    path = [entry for entry in os.environ["PATH"].split(os.pathsep) if Path(entry) != own]
    python = shutil.which("python3", path=os.pathsep.join(path))
    assert python is not None, "python3 is not on the PATH"
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TERM", "TMPDIR") if name in os.environ}
    return {**kept, "PATH": os.pathsep.join(path), "HOME": str(folder / "home")}


def _times_s(output: str) -> list[float]:
    at = [float(text) for text in re.findall(rf"^{_STARTED} ([0-9.]+)$", output, re.MULTILINE)]
    return [end - start for start, end in itertools.pairwise(at)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
