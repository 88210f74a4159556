"""What a resource says is data: who checks it imports, opens and resolves nothing that it names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater.kafka.consumer.config.consumer_config import default_keywords
from slackwater.kafka.java_names import NOT_HERE, java_name
from slackwater.kafka.net.security.options import PROPERTIES
from slackwater_operator.admission.webhook import refusal
from slackwater_operator.api.v1alpha1 import crd
from tests.support.operator.bad_resources import changed, good
from tests.support.sealed import events_with

MARK = "told_by_a_resource"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of a module that can be imported, of a file that can be read, and of an address."""
    folder = tmp_path_factory.mktemp("named")
    (folder / f"{MARK}.py").write_text("Thing = dict\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        file = folder / f"{MARK}.py"
        yield [f"{MARK}:Thing", str(file), f"file://{file}", f"http://127.0.0.1:9/{MARK}"]


def texts(schema: dict[str, Any], path: str) -> Iterator[str]:
    """The path of each text in a schema, but for those in lists and maps."""
    for name, inner in schema.get("properties", {}).items():
        yield from texts(inner, f"{path}/{name}")
    if schema.get("type") == "string":
        yield path


def spec() -> dict[str, Any]:
    version = crd.definition()["spec"]["versions"][0]
    properties: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return properties


FIELDS = [*texts(spec(), "spec"), "spec/topics/0", "spec/pipeline/handlerPath/0"]
KAFKA = sorted({*map(java_name, default_keywords()), *NOT_HERE, *PROPERTIES})


@pytest.mark.parametrize(
    "path", [*FIELDS, *(f"spec/kafka/properties/{name}" for name in KAFKA)], ids=lambda path: path
)
def test_no_name_of_a_resource_is_imported_opened_or_resolved(names: list[str], path: str) -> None:
    for name in names:
        parent, _, last = path.rpartition("/")
        resource = changed(good(), {parent: [name]} if last == "0" else {path: name})
        with events_with(MARK) as events:
            refusal(resource, None, "worker:1")
        assert (events, sys.modules.pop(MARK, None)) == ([], None)
