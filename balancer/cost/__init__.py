"""What a mini-batch costs: integer work units from lengths."""

from balancer.cost.model import COSTS, CostModel, parse_cost

__all__ = ["COSTS", "CostModel", "parse_cost"]
