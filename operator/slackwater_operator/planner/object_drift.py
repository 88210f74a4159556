"""Whether an object that is there still says what we applied.

Server-side apply is asked for only when it would change something: a steady group costs no writes. An object
carries the hash of what was applied; that tells what has changed on our side, and comparing tells what
somebody else has changed on theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from slackwater_operator.model.names import short_hash
from slackwater_operator.planner.snapshot import APPLIED, Manifest

_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}

_compared: dict[str, tuple[Manifest, str, bool]] = {}
"""By uid: an object (objects that were read are never changed, but replaced), what it was compared with, and
what came out. Comparing is the most of a turn's work, and nearly always what was compared the turn before."""
_MOST_COMPARED = 20_000


def marked(manifest: Manifest) -> Manifest:
    """The manifest with its own hash as an annotation."""
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), APPLIED: short_hash(manifest)}
    return {**manifest, "metadata": metadata}


def differs(manifest: Manifest, live: Manifest | None) -> bool:
    """Whether applying `manifest` (as `marked` gives it) would change anything.

    Data of a ConfigMap is not compared: ours are immutable, and who watches them keeps no data.
    """
    if live is None:
        return True
    annotations = live.get("metadata", {}).get("annotations") or {}
    applied = manifest["metadata"]["annotations"][APPLIED]
    if annotations.get(APPLIED) != applied:
        return True
    uid = str(live["metadata"].get("uid", ""))
    known = _compared.get(uid)
    if known is None or known[0] is not live or known[1] != applied:
        kept = {key: value for key, value in manifest.items() if key not in ("data", "apiVersion", "kind")}
        known = (live, applied, not _contains(live, kept))
        _compared[uid] = known
        if len(_compared) > _MOST_COMPARED:
            del _compared[next(iter(_compared))]
    return known[2]


def _contains(live: Any, wanted: Any) -> bool:
    """Whether `live` says all that `wanted` does; the API server adds defaults and drops what is empty."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(_contains(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return _contains_list(live if isinstance(live, list) else [], wanted)
    return _same(live, wanted)


def _contains_list(live: list[Any], wanted: list[Any]) -> bool:
    """Lists of named things are merged by name on the server; others belong to us whole."""
    if all(isinstance(one, Mapping) and "name" in one for one in wanted):
        by_name = {one["name"]: one for one in live if isinstance(one, Mapping) and "name" in one}
        return all(_contains(by_name.get(one["name"]), one) for one in wanted)
    return len(live) >= len(wanted) and all(any(_contains(there, one) for there in live) for one in wanted)


def _same(live: Any, wanted: Any) -> bool:
    if live == wanted:
        return True
    if live is None:
        return wanted in ("", False, 0) or wanted is None
    a, b = _quantity(live), _quantity(wanted)
    return a is not None and a == b


def _quantity(value: Any) -> Decimal | None:
    """A resource quantity as a number: the API server writes `1000m` as `1`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None or match.group(1).count(".") > 1 or not match.group(1).strip("+-."):
        return None
    number, suffix = Decimal(match.group(1)), match.group(2) or ""
    if suffix in _SUFFIX:
        return number * _SUFFIX[suffix]
    return number * Decimal("1" + suffix) if suffix else number
