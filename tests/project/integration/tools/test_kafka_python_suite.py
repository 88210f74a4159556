"""The runner of kafka-python's tests: what they import is ours, and no failure goes unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.kafka_python_suite.__main__ import report, run
from tools.kafka_python_suite.reasons import CANNOT_PASS

GOOD = """
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaConfigurationError
import kafka
import pytest

def test_names_stand_for_ours():
    assert KafkaConsumer.__module__.startswith("slackwater.")
    assert TopicPartition.__module__ == "slackwater.kafka.structs"
    assert kafka.KafkaConsumer is not KafkaConsumer
    with pytest.raises(KafkaConfigurationError):
        KafkaConsumer(no_such_option=1)
"""
PRIVATE = """
def test_assign():
    object.__new__(KafkaConsumer)._client
"""
BAD = """
def test_something_new():
    raise AssertionError("not known")
"""


def checkout(folder: Path, text: str) -> Path:
    (folder / "test" / "consumer").mkdir(parents=True)
    (folder / "test" / "consumer" / "test_consumer.py").write_text(text)
    return folder


@pytest.mark.long
def test_what_passes_what_cannot_and_what_is_odd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkout(tmp_path, GOOD + PRIVATE + BAD)
    outcomes = run(folder, None, "4.3.0")
    assert {name.split("::")[1]: outcome for name, (outcome, _) in outcomes.items()} == {
        "test_names_stand_for_ours": "passed",
        "test_assign": "failed",
        "test_something_new": "failed",
    }
    assert report(folder, outcomes) == 1
    said = capsys.readouterr().out
    assert "UNEXPECTED   failed: test/consumer/test_consumer.py::test_something_new" in said
    assert CANNOT_PASS["test_assign"].why in said
    del outcomes["test/consumer/test_consumer.py::test_something_new"]
    assert report(folder, outcomes) == 0


def test_another_failure_than_the_known_one_is_odd() -> None:
    node = "test/consumer/test_consumer.py::test_assign"
    good = {"x::test_good": ("passed", "")}
    assert report(Path(), {**good, node: ("failed", CANNOT_PASS["test_assign"].fails_with)}) == 0
    assert report(Path(), {**good, node: ("failed", "TypeError: something else")}) == 1
    assert report(Path(), {**good, node: ("passed", "")}) == 1
    assert report(Path(), {}) == 1, "nothing ran"
