"""Reads a ConsumerGroup's file, and the Secrets of a run, from disk."""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from slackwater.runtime.config.worker_config import OF_CLASSIC_ALONE
from slackwater_operator.api.v1alpha1 import yaml_file
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.local.report.views import RunError
from slackwater_operator.specs.worker_config import secrets_of, secrets_of_analysis

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A ConsumerGroup from a file, and the folders of its relative paths.

    Attributes:
        manifest: the resource as it was read.
        folder: the folder of its file: where spec.pipeline.handlerPath starts.
        current: the folder where the paths of sinks start.
    """

    manifest: Manifest
    folder: Path
    current: Path

    @cached_property
    def group(self) -> ConsumerGroup:
        """The resource in types."""
        return parse(self.manifest)

    @property
    def handler_path(self) -> list[str]:
        """Folders for sys.path; without any given, the file's own and the one above it."""
        given = self.group.spec.pipeline.handler_path
        if not given:
            return [str(self.folder.resolve()), str(self.folder.resolve().parent)]
        return [str((self.folder / path).resolve()) for path in given]

    @property
    def sink_path(self) -> str:
        """The path of spec.pipeline.sink, resolved; "" where it has none."""
        return self.resolved(self.group.spec.pipeline.sink.path)

    def resolved(self, path: str) -> str:
        """A sink's path: a URL and "" as they are, anything else from the current folder."""
        if not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
            return path
        return str((self.current / path).resolve())

    def rolled_by(self, rollout: Mapping[str, Any]) -> Source:
        """A copy with other fields of spec.rollout."""
        return self._with("rollout", **rollout)

    def written_as(self, sink_format: str) -> Source:
        """A copy with another format of the output, in the same place."""
        sink = {**(self.manifest["spec"]["pipeline"].get("sink") or {}), "format": sink_format}
        return self._with("pipeline", sink=sink)

    def at(self, bootstrap_servers: str) -> Source:
        """A copy with other brokers."""
        return self._with("kafka", bootstrapServers=bootstrap_servers)

    def joined_by(self, group_protocol: str) -> Source:
        """A copy with another group protocol, and without the properties that go with Classic alone."""
        given = self.group.spec.kafka.properties
        kept = {name: value for name, value in given.items() if name not in OF_CLASSIC_ALONE}
        properties = given if group_protocol == "Classic" else kept
        return self._with("kafka", groupProtocol=group_protocol, properties=properties)

    def on_spark(self, remote: str) -> Source:
        """A copy with a Spark Connect server, if the engine is spark and the resource names no server."""
        pipeline = self.group.spec.pipeline
        if not remote or pipeline.engine != "spark" or pipeline.spark.remote:
            return self
        spark = {**(self.manifest["spec"]["pipeline"].get("spark") or {}), "remote": remote}
        return self._with("pipeline", spark=spark)

    def resource(self) -> Object:
        """The resource for a run: without a namespace, and with absolute paths."""
        made = copy.deepcopy(self.manifest)
        given = made["metadata"]
        kept = {name: given[name] for name in ("name", "labels", "annotations") if given.get(name)}
        pipeline = made["spec"]["pipeline"]
        pipeline["handlerPath"] = self.handler_path
        paths = {}
        for holder in (pipeline, *(pipeline.get("routes") or ())):
            if path := holder["sink"].get("path"):
                holder["sink"]["path"] = paths[path] = self.resolved(path)
        for entry in made["spec"].get("maintenance") or ():
            if entry.get("table") in paths:
                entry["table"] = paths[entry["table"]]
        for column in ("value", "key"):
            value = pipeline.get(column) or {}
            if value.get("schemaFile"):
                file = str((self.folder / value["schemaFile"]).resolve())
                pipeline[column] = {**value, "schemaFile": file}
        return {
            "apiVersion": made["apiVersion"],
            "kind": made["kind"],
            "metadata": {**kept, "namespace": ""},
            "spec": made["spec"],
        }

    def notes(self) -> list[str]:
        """The fields of the resource that a run ignores, in words."""
        notes = []
        if self.group.spec.pipeline.image:
            notes.append("spec.pipeline.image is not used: workers run in this Python environment")
        if self.group.spec.template:
            notes.append("of spec.template only the environment variables of the container worker are used")
        return notes

    def _with(self, part: str, **fields: Any) -> Source:
        made = copy.deepcopy(self.manifest)
        made["spec"][part] = {**(made["spec"].get(part) or {}), **fields}
        return replace(self, manifest=made)


def read_source(file: Path, current: Path) -> Source:
    """Reads a ConsumerGroup's file.

    Args:
        file: the YAML.
        current: where relative paths of the sink start.

    Raises:
        ResourceError: the file is wrong; names the line.
    """
    document = yaml_file.read(file)
    parse(document.value, name=str(file), lines=document.lines)
    assert isinstance(document.value, dict)
    return Source(document.value, file.resolve().parent, current)


def read_secrets(group: ConsumerGroup, folder: Path | None, *, analysis: bool = False) -> list[Object]:
    """The Secrets of spec.kafka.security and of spec.pipeline's schema registries, from files:
    FOLDER/SECRET/KEY.

    Args:
        group: the resource.
        folder: the folder with a folder for each Secret; None: none was given.
        analysis: whether those of spec.rollout.analysis.prometheus are needed, too.

    Raises:
        RunError: one is missing.
    """
    secrets: dict[str, Object] = {}
    needed = secrets_of(group) + (secrets_of_analysis(group) if analysis else [])
    for section, name, keys in needed:
        if folder is None:
            raise RunError(
                f"{section} names Secret {name}: give a folder that contains {name}/{keys[0]} with --secrets"
            )
        data = {}
        for key in keys:
            path = folder / name / key
            try:
                data[key] = base64.b64encode(path.read_bytes()).decode()
            except OSError as error:
                raise RunError(
                    f"{path}: {error.strerror}; it must contain {key} of Secret {name} ({section})"
                ) from None
        data.update(secrets.get(name, {}).get("data", {}))
        metadata = {"name": name, "namespace": ""}
        secrets[name] = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    return list(secrets.values())
