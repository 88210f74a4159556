"""A broker's setting as a number: brokers and what stands in for them may send any text."""

from __future__ import annotations

import pytest

from slackwater.kafka.admin import ConfigEntry


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("604800000", 604_800_000),
        ("-1", -1),
        (str(2**63 - 1), 2**63 - 1),
        *(
            (text, None)
            for text in (None, "", "1 MB", "1e6", "0x10", "1_000", " 1", "٣", str(2**63), "9" * 5_000)
        ),
    ],
)
def test_a_value_that_is_no_number_has_none(value: str | None, number: int | None) -> None:
    assert ConfigEntry("name", value, 5, False, False).number == number
