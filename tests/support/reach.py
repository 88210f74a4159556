"""Which test files a change can reach, by imports.

A module reaches what imports it, anywhere in its text. It also reaches what names it in a string, as in
``[python, "-m", "slackwater.cli"]``. Of a package around a module that is imported only
what it imports when it is loaded counts, not what its functions do. Of a ``conftest.py`` a test file has the
fixtures that it names, with what these use.
"""

from __future__ import annotations

import ast
import itertools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCES = ("worker/slackwater", "operator/slackwater_operator", "tests", "tools", "benchmarks")
OF_DATA = {
    "charts/": (
        *("tests/operator/unit/charts", "tests/operator/integration/charts"),
        *("tests/e2e/chart", "tests/project"),
    ),
    "crds/": ("tests/operator/unit/api", "tests/e2e/kube", "tests/e2e/objects"),
    "docs/": ("tests/project", "tests/operator/unit/api", "tests/e2e/operations/test_docs_commands.py"),
    "examples/": ("tests/project", "tests/operator/unit", "tests/pipeline/integration", "tests/e2e/objects"),
    "images/": ("tests/operator/integration/charts", "tests/e2e/chart"),
    "tests/": (),
}
"""Beginning of the path of a file that is no Python -> the tests that read such files. Pages at the top count
as ``docs/``. What is below ``tests/`` reaches the tests of its folder; all others reach every test."""


_LOADED = "!"
"""Behind the name of a package: as it is loaded for a module in it."""


@dataclass(frozen=True)
class Module:
    """A module's text and its place."""

    root: Path
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse((self.root / self.path).read_bytes())

    @cached_property
    def name(self) -> str:
        """Its dotted name."""
        parts = self.path.with_suffix("").parts
        parts = parts[1:] if parts[0] in ("worker", "operator") else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_test(self) -> bool:
        """Whether pytest collects it."""
        return self.path.name.startswith("test_") and self.path.parts[0] == "tests"


class Reach:
    """The imports of the checkout at ``root``."""

    def __init__(self, root: Path) -> None:
        files = (
            path.relative_to(root) for folder in SOURCES for path in sorted((root / folder).rglob("*.py"))
        )
        self.modules = {module.name: module for module in (Module(root, path) for path in files)}
        self._fixtures = {
            module.path.parent: dict(self._fixtures_of(module))
            for module in self.modules.values()
            if module.path.name == "conftest.py"
        }
        self._users: dict[str, set[str]] = {}
        for name, module in self.modules.items():
            for used in self._uses(module):
                self._users.setdefault(used, set()).add(name)
            if module.path.name == "__init__.py":
                for used in self._named(_loaded(module.tree)):
                    self._users.setdefault(used, set()).add(name + _LOADED)

    def tests(self, changed: list[Path]) -> list[Path]:
        """The test files and folders that a change of these files can reach; relative paths, as these are."""
        reached: set[Path] = set()
        by_path = {module.path: name for name, module in self.modules.items()}
        todo = [by_path[path] + way for path in changed if path in by_path for way in ("", _LOADED)]
        known = set(todo)
        while todo:
            new = self._users.get(todo.pop(), set()) - known
            known |= new
            todo += new
        modules = (self.modules[name] for name in known if name in self.modules)
        reached.update(module.path for module in modules if module.is_test)
        for path in changed:
            if path.name == "conftest.py":
                reached.add(path.parent)
            elif path.suffix != ".py":
                reached.update(_tests_of_data(path))
        return sorted(path for path in reached if not any(parent in reached for parent in path.parents))

    def _uses(self, module: Module) -> set[str]:
        used = set(self._named(ast.walk(module.tree)))
        if module.path.name == "conftest.py":
            return used
        if module.path.parts[0] == "tests":
            asked = set(_arguments(module.tree))
            for folder in module.path.parents:
                fixtures = self._fixtures.get(folder, {})
                for name in asked & fixtures.keys():
                    used |= fixtures[name]
        return used

    def _fixtures_of(self, conftest: Module) -> Iterator[tuple[str, set[str]]]:
        """Each fixture, with the modules that it and the fixtures it takes use."""
        imported = dict(self._imported(conftest.tree))
        functions = {node.name: node for node in conftest.tree.body if isinstance(node, ast.FunctionDef)}
        for name in functions:
            used: set[str] = set()
            todo, known = [name], {name}
            while todo:
                function = functions[todo.pop()]
                names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
                used |= {imported[word] for word in names & imported.keys()}
                new = (names | set(_arguments(function))) & functions.keys() - known
                known |= new
                todo += new
            yield name, used

    def _imported(self, tree: ast.Module) -> Iterator[tuple[str, str]]:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield alias.asname or alias.name, full if full in self.modules else node.module

    def _named(self, nodes: Iterator[ast.AST]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._chain(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield from self._chain(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
                yield from self._run(node.value)
            elif isinstance(node, ast.List):
                words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
                for flag, word in itertools.pairwise(words):
                    if flag == "-m" and isinstance(word, str):
                        yield from self._run(word)

    def _chain(self, name: str) -> Iterator[str]:
        """The module, or that which has the name; and the packages around it, which are loaded before it."""
        names = [".".join(name.split(".")[:end]) for end in range(1, name.count(".") + 2)]
        *around, last = [part for part in names if part in self.modules] or [""]
        yield from (last, *(package + _LOADED for package in around))

    def _run(self, name: str) -> Iterator[str]:
        if name in self.modules:
            yield from self._chain(name)
            yield from self._chain(f"{name}.__main__")


def _loaded(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is loaded: all but the bodies of functions."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _loaded(node)


def _arguments(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (argument.arg for argument in node.args.args)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # usefixtures, getfixturevalue


def _tests_of_data(path: Path) -> list[Path]:
    if path.parts[0] == "tests":
        return [path.parent]
    place = "docs/" if path.suffix == ".md" and len(path.parts) == 1 else str(path)
    readers = (tests for beginning, tests in OF_DATA.items() if place.startswith(beginning))
    return [Path(test) for test in next(readers, ("tests",))]


def changed_files(root: Path, base: str = "main") -> list[Path]:
    """What differs from where this work left ``base``: committed, uncommitted, new. Relative paths."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if line]

    start = git("merge-base", "HEAD", base)[0]
    names = git("diff", "--name-only", start, "--") + git("ls-files", "--others", "--exclude-standard")
    return [Path(name) for name in sorted(set(names))]
