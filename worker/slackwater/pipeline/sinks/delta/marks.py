"""The marks in a Delta table: application transactions whose id names group and partition.

The id is ``slackwater/GROUP/TOPIC/TOPIC ID/PARTITION``, percent-encoded; the version is the next offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from slackwater.pipeline.sinks.marks import MarkKey
from slackwater.runtime.errors import SinkError

FORGETS = "delta.setTransactionRetentionDuration"
"""The property of a table with which marks would expire."""
_PREFIX = "slackwater/"


def versions_of(group_id: str, ends: Mapping[MarkKey, int]) -> dict[str, int]:
    """The transactions for marks of a group: the version of each id."""
    versions = {}
    for key, end in ends.items():
        texts = (quote(str(text), safe="", errors="surrogatepass") for text in (group_id, *key))
        versions[_PREFIX + "/".join(texts)] = end
    return versions


def marks_of(transactions: Mapping[str, int]) -> dict[str, dict[MarkKey, int]]:
    """The marks among a table's transactions, by group."""
    marks: dict[str, dict[MarkKey, int]] = {}
    for app_id, end in transactions.items():
        texts = app_id.removeprefix(_PREFIX).split("/")
        if app_id.startswith(_PREFIX) and len(texts) == 4 and texts[3].isdecimal():
            group, topic, topic_id, partition = (unquote(text, errors="surrogatepass") for text in texts)
            marks.setdefault(group, {})[MarkKey(topic, topic_id, int(partition))] = end
    return marks


def forgets(uri: str) -> SinkError:
    """The error for a table with the property :data:`FORGETS`."""
    return SinkError(
        f"the Delta table {uri} has the property {FORGETS}, and so would forget which "
        f"offsets it holds: run ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS}')"
    )
