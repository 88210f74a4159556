"""A container's environment from its pod (pure): values, references, ``$(NAME)``."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from tests.support.controlplane.api import Json

_UNITS = {
    "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "": Decimal(1),
}  # fmt: skip

Objects = Mapping[tuple[str, str], Json | None]
"""(``configmaps`` or ``secrets``, name) -> the object, None where there is none."""


class MissingReference(Exception):
    """A ConfigMap, a Secret, or a key of one that is not optional is not there."""


def references(container: Json) -> set[tuple[str, str]]:
    """The ConfigMaps and Secrets that the container's environment is made of."""
    references = set()
    for entry in container.get("env", []):
        source = entry.get("valueFrom", {})
        for field, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
            if field in source:
                references.add((kind, source[field]["name"]))
    for entry in container.get("envFrom", []):
        for field, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if field in entry:
                references.add((kind, entry[field]["name"]))
    return references


def environment(container: Json, pod: Json, objects: Objects) -> dict[str, str]:
    """The variables of ``container``: ``envFrom``, then ``env`` in order, which may use those before it.

    Raises :class:`MissingReference`.
    """
    variables: dict[str, str] = {}
    for entry in container.get("envFrom", []):
        variables.update(_env_from(entry, objects))
    for entry in container.get("env", []):
        value = _value(entry, container, pod, objects, variables)
        if value is not None:
            variables[entry["name"]] = value
    return variables


def _env_from(entry: Json, objects: Objects) -> dict[str, str]:
    field, kind = ("configMapRef", "configmaps") if "configMapRef" in entry else ("secretRef", "secrets")
    data = contents(kind, entry[field], objects)
    return {entry.get("prefix", "") + key: value.decode() for key, value in data.items()}


def _value(
    entry: Json, container: Json, pod: Json, objects: Objects, before: Mapping[str, str]
) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return expand(entry.get("value", ""), before)
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_of(container, source["resourceFieldRef"])
    field, kind = (
        ("configMapKeyRef", "configmaps") if "configMapKeyRef" in source else ("secretKeyRef", "secrets")
    )
    reference = source[field]
    value = contents(kind, reference, objects).get(reference["key"])
    if value is None and not reference.get("optional"):
        raise MissingReference(f"couldn't find key {reference['key']} in {kind} {reference['name']}")
    return None if value is None else value.decode()


def contents(kind: str, reference: Json, objects: Objects) -> dict[str, bytes]:
    """What a ConfigMap or Secret holds; nothing where it is optional and not there."""
    name = reference.get("name") or reference.get("secretName", "")
    document = objects.get((kind, name))
    if document is None:
        if reference.get("optional"):
            return {}
        raise MissingReference(f'{kind.removesuffix("s")} "{name}" not found')
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}
    data = {key: value.encode() for key, value in (document.get("data") or {}).items()}
    return data | {key: base64.b64decode(value) for key, value in (document.get("binaryData") or {}).items()}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where NAME is known; ``$$`` is a dollar."""
    return re.sub(
        r"\$\$|\$\(([^)]+)\)",
        lambda reference: "$" if reference[1] is None else variables.get(reference[1], reference[0]),
        text,
    )


def field_of(pod: Json, path: str) -> str:
    """A pod's field as the downward API gives it."""
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if keyed:
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    content: Any = pod
    for part in path.split("."):
        content = content.get(part, "") if isinstance(content, Mapping) else ""
    if isinstance(content, Mapping):
        return "".join(f'{key}="{value}"\n' for key, value in sorted(content.items()))
    if isinstance(content, Sequence) and not isinstance(content, str):
        return ",".join(address["ip"] for address in content)
    return str(content)


def resource_of(container: Json, reference: Json) -> str:
    """A container's request or limit divided by the divisor, rounded up; 0 where it is not set."""
    kind, _, name = reference["resource"].partition(".")
    value = container.get("resources", {}).get(kind, {}).get(name, "0")
    divisor = quantity(str(reference.get("divisor", "1"))) or Decimal(1)
    return str((quantity(str(value)) / divisor).to_integral_value(ROUND_CEILING))


def quantity(text: str) -> Decimal:
    """Kubernetes' notation of numbers: ``500m``, ``1Gi``."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"not a quantity: {text}")
    return Decimal(match[1]) * _UNITS[match[2]]
