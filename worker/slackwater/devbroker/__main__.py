"""``python -m slackwater.devbroker``: the same as ``slackwater devbroker``."""

import sys

from slackwater.devbroker.cli import main

if __name__ == "__main__":
    sys.exit(main())
