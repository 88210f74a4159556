"""``python -m benchmarks.rollouts``."""

import sys

from benchmarks.rollouts import main

sys.exit(main(sys.argv[1:]))
