"""What an import of the client loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.waiting import HANG_S


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        ("slackwater.kafka.CommitFailedError", {"slackwater.kafka.consumer"}),
        ("from slackwater.kafka import KafkaConsumer", {"pyarrow", "pandas", "numpy", "pyspark"}),
    ],
)
def test_what_is_not_used_is_not_imported(code: str, left_out: set[str]) -> None:
    code = f"import sys, slackwater.kafka; assert 'asyncio' not in sys.modules; {code}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert not left_out & set(done.stdout.split())
