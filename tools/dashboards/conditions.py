"""A group's conditions as numbers: how much each asks of a person."""

from __future__ import annotations

from slackwater_operator.policies.conditions import WELL
from tools.dashboards.panels import Names

OK, NOTICE, PENDING, UNKNOWN, PROBLEM = 1, 2, 3, 4, 5
LEVELS: Names = (
    (OK, "ok", "green"),
    (NOTICE, "notice", "blue"),
    (PENDING, "pending", "orange"),
    (UNKNOWN, "unknown", "purple"),
    (PROBLEM, "problem", "red"),
)
"""Level -> text and colour. A greater level is worse."""

_GOOD = tuple(kind for kind, status in WELL.items() if status == "True")
"""Conditions that are True while all is well; the others are False then."""
_PENDING = ("Ready", "Stable", "RolledOut")
_NOTICES = ("SkewLimited", "Suspended", "Reconciling")
_PROBLEMS = ("Stalled", "Stuck", "Degraded")


def level(labels: str, where: str) -> str:
    """PromQL of the level of each condition.

    Args:
        labels: to group by; the worst level counts. With `type`: of each condition.
        where: matchers of the groups.
    """
    parts = (
        (_PROBLEMS, "True", PROBLEM),
        (("LagKnown",), "False", PROBLEM),
        ((*_GOOD, *_PROBLEMS, *_NOTICES), "Unknown", UNKNOWN),
        (_PENDING, "False", PENDING),
        (("Scaled", "Rewound"), "False", NOTICE),  # a step may be delayed for hours, with good reason
        (_NOTICES, "True", NOTICE),
        (_GOOD, "True", OK),
        ((*_PROBLEMS, *_NOTICES), "False", OK),
    )
    # The parts exclude each other: a condition has one status.
    joined = " or ".join(
        f'slackwater_condition{{{where}, type=~"{"|".join(types)}", status="{status}"}} * {number}'
        for types, status, number in parts
    )
    return f"max by ({labels}) ({joined})"
