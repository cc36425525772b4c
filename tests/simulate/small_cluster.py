"""A cluster and models whose numbers a person can work with."""

from balancer.cost import LengthPolynomial, SaturatingThroughput
from balancer.simulate import Cluster, PhaseModel

CLUSTER = Cluster(
    gpus_per_node=2,
    peak_flops=1000.0,
    memory_bytes=1e9,
    intra_node_bytes_per_s=100.0,
    inter_node_bytes_per_s=10.0,
    intra_node_latency_s=0.5,
    inter_node_latency_s=2.0,
)


def model(constant=0, a=6, b=0, rate=500.0, **fields):
    flops = LengthPolynomial(constant, a, b)
    return PhaseModel(flops, flops, SaturatingThroughput(rate), **fields)
