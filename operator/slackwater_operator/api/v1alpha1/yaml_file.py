"""Reads a YAML file so that errors can name the line of a field.

YAML 1.1 reads some plain words as booleans (`n`, `yes`, `on`), even as keys; kubectl's parser does so for
all of them, PyYAML for most. As keys they are all refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slackwater.fields import join

_BOOLEAN_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false"})
_MAX_BYTES = 1 << 20


class ResourceError(ValueError):
    """A resource that cannot be used: one line that names the file, the field and what to do."""

    exit_code = 2


@dataclass(frozen=True)
class Document:
    """A YAML document.

    Attributes:
        value: its content.
        lines: the line (from 1) of each field's dotted path.
    """

    value: object
    lines: dict[str, int]


def read(path: Path) -> Document:
    """Reads the only document of a file.

    Raises:
        ResourceError: the file cannot be read or is not YAML; it has no document or several; a key is
            duplicated, not a string, or a word that YAML reads as a boolean.
    """
    try:
        if path.is_file() and path.stat().st_size > _MAX_BYTES:
            raise _error(
                path, 0, f"is larger than {_MAX_BYTES} bytes, so it cannot be a ConsumerGroup; check the path"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _error(path, 0, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _error(path, 0, f"is not UTF-8 (at byte {error.start})") from None
    loader = yaml.SafeLoader(text)
    try:
        return _document(path, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _error(path, mark.line + 1 if mark else 0, f"is not YAML: {error.problem}") from None
    except RecursionError:
        raise _error(path, 0, "is nested too deeply to be a ConsumerGroup; check the path") from None
    except yaml.YAMLError as error:
        raise _error(path, 0, f"is not YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def line_of(path: str, lines: dict[str, int]) -> int:
    """The line of a field, or of the nearest one that contains it; 0 if unknown."""
    while path:
        if path in lines:
            return lines[path]
        path = re.sub(r"(\[[^]]*\]|\.?[^.\[]*)$", "", path)
    return 0


def _document(path: Path, loader: yaml.SafeLoader) -> Document:
    node = loader.get_node() if loader.check_node() else None
    if node is None:
        raise _error(path, 0, "is empty; it must contain one ConsumerGroup")
    if loader.check_node():
        raise _error(
            path, 0, "contains more than one YAML document; put each ConsumerGroup into its own file"
        )
    reader = _Reader(path, loader)
    return Document(reader.value(node, ""), reader.lines)


class _Reader:
    """Converts nodes to values and stores the line of each."""

    def __init__(self, path: Path, loader: yaml.SafeLoader) -> None:
        self._path = path
        self._loader = loader
        self._open: set[int] = set()
        self.lines: dict[str, int] = {}

    def value(self, node: yaml.Node, path: str) -> Any:
        if id(node) in self._open or len(self.lines) > 10_000:
            raise _error(
                self._path,
                node.start_mark.line + 1,
                f"{path}: the alias refers to itself, or the document is too large; write the value out",
            )
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
            return self._loader.construct_object(node)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        self._loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            where = join(path, key) if "." not in key else f"{path}[{key}]"
            line = key_node.start_mark.line + 1
            if key in result:
                raise _error(self._path, line, f"{where}: is set twice; remove one")
            self.lines[where] = line
            result[key] = self.value(value_node, where)
            self.lines.setdefault(f"{path}[{key}]", line)
        return result

    def _key(self, node: yaml.Node, path: str) -> str:
        line = node.start_mark.line + 1
        where = f"{path}: " if path else ""
        if not isinstance(node, yaml.ScalarNode):
            raise _error(self._path, line, f"{where}a key must be text")
        written = str(node.value)
        if node.style is None and written.lower() in _BOOLEAN_WORDS:
            raise _error(
                self._path,
                line,
                f'{where}YAML reads the key `{written}` as a boolean; write "{written}"',
            )
        if node.tag != "tag:yaml.org,2002:str":
            raise _error(self._path, line, f'{where}the key `{written}` is not text; write "{written}"')
        return written


def _error(path: Path, line: int, problem: str) -> ResourceError:
    return ResourceError(f"{path}{f':{line}' if line else ''}: {problem}")
