"""What the tests need is made before the first of them starts, and only what the selected tests need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import parts
from tests.support.controlplane.build import ToolsUnavailable


def item(*fixtures: str, markers: dict[str, tuple[str, ...]] | None = None, **params: str) -> Any:
    """A collected test with these fixtures, markers and parameters."""
    marks = markers or {}
    return SimpleNamespace(
        callspec=SimpleNamespace(params=params),
        fixturenames=fixtures,
        get_closest_marker=lambda name: marks.get(name) is not None,
        iter_markers=lambda name: [SimpleNamespace(args=marks[name])] if name in marks else [],
    )


def test_parts_follow_from_markers_and_fixtures() -> None:
    assert parts.needed_by(item("tmp_path")) == set()
    assert parts.needed_by(item("kafka")) == {"kafka"}
    assert parts.needed_by(item("broker", broker="kafka-3.9")) == {"kafka-3.9"}
    assert parts.needed_by(item("broker", broker="devbroker")) == set()
    assert parts.needed_by(item(markers={"controlplane": ()})) == {"kubectl", "controlplane"}
    assert parts.needed_by(item(markers={"parts": ("prometheus",)})) == {"prometheus"}


def test_every_part_of_a_marker_or_a_fixture_exists() -> None:
    named = {name for names in (*parts.OF_MARKERS.values(), *parts.OF_FIXTURES.values()) for name in names}
    assert named <= set(parts.PARTS)
    assert set(parts.PARTS) >= parts.LONG


def test_parts_are_made_in_order_and_only_those_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(parts, "PARTS", {name: (lambda name=name: made.append(name)) for name in "abc"})
    parts.make(["c", "a"], print)
    assert made == ["a", "c"]


def test_what_a_machine_lacks_is_said_and_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "MISSING", {"parser": "Install a C compiler"})
    assert "parser" not in parts.LONG
    assert parts.main(["parser"]) == 1
    assert capsys.readouterr().err == "parts: Install a C compiler\n"


def test_what_cannot_be_made_is_said_and_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise ToolsUnavailable("there is no `go` on the PATH")

    monkeypatch.setattr(parts, "PARTS", {"controlplane": fails})
    assert parts.main([]) == 1
    assert capsys.readouterr().err == "parts: there is no `go` on the PATH\n"
    with pytest.raises(SystemExit):
        parts.main(["contolplane"])
    assert "no part is called contolplane; choose from controlplane" in capsys.readouterr().err
