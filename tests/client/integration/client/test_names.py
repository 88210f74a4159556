"""What an import of the client loads."""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import HANG_S


def test_names_are_imported_only_when_they_are_used() -> None:
    code = (
        "import sys, slackwater.kafka; before = set(sys.modules); slackwater.kafka.CommitFailedError; "
        "print('slackwater.kafka.consumer' in sys.modules, 'asyncio' in before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout.split() == ["False", "False"]
