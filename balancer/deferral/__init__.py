"""Which samples form a step: each may run a few steps early or late, so that no long sample sets the pace alone."""

from balancer.deferral.buffer import DeferBuffer
from balancer.deferral.defer import Deferral, defer
from balancer.deferral.effects import TrainingEffects

__all__ = ["DeferBuffer", "Deferral", "TrainingEffects", "defer"]
