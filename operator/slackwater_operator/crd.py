"""The CustomResourceDefinition, made from the types in `resources`.

`python -m slackwater_operator.crd` prints it; `python -m slackwater_operator.crd FILE` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from slackwater_operator import fields, resources

HEADER = "# Generated from the types by `python -m slackwater_operator.crd FILE`; don't edit.\n"
PLURAL = "consumergroups"


def definition() -> dict[str, Any]:
    """The CRD, as the mapping that its YAML holds."""
    group, version = resources.API_VERSION.split("/")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{group}"},
        "spec": {
            "group": group,
            "names": {
                "kind": resources.KIND,
                "listKind": f"{resources.KIND}List",
                "plural": PLURAL,
                "singular": resources.KIND.lower(),
                "shortNames": ["cg"],
            },
            "scope": "Namespaced",
            "versions": [_version(version)],
        },
    }


def _version(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": _schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    }


def _columns() -> list[dict[str, str]]:
    return [
        {"name": "Group", "type": "string", "jsonPath": ".spec.groupId"},
        {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas"},
        {"name": "Replicas", "type": "integer", "jsonPath": ".status.replicas"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def _schema() -> dict[str, Any]:
    schema = fields.object_schema(resources.ConsumerGroup)
    schema["description"] = "A Kafka consumer group that stays still while its workers are restarted."
    schema["properties"]["apiVersion"] = {"type": "string"}
    schema["properties"]["kind"] = {"type": "string"}
    # The API server checks metadata itself, and allows a schema to restrict nothing there but the name.
    name = schema["properties"]["metadata"]["properties"]["name"]
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {"name": {key: name[key] for key in ("type", "pattern", "maxLength")}},
    }
    schema["required"] = ["spec"]
    schema["properties"]["status"] = _status()
    return schema


def _status() -> dict[str, Any]:
    text = {"type": "string"}
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": text,
            "message": text,
        },
    }
    return {
        "type": "object",
        "description": "What the operator saw last.",
        "properties": {
            "replicas": {"type": "integer", "description": "How many workers there are."},
            "selector": {
                "type": "string",
                "description": "The workers' label selector, as text.",
            },
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": condition,
            },
        },
    }


def render() -> str:
    """The CRD as YAML, the same each time."""
    return HEADER + yaml.dump(definition(), Dumper=_NoAliases, sort_keys=False, width=110)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def main(arguments: list[str]) -> int:
    """Prints the CRD, or writes it to the file named."""
    if arguments:
        Path(arguments[0]).write_text(render(), encoding="utf-8")
    else:
        sys.stdout.write(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
