"""``python -m slackwater``."""

import sys

from slackwater.cli import main

sys.exit(main())
