"""What a plan gains on a cluster: step time split into compute, waiting and exchange; MFU, memory, samples per second.

plan -> :func:`~balancer.simulate.step.step_time` -> :class:`~balancer.simulate.run.Simulation` of many steps.
"""

from balancer.simulate.cluster import CLUSTERS, Cluster, read_cluster
from balancer.simulate.phase_model import PhaseModel
from balancer.simulate.run import Simulation, simulate_log
from balancer.simulate.step import WAITS, ExchangeTime, PhaseTime, StepTime, step_time

__all__ = [
    "CLUSTERS",
    "WAITS",
    "Cluster",
    "ExchangeTime",
    "PhaseModel",
    "PhaseTime",
    "Simulation",
    "StepTime",
    "read_cluster",
    "simulate_log",
    "step_time",
]
