"""Committing, with what a broker can say to it reduced to three outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slackwater.clock import Clock
from slackwater.kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.errors import FencedError, WorkerError
from slackwater.runtime.interfaces import Consumer
from slackwater.runtime.telemetry.events import Log
from slackwater.runtime.telemetry.metrics import Metrics

COMMIT_TIMEOUT_MS = 2000
"""How long a commit may keep the main thread from polling; one without an answer is repeated after a poll."""


class Outcome(Enum):
    """``DONE``: stored. ``AGAIN``: not known to be stored; poll, then repeat. ``GONE``: not ours any more."""

    DONE = "done"
    AGAIN = "again"
    GONE = "gone"


class Committer:
    """Commits through ``consumer``. Raises FencedError, or WorkerError for what no repetition mends."""

    def __init__(self, consumer: Consumer, clock: Clock, metrics: Metrics, log: Log) -> None:
        self._consumer, self._clock, self._metrics, self._log = consumer, clock, metrics, log

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Outcome:
        """Commits ``offsets`` and waits for the answer."""
        before = self._clock.mono_ms()
        try:
            self._consumer.commit(offsets, timeout_ms=COMMIT_TIMEOUT_MS)
        except FencedInstanceIdError as exc:
            self._metrics.count("commit_failures", ("fenced",))
            raise fenced() from exc
        except (CommitFailedError, IllegalGenerationError, UnknownMemberIdError) as exc:
            self._metrics.count("commit_failures", ("rebalanced",))
            self._log.seldom("gone", f"the commit was refused: {exc}")
            return Outcome.GONE
        except RebalanceInProgressError:
            # CompletingRebalance: the broker takes commits again after this member's poll has synced
            self._metrics.count("commit_failures", ("rebalancing",))
            return Outcome.AGAIN
        except KafkaError as exc:
            self._metrics.count("commit_failures", ("other",))
            if not exc.retriable:
                raise WorkerError(f"the broker refuses the commit: {exc}") from exc
            self._log.seldom("commit", f"the commit is not confirmed yet and will be retried: {exc}")
            return Outcome.AGAIN
        self._metrics.observe("commit_seconds", (self._clock.mono_ms() - before) / 1000)
        return Outcome.DONE


def fenced() -> FencedError:
    """The error of a worker whose instance id another process has taken."""
    return FencedError(
        "another process has joined the group with this worker's instance id; this worker stops. "
        "Give each worker its own SLACKWATER_INSTANCE_ID"
    )
