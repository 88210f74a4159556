"""The demo's check must notice whatever can go wrong with the output."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from slackwater_operator.demo import verify
from slackwater_operator.demo.source import TEXT_COLUMNS, Row, read_rows

ROWS = list(islice(read_rows(), 3_000))


def output_of(rows: list[Row]) -> pa.Table:
    def value(name: str, text: str) -> object:
        return None if text == "NA" else text if name in TEXT_COLUMNS else int(text)

    return pa.Table.from_pylist([{name: value(name, text) for name, text in row.items()} for row in rows])


def test_the_same_rows_in_another_order_have_the_same_totals() -> None:
    expected = verify.summarise_source(ROWS)
    actual = verify.summarise_output(output_of(ROWS[::-1]))
    assert verify.differences(expected, actual) == []


@pytest.mark.parametrize("column", ["distance", "dep_delay", "arr_delay", "air_time"])
def test_a_changed_value_shows_by_carrier_and_by_day(column: str) -> None:
    changed = [dict(row) for row in ROWS]
    changed[17][column] = str(int(changed[17][column]) + 1)
    lines = verify.differences(verify.summarise_source(ROWS), verify.summarise_output(output_of(changed)))
    assert [line.split(":")[0] for line in lines] == [f"carrier {ROWS[17]['carrier']}", "day 2013-01-01"]


@pytest.mark.parametrize("rows", [ROWS[1:], [*ROWS, ROWS[5]]], ids=["missing", "doubled"])
def test_a_missing_and_a_doubled_row_show(rows: list[Row]) -> None:
    assert verify.differences(verify.summarise_source(ROWS), verify.summarise_output(output_of(rows)))


ENDS = {("flights", 0): 3, ("flights", 1): 2}
WRITTEN = [("flights", 0, 0), ("flights", 0, 2), ("flights", 1, 0), ("flights", 1, 1)]
DEAD = [("flights", 0, 1)]


def test_a_complete_output_has_no_losses() -> None:
    accounting = verify.account(ENDS, WRITTEN, DEAD)
    assert (accounting.records_in, accounting.records_out, accounting.dead_lettered) == (5, 4, 1)
    assert (accounting.lost, accounting.duplicated, accounting.examples) == (0, 0, ())


def test_a_lost_record_is_named() -> None:
    accounting = verify.account(ENDS, WRITTEN[1:], DEAD)
    assert (accounting.lost, accounting.duplicated) == (1, 0)
    assert accounting.examples == ("lost ('flights', 0, 0)",)


@pytest.mark.parametrize(
    ("written", "dead"),
    [([*WRITTEN, WRITTEN[0]], DEAD), (WRITTEN, [*DEAD, *DEAD]), (WRITTEN, [*DEAD, WRITTEN[0]])],
    ids=["written twice", "dead-lettered twice", "written and dead-lettered"],
)
def test_a_record_that_is_there_twice_is_duplicated(
    written: list[verify.Identity], dead: list[verify.Identity]
) -> None:
    assert verify.account(ENDS, written, dead).duplicated == 1


def test_a_row_that_was_never_produced_counts_against_us() -> None:
    assert verify.account(ENDS, [*WRITTEN, ("flights", 1, 9)], DEAD).duplicated == 1


def test_no_output_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        verify.read_output(tmp_path / "nowhere")
