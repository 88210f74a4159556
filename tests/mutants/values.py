"""Faults of the decoders of values: JSON, Avro, Protobuf, and the schema registry."""

from __future__ import annotations

from tests.mutants.fault import Fault

_VALUES = "worker/slackwater/pipeline/values"
_UNIT = "tests/pipeline/unit/values"

FAULTS = (
    Fault(
        "kind-that-comes-later-is-not-looked-for",
        "worker/slackwater/pipeline/values/registry/kinds.py",
        "        self._look_for(set(records.values()) - self._of_record.keys())\n",
        "",
        (
            "tests/pipeline/unit/values/test_values_kinds.py::test_a_kind_whose_subject_comes_later_is_decoded_from_then_on",
        ),
    ),
    Fault(
        "offset-of-a-time-zone-has-the-wrong-sign",
        f"{_VALUES}/json_rows.py",
        'return -minutes if zone[0] == "-" else minutes',
        'return minutes if zone[0] == "-" else -minutes',
        (f"{_UNIT}/test_values_json.py",),
    ),
    Fault(
        "missing-field-that-must-not-be-null",
        f"{_VALUES}/json_rows.py",
        "            elif not may_be_null:\n",
        "            elif name in value and not may_be_null:\n",
        (f"{_UNIT}/test_values_json.py",),
    ),
    Fault(
        "two-objects-in-one-value",
        f"{_VALUES}/json_blocks.py",
        "        if table.num_rows != len(values):",
        "        if table.num_rows < len(values):",
        (f"{_UNIT}/test_values_json.py",),
    ),
    Fault(
        "wrong-record-is-rejected-in-a-later-block",
        f"{_VALUES}/json.py",
        "arrays.append(self._one_by_one(block, first + start, bad))",
        "arrays.append(self._one_by_one(block, start, bad))",
        (f"{_UNIT}/test_values_json.py",),
    ),
    Fault(
        "bytes-behind-a-record-are-ignored",
        f"{_VALUES}/avro.py",
        "            if stream.tell() == len(value):",
        "            if stream.tell() <= len(value):",
        (f"{_UNIT}/test_values_avro.py",),
    ),
    Fault(
        "array-of-nothing-is-taken",
        f"{_VALUES}/avro_schema.py",
        'return {"null": 0, "float": 4, "double": 8}.get(schema, 1)',
        'return {"float": 4, "double": 8}.get(schema, 1)',
        (f"{_UNIT}/test_values_avro.py",),
    ),
    Fault(
        "optional-field-that-is-not-set",
        f"{_VALUES}/protobuf_schema.py",
        "None if presence and not value.HasField(name) else read(getattr(value, name))",
        "read(getattr(value, name))",
        (f"{_UNIT}/test_values_protobuf.py",),
    ),
    Fault(
        "another-message-is-read-as-this-one",
        f"{_VALUES}/protobuf.py",
        "        if name != self._name:\n",
        "        if not name:\n",
        (f"{_UNIT}/test_values_protobuf.py",),
    ),
    Fault(
        "reference-comes-before-what-it-refers-to",
        f"{_VALUES}/registry/client.py",
        "            self._collect(referred, collected, open_)\n"
        "            collected[key] = (name, _schema(referred, name)[1])\n",
        "            collected[key] = (name, _schema(referred, name)[1])\n"
        "            self._collect(referred, collected, open_)\n",
        (f"{_UNIT}/test_values_registry.py",),
    ),
)
