"""A pod's status and its volumes' files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane.kubelet.pod_runner import conditions, phase_of
from tests.support.controlplane.kubelet.volumes import Volumes, write_atomically

RUNS: dict[str, Any] = {"name": "c", "ready": True, "restartCount": 0, "state": {"running": {}}}
WAITS: dict[str, Any] = {"name": "c", "ready": False, "restartCount": 0, "state": {"waiting": {}}}
CRASHED: dict[str, Any] = {**WAITS, "restartCount": 1}


def ended(code: int) -> dict[str, Any]:
    return {"name": "c", "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": code}}}


@pytest.mark.parametrize(
    ("containers", "facts", "phase"),
    [
        ([WAITS], {}, "Pending"),
        ([RUNS], {"initialized": False}, "Pending"),
        ([RUNS], {}, "Running"),
        ([CRASHED], {}, "Running"),
        ([ended(0)], {}, "Running"),
        ([ended(0)], {"ended": True}, "Succeeded"),
        ([ended(0), ended(1)], {"ended": True}, "Failed"),
        ([WAITS], {"initialized": False, "failed": True, "ended": True}, "Failed"),
    ],
)
def test_the_phase(containers: list[dict[str, Any]], facts: dict[str, bool], phase: str) -> None:
    given = {"initialized": True, "ended": False, "failed": False, **facts}
    assert phase_of(containers, **given) == phase


def test_a_condition_keeps_its_time_until_it_flips() -> None:
    def by_type(conditions: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
        return {
            condition["type"]: (condition["status"], condition["lastTransitionTime"])
            for condition in conditions
        }

    first = conditions([WAITS], [], phase="Pending", initialized=True, at="1")
    second = conditions([RUNS], first, phase="Running", initialized=True, at="2")
    assert by_type(first)["Ready"] == ("False", "1")
    assert by_type(second)["Ready"] == by_type(second)["ContainersReady"] == ("True", "2")
    assert by_type(second)["Initialized"] == ("True", "1")
    unready = conditions([WAITS], second, phase="Running", initialized=True, at="3")
    reasons = {condition["type"]: condition.get("reason") for condition in unready}
    assert reasons["Ready"] == "ContainersNotReady"


def test_files_of_a_volume_change_together(tmp_path: Path) -> None:
    write_atomically(tmp_path, {"a": (b"1", 0o400), "sub/b": (b"1", 0o644)})
    held = (tmp_path / "..data").resolve()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "sub" / "b").read_bytes() == b"1"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o400
    write_atomically(tmp_path, {"sub/b": (b"2", 0o644), "c": (b"2", 0o644)})
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "sub" / "b").read_bytes() == (tmp_path / "c").read_bytes() == b"2"
    assert not held.exists(), "the former files are removed"


async def test_a_secret_that_has_changed_is_written_and_one_that_is_gone_stays(tmp_path: Path) -> None:
    secret: dict[str, Any] | None = {"data": {"k": "b25l"}}

    async def fetch(kind: str, name: str) -> dict[str, Any] | None:
        assert (kind, name) == ("secrets", "s")
        return secret

    async def no_token(wanted: dict[str, Any]) -> str:
        raise AssertionError(wanted)

    volume = {"name": "v", "secret": {"secretName": "s"}}
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"volumes": [volume]}}
    volumes = Volumes(tmp_path, pod, fetch, no_token)
    await volumes.make()
    shown = volumes.path({"name": "v"}) / "k"
    assert shown.read_bytes() == b"one"
    secret = {"data": {"k": "dHdv"}}
    await volumes.changed("configmaps", "s")
    assert shown.read_bytes() == b"one", "another object of that name"
    await volumes.changed("secrets", "s")
    assert shown.read_bytes() == b"two"
    secret = None
    await volumes.changed("secrets", "s")
    assert shown.read_bytes() == b"two"
