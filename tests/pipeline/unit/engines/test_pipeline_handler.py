import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from slackwater.pipeline.engines import handler
from slackwater.runtime.errors import HandlerLoadError


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("hl_"):
            del sys.modules[name]


def test_loads_from_the_handler_path_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "hl_pack").mkdir()
    (tmp_path / "hl_pack" / "inner.py").write_text("def transform(table):\n    return 'mine'\n")
    assert handler.load("hl_pack.inner:transform", [str(tmp_path)])(None) == "mine"
    assert sys.path[0] == str(tmp_path)


def test_the_first_folder_wins(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hl_twice.py").write_text(f"def f(t):\n    return {name!r}\n")
    function = handler.load("hl_twice:f", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert function(None) == "first"


def test_modules_of_the_handler_path_are_those_that_were_imported_from_it(tmp_path: Path) -> None:
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "hl_installed.py").write_text("")
    (tmp_path / "hl_beside.py").write_text("")
    (tmp_path / "hl_mine.py").write_text("import hl_beside, hl_installed, json\ndef f(t): ...\n")
    handler.load("hl_mine:f", [str(tmp_path), str(installed)])
    modules = {module.__name__ for module in handler.modules_in([str(tmp_path)])}
    assert modules == {"hl_mine", "hl_beside"}
    assert handler.modules_in([]) == []


@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        ("", "hl_nowhere:f", "no module hl_nowhere in handlerPath ("),
        ("", "hl_bad.deeper:f", "no module hl_bad.deeper"),
        ("def transfrom(t): ...", "hl_bad:transform", "did you mean transfrom?"),
        ("transform = 3", "hl_bad:transform", "is no function but int"),
        ("import hl_missing_dependency", "hl_bad:f", "ModuleNotFoundError: No module named 'hl_missing"),
        ("x = 1\nraise ValueError('boom')", "hl_bad:f", "hl_bad.py line 2"),
        ("raise SystemExit(3)", "hl_bad:f", "SystemExit"),
        ("def f(:\n", "hl_bad:f", "hl_bad.py line 1"),
        ("", "hl_bad", "module:function"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, source: str, spec: str, said: str) -> None:
    (tmp_path / "hl_bad.py").write_text(source)
    with pytest.raises(HandlerLoadError) as raised:
        handler.load(spec, [str(tmp_path)])
    message = str(raised.value)
    assert said in message
    assert spec in message
    assert "\n" not in message


def test_a_handler_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HandlerLoadError, match="nowhere in handlerPath is not a folder"):
        handler.load("m:f", [str(tmp_path / "nowhere")])


def test_what_arrow_raises_is_shown_with_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "hl_arrow.py").write_text("def f(table):\n    return table['nothing']\n")
    function = handler.load("hl_arrow:f", [str(tmp_path)])
    with pytest.raises(KeyError) as raised:
        function(pa.table({"x": [1]}))
    assert handler.describe(raised.value).endswith("hl_arrow.py line 2)")
