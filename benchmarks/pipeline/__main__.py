"""``python -m benchmarks.pipeline``."""

import sys

from benchmarks.pipeline import main

sys.exit(main(sys.argv[1:]))
