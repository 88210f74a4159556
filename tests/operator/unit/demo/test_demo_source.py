"""What the demo produces."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, pairwise

import pytest

from slackwater_operator.demo.feed import FLIGHTS, POISON, STAGES, Pace, Stage
from slackwater_operator.demo.source import POISON_KINDS, read_rows, with_poison

ROWS = list(islice(read_rows(), 2_000))


def test_a_flight_keeps_every_column_and_its_scheduled_departure() -> None:
    first = next(with_poison(ROWS, total=2_000, poison=0, seed=1))
    value = json.loads(first.value or b"")
    assert list(value) == list(ROWS[0])
    assert (value["carrier"], value["distance"], value["dep_time"]) == ("UA", 1400, 517)
    assert first.key == b"N14228"
    # 2013-01-01 05:15 in New York is 10:15 in UTC.
    assert first.timestamp_ms == 1_357_035_300_000


def test_a_cancelled_flight_is_a_valid_one_without_a_departure() -> None:
    row = next(row for row in ROWS if row["dep_time"] == "NA")
    record = next(with_poison([row], total=1, poison=0, seed=1))
    assert record.poison is None
    assert json.loads(record.value or b"")["dep_time"] is None


def test_the_seed_decides_where_the_poison_stands() -> None:
    def places(seed: int) -> list[int]:
        made = with_poison(ROWS, total=2_000, poison=50, seed=seed)
        return [place for place, record in enumerate(made) if record.poison]

    assert places(3) == places(3)
    assert places(3) != places(4)
    assert len(places(3)) == 50


def test_every_kind_of_poison_is_there_and_no_flight_is_missing() -> None:
    made = list(with_poison(ROWS, total=2_000, poison=50, seed=3))
    kinds = Counter(record.poison for record in made)
    assert kinds == {None: 2_000, **dict.fromkeys(POISON_KINDS, 10)}
    for record in made:
        assert _is_sound(record.value) == (record.poison is None)


def _is_sound(value: bytes | None) -> bool:
    try:
        fields = json.loads(value or b"")
    except ValueError:
        return False
    return isinstance(fields["distance"], int) and len(fields["tailnum"] or "") < 10


TWO = (Stage(0.6, 20.0), Stage(0.9, 10.0))


def test_the_pace_is_even_below_the_ceiling() -> None:
    pace = Pace(total=10_000, duration_s=100.0, stages=TWO)
    due = [pace.due(second) for second in range(26)]
    assert due[10] == 1_000
    assert due[25] == 2_500


def test_the_flow_gets_thinner_towards_the_ceiling_and_never_stops() -> None:
    pace = Pace(total=10_000, duration_s=100.0, stages=TWO)
    due = [pace.due(second) for second in range(1_000)]
    steps = [later - earlier for earlier, later in pairwise(due)]
    # Of 6,000 in this stage, 3,464 are left when the square brings the flow below 100 a second.
    assert steps[24] == 100 > steps[30] > steps[60] > 10
    assert all(step > 0 for step in steps[:300])
    assert 5_800 < due[-1] < 6_000


@pytest.mark.parametrize(("minutes", "records_a_second"), [(2, 180), (5, 35), (10, 9)])
def test_a_takeover_that_takes_minutes_has_a_flow_at_its_end(minutes: int, records_a_second: int) -> None:
    """A partition without a record for a second is idle, and has no pause that could be shown."""
    pace = Pace(total=FLIGHTS + POISON, duration_s=45.0)
    due = [pace.due(0.05 * slice_) for slice_ in range(20 * 60 * minutes + 1)]
    assert due[-1] - due[-21] >= records_a_second


def test_some_records_are_left_for_every_operation_to_come() -> None:
    pace = Pace(total=10_000, duration_s=100.0, stages=TWO)
    first = [pace.due(second) for second in range(400)]
    assert first[-1] == 5_707  # 293 are left of 6,000, 400 s later
    pace.advance()
    second = [pace.due(second) for second in range(400, 800)]
    assert second[20] - first[-1] > 1_000
    assert 8_900 < second[-1] <= 9_000
    pace.advance()
    assert pace.due(801) == 10_000


def test_there_is_a_stage_for_each_operation_of_the_demo() -> None:
    ceilings = [stage.ceiling for stage in STAGES]
    assert len(ceilings) == 5
    assert sorted(ceilings) == ceilings
    assert ceilings[-1] < 1
