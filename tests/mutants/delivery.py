"""Faults of the delivery: batches, dead letters, commits, takeovers."""

from __future__ import annotations

from tests.mutants.fault import Fault

_DELIVERY = "worker/slackwater/runtime/delivery"
_TAKEOVER = "worker/slackwater/runtime/takeover"
_BATCHES = "tests/worker/unit/runtime/batches"
_TAKEOVERS = "tests/worker/unit/runtime/takeover"

FAULTS = (
    Fault(
        "rows-are-published-although-the-fence-failed",
        f"{_DELIVERY}/writing.py",
        "        if not self._batches.commit(batch, fences):\n            return False\n",
        "        self._batches.commit(batch, fences)\n",
        (f"{_BATCHES}/test_runtime_delivery.py",),
    ),
    Fault(
        "fence-commits-the-end-of-the-batch",
        f"{_DELIVERY}/writing.py",
        "tp: part.owned.fence_of(part.start, part.end, self._context.instance)",
        "tp: part.owned.fence_of(part.end, part.end, self._context.instance)",
        (f"{_BATCHES}/test_runtime_delivery.py",),
    ),
    Fault(
        "dead-letters-are-not-announced",
        f"{_DELIVERY}/writing.py",
        "        if announced and not self._batches.commit(batch, announced):\n            return False\n",
        "",
        (f"{_BATCHES}/test_runtime_delivery.py",),
    ),
    Fault(
        "marks-are-not-read-again-after-a-refusal",
        f"{_DELIVERY}/failures.py",
        "            self._batches.effects.marks_moved(batch.parts)\n",
        "",
        (f"{_BATCHES}/test_runtime_delivery.py",),
    ),
    Fault(
        "letters-of-an-earlier-try-are-not-looked-for",
        f"{_DELIVERY}/partition.py",
        "return self.letters is None and announced is not None and announced[2] > start",
        "return self.letters is None and announced is not None and announced[1] > start",
        (f"{_BATCHES}/test_runtime_delivery.py",),
    ),
    Fault(
        "one-letter-fewer-than-the-limit",
        f"{_DELIVERY}/dead_letters.py",
        "+ count <= self.most",
        "+ count < self.most",
        (f"{_BATCHES}/test_runtime_letter_limit.py",),
    ),
    Fault(
        "handed-over-offsets-are-not-compared",
        f"{_DELIVERY}/commits.py",
        "return committed is None or (committed.offset, committed.metadata) != (left.offset, left.metadata)",
        "return committed is None",
        (f"{_TAKEOVERS}/test_takeover_successor.py",),
    ),
    Fault(
        "pause-of-a-takeover-counts-from-the-answer",
        "worker/slackwater/runtime/telemetry/timings.py",
        "now - under_way_ms - ms",
        "now",
        (f"{_TAKEOVERS}/test_takeover_successor.py",),
    ),
    Fault(
        "pause-of-a-takeover-ends-with-its-first-records",
        "worker/slackwater/runtime/telemetry/report.py",
        "            gap_ms=None if taken else gap,\n",
        "            gap_ms=gap,\n",
        (f"{_TAKEOVERS}/test_takeover_successor.py",),
    ),
    Fault(
        "takes-back-from-a-successor-that-commits",
        f"{_TAKEOVER}/roles.py",
        '        if still < self._still_ms:\n            return ""\n',
        "",
        (f"{_TAKEOVERS}/test_takeover_rules.py",),
    ),
    Fault(
        "goes-on-beside-a-successor-that-lives",
        f"{_TAKEOVER}/roles.py",
        "(waited >= self._deadline_ms and not self.silence.answered)",
        "waited >= self._deadline_ms",
        (f"{_TAKEOVERS}/test_takeover_rules.py",),
    ),
    Fault(
        "goes-on-without-asking-the-broker",
        f"{_TAKEOVER}/predecessor.py",
        "if reason and delivery.commits.still_owner():",
        "if reason:",
        (f"{_TAKEOVERS}/test_takeover_predecessor.py",),
    ),
    Fault(
        "answers-a-request-that-was-withdrawn",
        f"{_TAKEOVER}/predecessor.py",
        "        if self._requests.withdrawn:\n"
        '            asked.refuse("it was withdrawn")\n'
        '            return self._go_on(delivery, "its successor has withdrawn")\n',
        "",
        (f"{_TAKEOVERS}/test_takeover_predecessor.py",),
    ),
    Fault(
        "request-is-taken-twice",
        f"{_TAKEOVER}/signing.py",
        "            self._nonces[nonce] = at_ms + WINDOW_MS\n",
        "            self._nonces[nonce] = at_ms\n",
        (f"{_TAKEOVERS}/test_takeover_signing.py",),
    ),
)
