"""The CustomResourceDefinition, made from the types in `resources`.

`python -m slackwater_operator.crd` prints it; `python -m slackwater_operator.crd FILE...` writes it (to
`crds/` and to the chart).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from slackwater_operator import crd_status, fields, resources

HEADER = "# Generated from the types by `python -m slackwater_operator.crd FILE...`; don't edit.\n"
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
                "categories": ["slackwater"],
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


def _columns() -> list[dict[str, Any]]:
    ready = '.status.conditions[?(@.type=="Ready")].status'
    reason = '.status.conditions[?(@.type=="Ready")].reason'
    return [
        _column("Ready", ready, "Whether all wanted workers are in the group and it is settled."),
        _column("Replicas", ".status.replicas", "How many workers there are.", type_="integer"),
        _column("Lag", ".status.lag", "Records not handled yet, to two digits.", type_="integer"),
        _column("Generation", ".status.generation", "Kafka's generation of the group.", type_="integer"),
        _column("Revision", ".status.revision", "What the workers are started from."),
        _column("Age", ".metadata.creationTimestamp", "How long ago it was made.", type_="date"),
        _column("Group", ".spec.groupId", "Kafka's group.id where it is not the name.", priority=1),
        _column(
            "Desired", ".status.desiredReplicas", "How many workers are wanted.", type_="integer", priority=1
        ),
        _column("Reason", reason, "Why it is ready or not.", priority=1),
    ]


def _column(
    name: str, path: str, description: str, *, type_: str = "string", priority: int = 0
) -> dict[str, Any]:
    """A column of `kubectl get`; those of priority 1 are shown by `-o wide` only."""
    return {
        "name": name,
        "type": type_,
        "jsonPath": path,
        "description": description,
        "priority": priority,
    }


def _schema() -> dict[str, Any]:
    schema = fields.object_schema(resources.ConsumerGroup)
    schema["description"] = "A Kafka consumer group that stays still while its workers are restarted."
    schema["properties"]["apiVersion"] = {"type": "string"}
    schema["properties"]["kind"] = {"type": "string"}
    # The API server checks metadata itself, and allows a schema to restrict nothing there but the name.
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": resources.MAX_NAME}},
    }
    schema["required"] = ["spec"]
    schema["properties"]["status"] = crd_status.schema()
    return schema


def render() -> str:
    """The CRD as YAML, the same each time."""
    return HEADER + yaml.dump(definition(), Dumper=_NoAliases, sort_keys=False, width=110)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def main(arguments: list[str]) -> int:
    """Prints the CRD, or writes it to the files named."""
    for file in arguments:
        Path(file).write_text(render(), encoding="utf-8")
    if not arguments:
        sys.stdout.write(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
