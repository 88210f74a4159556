"""What a backfill sends of a handler to the executors."""

from __future__ import annotations

import zipfile
import zipimport
from pathlib import Path

import pytest

from slackwater.backfill import handler_files as module
from slackwater.backfill.handler_files import HandlerFiles, handler_files
from slackwater.runtime.errors import ConfigError


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names(sent: HandlerFiles) -> list[str]:
    return list(sent.contents)


def test_a_package_is_sent_whole_with_the_modules_beside_it_that_it_imports(tmp_path: Path) -> None:
    texts = {
        "orders/transform.py": "import json, common\nfrom . import parsing\ndef f():\n    import lazy.inner",
        "orders/parsing.py": "",
        "orders/data/rates": "1",
        "orders/__pycache__/x.pyc": "1",
        "orders/deep/more.py": "from shared.names import NAME",
        "common.py": "import orders.parsing, pyarrow",
        "lazy/inner.py": "",
        "shared/names.py": "import slackwater",
        "slackwater/x.py": "",
        "unrelated.py": "",
        "pyarrow/no-python": "",
    }
    write(tmp_path, texts)
    sent = handler_files("orders.transform:f", [str(tmp_path / "absent"), str(tmp_path)])
    assert sent.modules == ("common", "lazy", "orders", "shared")
    assert names(sent) == [
        "common.py", "lazy/inner.py", "orders/data/rates", "orders/deep/more.py", "orders/parsing.py",
        "orders/transform.py", "shared/names.py",
    ]  # fmt: skip
    assert sent.total_bytes == sum(len(data) for data in sent.contents.values()) > 90


def test_the_first_folder_counts_and_an_installed_handler_needs_none(tmp_path: Path) -> None:
    write(tmp_path / "one", {"orders.py": "first = 1"})
    write(tmp_path / "two", {"orders.py": "second = 1"})
    path = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert handler_files("orders:f", path).contents == {"orders.py": b"first = 1"}
    assert handler_files("installed:f", path) == handler_files("", path) == HandlerFiles()


def test_a_file_that_is_no_python_is_sent_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, {"orders/a.py": "not python", "orders/b.py": "x = '\0'"})
    assert names(handler_files("orders.a:f", [str(tmp_path)])) == ["orders/a.py", "orders/b.py"]


def test_python_imports_from_the_archive_also_a_package_without_init(tmp_path: Path) -> None:
    write(tmp_path, {"orders/deep/transform.py": "x = 1"})
    archive = handler_files("orders.deep.transform:f", [str(tmp_path)]).archive(tmp_path)
    package = zipimport.zipimporter(str(archive)).find_spec("orders")
    assert package is not None
    assert list(package.submodule_search_locations or ()) == [f"{archive}/orders"]
    assert zipimport.zipimporter(f"{archive}/orders/deep").find_spec("transform") is not None


def test_the_archive_has_a_name_of_its_content(tmp_path: Path) -> None:
    write(tmp_path, {"orders.py": "a = 1"})
    first = handler_files("orders:f", [str(tmp_path)]).archive(tmp_path)
    content = first.read_bytes()
    assert handler_files("orders:f", [str(tmp_path)]).archive(tmp_path) == first
    assert first.read_bytes() == content
    assert zipfile.ZipFile(first).read("orders.py") == b"a = 1"
    write(tmp_path, {"orders.py": "a = 2"})
    assert handler_files("orders:f", [str(tmp_path)]).archive(tmp_path) != first


def test_too_much_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SENT_BYTES", 10)
    write(tmp_path, {"orders.py": "import common", "common.py": ""})
    with pytest.raises(ConfigError, match=r"handler: .*orders\.py, too much to send to the executors"):
        handler_files("orders:f", [str(tmp_path)])
