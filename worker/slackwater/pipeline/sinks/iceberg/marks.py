"""The marks in the properties of an Iceberg table.

A property holds the marks of up to 100 partitions of one topic: a value stays below 4,000 characters, and a
commit sets only the properties whose marks it moves. 5,000 partitions are 50 properties with 100 KB in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote, unquote

from slackwater.pipeline.sinks.marks import MarkKey
from slackwater.runtime.errors import SinkError

PREFIX = "slackwater.marks/"
_PARTITIONS = 100
"""Partitions in one property."""


def read(properties: Mapping[str, str]) -> dict[str, dict[MarkKey, int]]:
    """The marks in a table's properties, by group. Raises SinkError for one that somebody has changed."""
    marks: dict[str, dict[MarkKey, int]] = {}
    for name, value in properties.items():
        if not name.startswith(PREFIX):
            continue
        try:
            group, topic, topic_id, _ = map(unquote, name.removeprefix(PREFIX).split("/"))
            for partition, mark in json.loads(value).items():
                marks.setdefault(group, {})[MarkKey(topic, topic_id, int(partition))] = int(mark)
        except (ValueError, TypeError, AttributeError):
            raise SinkError(
                f"the table's property {name} is {value[:100]!r}, which is no list of offsets: somebody has "
                'changed it; set it to what it was, such as {"0": 4200} for partition 0 up to offset 4200'
            ) from None
    return marks


def moved(properties: Mapping[str, str], group: str, ends: Mapping[MarkKey, int]) -> dict[str, str]:
    """The properties to set, so that the marks of ``ends`` are these. Others stay as ``properties`` have
    them."""
    changed: dict[str, dict[str, int]] = {}
    for key, end in ends.items():
        texts = (group, key.topic, key.topic_id, str(key.partition // _PARTITIONS))
        name = PREFIX + "/".join(quote(text, safe="", errors="surrogatepass") for text in texts)
        if name not in changed:
            changed[name] = json.loads(properties.get(name, "{}"))
        changed[name][str(key.partition)] = end
    return {
        name: json.dumps(dict(sorted(marks.items(), key=lambda item: int(item[0]))))
        for name, marks in changed.items()
    }
