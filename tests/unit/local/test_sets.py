"""The sets of a run's workers: who is in which, and the files that their processes are started with."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from slackwater_operator.local.prepare import Source
from slackwater_operator.local.revisions import Revisions
from slackwater_operator.local.sets import Sets
from slackwater_operator.local.views import RunError
from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.policies.takeover.types import SetView
from tests.unit.local.local_bench import KEY, resource


def shape(sets: Sets) -> list[tuple[str, list[int]]]:
    return [(one.name, list(one.ordinals)) for one in sets]


def test_a_group_that_is_only_restarted_has_pods_that_are_called_like_its_members() -> None:
    assert Sets("flights", 3, 1, takeover=False).old.pod(2) == "flights-2"
    assert Sets("flights", 3, 1, takeover=True).old.pod(2) == "flights-a-2"


@pytest.mark.parametrize(("takeover", "names"), [(True, ["b", "a", "b"]), (False, ["a", "b", "a"])])
def test_the_sets_take_turns(takeover: bool, names: list[str]) -> None:
    sets = Sets("flights", 1, 1, takeover=takeover)
    for number, name in enumerate(names, start=2):
        sets.begin(number)
        sets.old.drop(0)
        assert sets.new is not None
        sets.new.add(0)
        sets.finish()
        assert (sets.old.name, sets.old.revision) == (f"flights-{name}", number)
        assert shape(sets) == [(f"flights-{name}", [0])]


def test_the_new_set_grows_downwards_and_the_way_back_is_the_same_exchanged() -> None:
    sets = Sets("flights", 3, 1, takeover=True)
    sets.begin(2)
    assert sets.new is not None
    for ordinal in (2, 1):
        sets.new.add(ordinal)
        sets.old.drop(ordinal)
    assert shape(sets) == [("flights-a", [0]), ("flights-b", [1, 2])]
    sets.turn_back()
    assert shape(sets) == [("flights-b", [1, 2]), ("flights-a", [0])]
    for ordinal in (1, 2):
        sets.new.add(ordinal)
        sets.old.drop(ordinal)
    sets.finish()
    assert shape(sets) == [("flights-a", [0, 1, 2])]
    assert sets.old.revision == 1


def test_only_one_takeover_at_a_time() -> None:
    sets = Sets("flights", 3, 1, takeover=True)
    sets.begin(2)
    with pytest.raises(ValueError, match="flights-a is being left for flights-b already"):
        sets.begin(3)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        (6, [("flights-a", [0, 1]), ("flights-b", [2, 3, 4, 5])]),
        (4, [("flights-a", [0, 1]), ("flights-b", [2, 3])]),
        (3, [("flights-a", [0, 1]), ("flights-b", [2])]),
        (2, [("flights-a", [0, 1])]),
        (1, [("flights-a", [0])]),
        (0, [("flights-a", [])]),
    ],
)
def test_scaling_changes_the_set_with_the_highest_ordinals(
    replicas: int, expected: list[tuple[str, list[int]]]
) -> None:
    sets = Sets("flights", 4, 1, takeover=True)
    sets.begin(2)
    assert sets.new is not None
    sets.old.seen, sets.new.seen = (
        SetView("flights-a", Ordinals(0, 2)),
        SetView("flights-b", Ordinals(2, 2)),
    )
    sets.scale(replicas)
    assert shape(sets) == expected
    sets.scale(5)
    assert sorted(ordinal for _, found in shape(sets) for ordinal in found) == [0, 1, 2, 3, 4]


def test_the_way_back_may_leave_one_set_and_scaling_down_the_other_one() -> None:
    sets = Sets("flights", 4, 1, takeover=True)
    sets.begin(2)
    assert sets.new is not None
    sets.old.seen, sets.new.seen = (
        SetView("flights-a", Ordinals(2, 2)),
        SetView("flights-b", Ordinals(0, 2)),
    )
    sets.scale(1)
    assert shape(sets) == [("flights-b", [0])]


def written(folder: Path, key: bytes, strategy: str) -> tuple[Revisions, dict[str, object]]:
    source = Source(resource(1, rollout={"strategy": strategy}), folder, folder)
    revisions = Revisions(source, folder / "run", spark_remote="", key=key)
    assert revisions.write() == 1
    return revisions, json.loads(revisions.path(1).read_text())


def test_the_key_is_in_a_file_that_nobody_else_may_read(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    old = tmp_path / "run" / "takeover.key"
    old.write_text("of another run")
    old.chmod(0o644)
    revisions, document = written(tmp_path, KEY, "Takeover")
    assert document["takeover"] == {"keyFile": str(old)}
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    assert bytes.fromhex(old.read_text()) == KEY
    assert revisions.keyed(1)


def test_strategy_restart_has_no_key(tmp_path: Path) -> None:
    revisions, document = written(tmp_path, KEY, "Restart")
    assert "takeover" not in document
    assert not (tmp_path / "run" / "takeover.key").exists()
    assert not revisions.keyed(1)


def test_a_takeover_has_its_key_whatever_the_strategy_says(tmp_path: Path) -> None:
    revisions, _ = written(tmp_path, KEY, "Restart")
    assert revisions.write(takes_over=True) == 2
    assert "takeover" in json.loads(revisions.path(2).read_text())
    assert (revisions.keyed(1), revisions.keyed(2)) == (False, True)


def test_a_revision_keeps_its_file_when_the_resource_changes(tmp_path: Path) -> None:
    revisions, _ = written(tmp_path, KEY, "Restart")
    revisions.replace(resource(1, rollout={"strategy": "Takeover"}, **{"max.poll.records": "7"}))
    assert revisions.write() == 2
    before, after = (json.loads(revisions.path(number).read_text()) for number in (1, 2))
    assert "max.poll.records" not in before["properties"]
    assert after["properties"]["max.poll.records"] == "7"
    assert (revisions.keyed(1), revisions.keyed(2)) == (False, True)


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have 32 bytes, not 5"):
        written(tmp_path, b"short", "Takeover")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match=r"run.*: cannot be written"):
        written(tmp_path, KEY, "Takeover")
