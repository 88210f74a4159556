"""What the workers have written against what was produced: lost and duplicated records, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.support.site.load import Produced

_NAMED = 5


@dataclass(frozen=True)
class Verdict:
    """``lost`` are not in the sink, ``duplicated`` counts each time beyond the first; ``strangers`` were
    never produced. ``examples`` names some of them."""

    produced: int
    handled: int
    lost: int
    duplicated: int
    strangers: int
    examples: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Every record is there once."""
        return self.lost == self.duplicated == self.strangers == 0


def first_offsets(file: Path) -> dict[int, int]:
    """Each partition that a file has rows of, with the first offset in it."""
    places = pq.read_table(file, columns=["partition", "offset"], partitioning=None)
    rows = places.group_by("partition").aggregate([("offset", "min")]).to_pylist()
    return {row["partition"]: row["offset_min"] for row in sorted(rows, key=lambda row: row["partition"])}


def handled(sink: Path) -> Counter[tuple[int, int]]:
    """How often each (partition, offset) is in the Parquet files that count (none begins with a dot)."""
    # A file that a worker has not put in place yet begins with a dot, which `glob` does not mind.
    files = [str(path) for path in sink.glob("*.parquet") if not path.name.startswith(".")]
    if not files:
        return Counter()
    table = ds.dataset(files, format="parquet").to_table(columns=["partition", "offset"])
    return Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def verify(sink: Path, produced: Sequence[Produced]) -> Verdict:
    """Holds the sink against every record that the brokers took."""
    written = handled(sink)
    expected = {(record.partition, record.offset): record.number for record in produced}
    lost = sorted(place for place in expected if place not in written)
    twice = sorted(place for place, times in written.items() if times > 1)
    strange = sorted(place for place in written if place not in expected)
    return Verdict(
        produced=len(expected),
        handled=len(written),
        lost=len(lost),
        duplicated=sum(written[place] - 1 for place in twice),
        strangers=len(strange),
        examples=(*_named("lost", lost), *_named("twice", twice), *_named("never produced", strange)),
    )


def _named(what: str, places: Iterable[tuple[int, int]]) -> list[str]:
    return [f"{what}: partition {p} offset {o}" for p, o in list(places)[:_NAMED]]
