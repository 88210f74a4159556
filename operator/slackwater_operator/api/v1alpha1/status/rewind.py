"""status.rewind: what was asked for, how far it is, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.api.v1alpha1.status.declaration import TEXT, WHOLE, stored, text

PHASES = ("Checking", "Stopping", "Rewinding", "Starting", "Done")
CHECKING, STOPPING, REWINDING, STARTING, DONE = PHASES

RESULTS = ("Rewound", "Refused", "Failed", "Withdrawn")
REWOUND, REFUSED, FAILED, WITHDRAWN = RESULTS


@dataclass(frozen=True)
class RewindStatus:
    """The last rewind. It is noted before its first step, so that no request is carried out twice."""

    request: str = stored(TEXT, "The annotation's value. The same value is not carried out again.")
    phase: str = stored(text(*PHASES), "Checking, Stopping, Rewinding, Starting or Done.")
    accepted_ms: int = stored(
        WHOLE,
        "When the operator noticed it (milliseconds since 1970). The names of its Jobs depend on it.",
        default=0,
    )
    since_ms: int = stored(WHOLE, "When this phase began (milliseconds since 1970).", default=0)
    result: str = stored(
        text(*RESULTS),
        "Rewound, Refused, Failed or Withdrawn. Absent while it is not known.",
        default="",
        strict=True,
    )
    message: str = stored(TEXT, "What was done, or why not.", default="")

    @property
    def stops(self) -> bool:
        """Whether no worker may run."""
        return self.phase in (STOPPING, REWINDING)

    @property
    def has_stopped(self) -> bool:
        """Whether the workers are, or were, stopped for it and are not all asked for again."""
        return self.phase in (STOPPING, REWINDING, STARTING)
