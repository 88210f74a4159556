"""No module imports itself by way of others. `.importlinter` holds the order of the layers.

All imports count, also those inside functions and beneath TYPE_CHECKING: a cycle that is hidden from the
interpreter is still one for the reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "worker" / "slackwater", ROOT / "operator" / "slackwater_operator")

Graph = dict[str, set[str]]


def modules_of(package: Path) -> dict[str, Path]:
    """Every module beneath a package's folder, by its dotted name."""
    modules = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements beneath a node: a third of its nodes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child
            yield from statements(child)


def imports_of(module: str, file: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules, among ``modules``, that a file imports anywhere in its code."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    imported: set[str] = set()
    for node in statements(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            source = (above + (node.module or "")).rstrip(".")
            imported.update(
                name if (name := f"{source}.{alias.name}") in modules else source for alias in node.names
            )
    return {name for name in imported if name in modules and name != module}


def graph_of(packages: tuple[Path, ...]) -> Graph:
    """Who imports whom."""
    modules = {name: file for package in packages for name, file in modules_of(package).items()}
    return {name: imports_of(name, file, modules) for name, file in modules.items()}


def cycles_of(graph: Graph) -> Iterator[list[str]]:
    """Groups of modules that reach each other. Modules that import nothing of the rest, or that nothing of
    the rest imports, are taken away first, again and again."""
    rest = {name: set(imported) for name, imported in graph.items()}
    while True:
        used = set().union(*rest.values())
        idle = {name for name, imported in rest.items() if not imported or name not in used}
        if not idle:
            break
        rest = {name: imported - idle for name, imported in rest.items() if name not in idle}
    while rest:
        start = min(rest)
        cycle = {name for name in reached(rest, start) if start in reached(rest, name)}
        if len(cycle) > 1:
            yield sorted(cycle)
        rest = {
            name: imported - cycle - {start} for name, imported in rest.items() if name not in cycle | {start}
        }


def reached(graph: Graph, start: str) -> set[str]:
    """What ``start`` imports, directly or not."""
    reach: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - reach
        reach |= new
        ahead += new
    return reach


def test_no_module_of_the_worker_or_the_operator_imports_itself_by_way_of_others() -> None:
    assert list(cycles_of(graph_of(PACKAGES))) == []


@pytest.mark.parametrize(
    "back",
    [
        "from package.low import thing",
        "from .low import thing",
        "from package import low",
        "from . import low",
        "import package.low",
        "def late() -> None:\n    from package.low import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.low import thing",
    ],
)
def test_a_cycle_is_detected_however_it_is_imported(tmp_path: Path, back: str) -> None:
    package = tmp_path / "package"
    (package / "deep").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "low": "from package.deep.middle import thing",
        "deep/__init__": "",
        "deep/middle": "from ..high import thing",
        "high": back,
        "user": "from package import high",
        "base": "",
    }.items():
        (package / f"{name}.py").write_text(text)
    cycles = list(cycles_of(graph_of((package,))))
    assert cycles == [["package.deep.middle", "package.high", "package.low"]]
