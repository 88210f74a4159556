"""python -m benchmarks.changes"""

import sys

from benchmarks.changes import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
