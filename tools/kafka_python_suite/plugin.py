"""A pytest plugin that changes what kafka-python's test modules have imported: its names stand for ours.

That is the one import that a program changes. kafka-python's own modules, and the producer and the admin
client that its fixtures use, stay as they are.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPORT = "KAFKA_PYTHON_SUITE_REPORT"
_STRUCTS = (
    "ConsumerGroupMetadata", "MemberState", "OffsetAndMetadata", "OffsetAndTimestamp", "TopicPartition",
)  # fmt: skip


def replacements() -> dict[int, Any]:
    """What stands for what: the id of kafka-python's object -> ours."""
    import kafka
    import kafka.errors
    import kafka.structs

    import slackwater.kafka as ours
    import slackwater.kafka.errors as our_errors

    result: dict[int, Any] = {
        id(kafka.KafkaConsumer): ours.KafkaConsumer,
        id(kafka.ConsumerRebalanceListener): ours.ConsumerRebalanceListener,
        **{id(getattr(kafka.structs, name)): getattr(ours, name) for name in _STRUCTS},
    }
    for name, theirs in vars(kafka.errors).items():
        if isinstance(theirs, type) and isinstance(mine := getattr(our_errors, name, None), type):
            result[id(theirs)] = mine
    return result


def _is_test_module(module: ModuleType, tests: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(tests)


def substitute(tests: Path) -> int:
    """Puts ours in place of kafka-python's in all modules below ``tests``; how many names were changed."""
    ours, changed = replacements(), 0
    for module in [module for module in list(sys.modules.values()) if _is_test_module(module, tests)]:
        for name, value in list(vars(module).items()):
            if id(value) in ours:
                setattr(module, name, ours[id(value)])
                changed += 1
    return changed


class _Outcomes:
    def __init__(self) -> None:
        self.of: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A failed set-up or tear-down counts, too.
        known = self.of.get(report.nodeid, ("", ""))[0]
        if known != "failed" and (report.when == "call" or report.outcome != "passed"):
            self.of[report.nodeid] = (report.outcome, str(report.longrepr or "")[-2_000:])

    def pytest_sessionfinish(self) -> None:
        Path(os.environ[REPORT]).write_text(json.dumps(self.of))


def pytest_configure(config: pytest.Config) -> None:
    """Takes the outcomes down."""
    config.pluginmanager.register(_Outcomes(), "kafka-python suite outcomes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """After the modules were imported."""
    changed = substitute(config.rootpath.resolve() / "test")
    if not changed:
        raise pytest.UsageError("no name of kafka-python was found in its tests: nothing would be tested")
