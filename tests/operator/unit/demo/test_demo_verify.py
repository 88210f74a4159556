"""The demo's check must notice whatever can go wrong with the output."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from slackwater_operator.demo import cli, verify
from slackwater_operator.demo.delta_table import read_delta
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


def test_a_delta_table_is_read_by_its_log(tmp_path: Path) -> None:
    """After checkpoints and with files that were replaced; a column came later."""
    with pytest.raises(FileNotFoundError, match="there is no Delta table to verify"):
        read_delta(tmp_path)
    expected = output_of(ROWS)
    for start in range(0, len(ROWS), 1000):
        deltalake.write_deltalake(tmp_path, expected.slice(start, 1000), mode="append")
    table = deltalake.DeltaTable(tmp_path)
    table.optimize.compact()
    table.create_checkpoint()
    late = expected.slice(0, 1).append_column("late", pa.array([1]))
    deltalake.write_deltalake(tmp_path, late, mode="append", schema_mode="merge")
    rows = read_delta(tmp_path)
    assert rows.num_rows == len(ROWS) + 1
    assert rows["late"].null_count == len(ROWS)
    (line, _) = verify.differences(verify.summarise_source(ROWS), verify.summarise_output(rows))
    assert line.startswith(f"carrier {ROWS[0]['carrier']}: ")
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(ValueError, match="has a gap"):
        read_delta(tmp_path)


@pytest.mark.parametrize("sink", ["", "delta", "parquet"])
def test_the_sink_of_the_demo_is_parquet_unless_it_is_chosen(sink: str) -> None:
    parser = argparse.ArgumentParser()
    cli.register(parser.add_subparsers())
    assert parser.parse_args(["demo", *(["--sink", sink] if sink else [])]).sink == (sink or "parquet")
