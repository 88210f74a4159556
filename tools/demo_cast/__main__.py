"""`python -m tools.demo_cast FILE COMMAND...`: runs the command and writes the picture of its output."""

import sys
from pathlib import Path

from tools.demo_cast import record, svg

file, *command = sys.argv[1:]
name = " ".join([Path(command[0]).name, *command[1:]])
Path(file).write_text(svg(record(command), name), encoding="utf-8")
