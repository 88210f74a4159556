"""python -m benchmarks.scaling"""

from __future__ import annotations

import sys

from benchmarks.scaling import main

main(sys.argv[1:])
