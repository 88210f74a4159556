"""What the scenarios' harness counts and how the load is spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.controlplane.api import until
from tests.support.site.group import AT_REST, is_in
from tests.support.site.load import Produced, _order, ends
from tests.support.site.recorder import Recorder, Sample
from tests.support.site.sink import verify


def write(folder: Path, name: str, places: list[tuple[int, int]]) -> None:
    folder.mkdir(exist_ok=True)
    columns = {"partition": [p for p, _ in places], "offset": [o for _, o in places]}
    pq.write_table(pa.table(columns), folder / name)


def produced(*places: tuple[int, int]) -> list[Produced]:
    return [Produced(number, *place) for number, place in enumerate(places)]


def test_lost_duplicated_and_strange_records_are_named(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [(0, 0), (0, 1)])
    write(tmp_path, "b.parquet", [(0, 1), (1, 7)])
    write(tmp_path, ".half-written.parquet", [(0, 2)])
    verdict = verify(tmp_path, produced((0, 0), (0, 1), (0, 2)))
    assert (verdict.lost, verdict.duplicated, verdict.strangers, verdict.exact) == (1, 1, 1, False)
    assert verdict.examples == (
        "lost: partition 0 offset 2",
        "twice: partition 0 offset 1",
        "never produced: partition 1 offset 7",
    )


def test_a_whole_sink_is_exact_and_an_absent_one_has_lost_all(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [(0, 0), (1, 0)])
    assert verify(tmp_path, produced((0, 0), (1, 0))).exact
    assert verify(tmp_path / "none", produced((0, 0))).lost == 1


def test_the_load_is_spread_by_weights_all_the_time() -> None:
    order = _order([1, 1, 2])
    assert Counter(order) == {0: 250, 1: 250, 2: 500}
    assert Counter(order[:100])[2] in range(45, 56), "not one partition after the other"
    assert ends(produced((0, 0), (0, 4), (2, 1))) == {0: 5, 2: 2}


@pytest.mark.parametrize(
    ("generation", "status", "rests"),
    [
        (2, {"observedGeneration": 2, "rollout": {"phase": "Idle"}}, True),
        (2, {"observedGeneration": 2, "rollout": {"phase": "Stopped"}}, True),
        (2, {"observedGeneration": 1, "rollout": {"phase": "Idle"}}, False),
        (2, {"observedGeneration": 2, "rollout": {"phase": "Preflight"}}, False),
        (2, {"observedGeneration": 2, "rollout": {"phase": "Rolling"}}, False),
        (2, {"observedGeneration": 2, "rollout": {"phase": "RollingBack"}}, False),
        (1, {}, False),
    ],
)
def test_a_group_rests_when_the_operator_has_read_its_spec_and_moves_no_worker(
    generation: int, status: dict[str, object], rests: bool
) -> None:
    assert is_in(AT_REST, {"metadata": {"generation": generation}, "status": status}) is rests


def sample(at_ms: int, pods: set[str] | None, members: set[str] | None, replicas: int | None = 3) -> Sample:
    frozen = None if pods is None else frozenset(pods)
    return Sample(at_ms, replicas, frozen, frozen, "Stable", None if members is None else frozenset(members))


def test_orphans_are_timed_from_the_end_of_their_pod() -> None:
    recorder = Recorder(lambda: sample(0, None, None))
    recorder.samples = [
        sample(0, {"a", "b"}, {"a", "b"}),
        sample(100, {"a"}, {"a", "b"}),
        sample(200, None, {"a", "b"}),
        sample(400, {"a"}, {"a", "b"}, replicas=1),
        sample(500, {"a"}, {"a"}, replicas=1),
        sample(600, {"a"}, {"a"}, replicas=None),
    ]
    assert recorder.orphaned_ms() == 300
    assert recorder.replicas() == [3, 1]


def test_until_names_what_was_waited_for() -> None:
    answers: Iterator[object] = iter([None, False, [], "there"])
    assert until(lambda: next(answers), "it", 5, every_s=0) == "there"
    with pytest.raises(TimeoutError, match="the impossible: not within 0 s; last seen: None"):
        until(lambda: None, "the impossible", 0)
