"""How the controller behaves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the controller behaves; times in ms.

    Attributes:
        worker_image: the image of groups that name none.
        pod_monitors: whether groups get a PodMonitor, where the API server knows that kind.
        round_ms: how often a cluster is asked about its groups; about those that do not scale by lag half
            as often.
        busy_round_ms: how often it is asked about those in which something is under way.
        receive_message_max_bytes: the largest answer of a broker that is read; None: the client's default.
        worker_poll_ms: how often the workers of a settled group are asked for their status.
        stale_ms: how old an observation may be to go by.
        figures_ms: how often figures that change all the time may be written into a status.
        reconciliations_at_once: how many groups are reconciled at the same time.
        window_ms: over which time rates are taken.
        down_window_ms: for how long a need must have been lower before a step down.
        up_window_ms: for how long a need must have been higher before a step up.
        prometheus_url: of the Prometheus that the queries of a rollout's analysis are sent to; "": none.
        settle_ms: how long after a step at least no other is made.
    """

    worker_image: str = ""
    pod_monitors: bool = True
    round_ms: int = 5_000
    busy_round_ms: int = 500
    receive_message_max_bytes: int | None = None
    worker_poll_ms: int = 60_000
    stale_ms: int = 15_000
    figures_ms: int = 10_000
    reconciliations_at_once: int = 20
    window_ms: int = 20_000
    down_window_ms: int = 120_000
    up_window_ms: int = 15_000
    settle_ms: int = 10_000
    prometheus_url: str = ""
