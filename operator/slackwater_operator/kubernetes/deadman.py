"""Ends the process where its loop cannot: when it hangs past the Lease's deadline.

A loop that is blocked can't notice that its time as leader is over, and would act when it goes on. A
process that was suspended would, too. A thread looks at the clock in its place.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from slackwater_operator.kubernetes.lease import Lease

LOOK_EVERY_S = 0.5
MARGIN_S = 1.0
"""For the loop to end the process itself, in order. Deadline and margin end before the Lease does."""


class DeadMan:
    """The thread. `stop` it before the loop ends in order."""

    def __init__(self, lease: Lease, exit_code: int, *, end: Callable[[int], None] = os._exit) -> None:
        """Starts it.

        Args:
            lease: whose deadline counts while it is held.
            exit_code: of the process.
            end: what ends the process.
        """
        self._lease = lease
        self._exit_code = exit_code
        self._end = end
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="deadman", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            late_s = time.monotonic() - self._lease.deadline_s
            if self._lease.held and late_s > MARGIN_S:
                told = (
                    f"the event loop does not respond: the Lease's renewal deadline passed {late_s:.1f} s "
                    "ago; exiting\n"
                )
                sys.stderr.write(told)
                sys.stderr.flush()
                self._end(self._exit_code)
                return
