"""Cost models: integer costs of samples and mini-batches, from coefficients, a model's shape, or measurements."""

from balancer.cost.hf_config import read_config
from balancer.cost.integer import IntegerCost, integer_seconds
from balancer.cost.model import CostModel
from balancer.cost.named import MODELS, flops, module
from balancer.cost.online import OnlineCost
from balancer.cost.parse import COSTS, parse_cost
from balancer.cost.polynomial import LengthPolynomial
from balancer.cost.sequence_parallel import EXCHANGES, DegreeTimes, Sharing, check_heads
from balancer.cost.shapes import AudioEncoder, Decoder, Module, VisionEncoder
from balancer.cost.throughput import SaturatingThroughput, ThroughputCurve

__all__ = [
    "COSTS",
    "EXCHANGES",
    "MODELS",
    "AudioEncoder",
    "CostModel",
    "Decoder",
    "DegreeTimes",
    "IntegerCost",
    "LengthPolynomial",
    "Module",
    "OnlineCost",
    "SaturatingThroughput",
    "Sharing",
    "ThroughputCurve",
    "VisionEncoder",
    "check_heads",
    "flops",
    "integer_seconds",
    "module",
    "parse_cost",
    "read_config",
]
