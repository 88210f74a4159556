"""A site for scenarios: real Kafka, real control plane, the operator, groups under a steady load."""

from tests.support.site.cluster_site import ClusterSite
from tests.support.site.group import Group
from tests.support.site.load import Load, Produced
from tests.support.site.operator import OperatorProcess
from tests.support.site.pauses import Pauses, around, usual_pauses
from tests.support.site.recorder import Recorder, Sample, Sampler, now_ms
from tests.support.site.sink import Verdict

__all__ = [
    "ClusterSite",
    "Group",
    "Load",
    "OperatorProcess",
    "Pauses",
    "Produced",
    "Recorder",
    "Sample",
    "Sampler",
    "Verdict",
    "around",
    "now_ms",
    "usual_pauses",
]
