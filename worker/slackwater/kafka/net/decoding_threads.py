"""The threads that decode what would hold an event loop: large answers, and fetched records.

A fork has none of its parent's threads, so it starts its own.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

_RECORD_DECODERS = 2


@functools.cache
def answer_decoder() -> ThreadPoolExecutor:
    """The thread that decodes large answers, of all connections one after the other."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-decode-answers")


@functools.cache
def record_decoder() -> ThreadPoolExecutor:
    """The threads that decode fetched records for event loops.

    A consumer uses one of them at a time, and only for a poll that waits for its result: that bounds the work
    that is queued."""
    return ThreadPoolExecutor(max_workers=_RECORD_DECODERS, thread_name_prefix="kafka-decode-records")


# A forked process has no such threads, and its copies of the executors would wait for them for ever.
os.register_at_fork(after_in_child=answer_decoder.cache_clear)
os.register_at_fork(after_in_child=record_decoder.cache_clear)
