"""Whether a sum of 64-bit integers fits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from slackwater.pipeline.sinks.aggregates import sum_fits


@pytest.mark.parametrize(
    ("values", "fits"),
    [([2**61, 1], True), ([2**62, 2**62], False), ([-(2**62), -(2**62), -1], False), ([None, None], True)],
)
def test_a_sum_that_may_overflow_does_not_fit(values: list[int | None], fits: bool) -> None:
    assert sum_fits(pa.chunked_array([pa.array(values, pa.int64())])) is fits
