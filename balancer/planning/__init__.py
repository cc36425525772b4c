"""From a problem to a plan. Read :mod:`balancer.planning.planner` first."""
