"""What a replay notes in the dead-letter topic: which letters it is about to send, and which it has sent.

A receipt stands in the partition of its letters and behind them, so retention never removes it first. It has
no header of a group: workers that read their letters back pass over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackwater.kafka.untrusted import json_object, whole

if TYPE_CHECKING:
    from slackwater.kafka import ConsumerRecord

RECEIPT_HEADER = "slackwater.replay"
BEGIN, END = "begin", "end"
_MOST_LETTERS = 100_000


@dataclass(frozen=True)
class Receipt:
    """``begin`` is written before letters are sent, ``end`` after the broker has them all.

    ``replay``: the id of the command's run. ``letters``: their offsets in the receipt's partition. ``topic``:
    where they go. ``ends``: by partition of it, where its log ended before; empty in an ``end``.
    """

    kind: str
    replay: str
    letters: tuple[int, ...]
    topic: str
    ends: Mapping[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The record's value."""
        document = {
            "replay": self.replay,
            "letters": self.letters,
            "topic": self.topic,
            "ends": {str(partition): end for partition, end in self.ends.items()},
        }
        return json.dumps(document, separators=(",", ":")).encode()


def receipt_of(record: ConsumerRecord) -> Receipt | None:
    """The receipt in ``record``; None where there is none that can be read."""
    kind = dict(record.headers).get(RECEIPT_HEADER)
    if kind not in (BEGIN.encode(), END.encode()):
        return None
    try:
        document = json_object(record.value or b"")
        letters = tuple(whole(offset, "letters") for offset in document["letters"][:_MOST_LETTERS])
        ends = {int(partition): whole(end, "ends") for partition, end in document["ends"].items()}
        replay, topic = str(document["replay"]), str(document["topic"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Receipt(kind.decode(), replay, letters, topic, ends)


@dataclass
class Ledger:
    """What the receipts of one partition say. ``sent``: offsets of letters. ``unfinished``: begun, and not
    ended; by the replay's id."""

    sent: set[int] = field(default_factory=set)
    unfinished: dict[str, Receipt] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[ConsumerRecord]) -> Ledger:
        """From the partition's records, in order."""
        ledger = cls()
        for record in records:
            receipt = receipt_of(record)
            if receipt is not None:
                ledger.take(receipt)
        return ledger

    def take(self, receipt: Receipt) -> None:
        """Takes the next receipt in. A replay has at most one batch in a partition at a time."""
        if receipt.kind == BEGIN:
            self.unfinished[receipt.replay] = receipt
        else:
            self.unfinished.pop(receipt.replay, None)
            self.sent.update(receipt.letters)
