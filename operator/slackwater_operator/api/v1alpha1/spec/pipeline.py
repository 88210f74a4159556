"""spec.pipeline of a ConsumerGroup: how records are processed."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater import fields
from slackwater.fields import spec
from slackwater.runtime.config.pipeline_config import PipelineConfig
from slackwater_operator.api.v1alpha1.spec.value import Value

_IMAGE = r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*"


@dataclass(frozen=True, kw_only=True)
class Pipeline(PipelineConfig):
    """How records are processed."""

    image: str = spec(
        "image",
        fields.text(pattern=_IMAGE, example="registry.example/flights:1.4", max_length=512),
        "The workers' image: Slackwater's worker image with your handler added. Defaults to the operator's "
        "--worker-image. A local run ignores it.",
        absent="",
    )
    value: Value | None = spec(
        "value",
        fields.nested(Value),
        "How the values of records are decoded. Without it, the handler gets their bytes.",
    )
