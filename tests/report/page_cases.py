"""Pages to test: of a small run of several phases, with whatever names."""

import numpy as np

import balancer
from balancer.offline.step_table import StepRows
from balancer.plan.step_plan import as_step_plan

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quotes\" & 'more'",
    "</style></svg><b>x",
    "\u05e9\u05dc\u05d5\u05dd \u202edesrever",
    "\U0001f680 $x_2$ \\frac",
    "very long " * 400,
)
"""Names that end a run, a page or a chart where they are taken for more than text."""


def shown(name):
    """How a name begins on a page, where what nobody sees, or turns a line around, stands as it would in Python."""
    return name.replace("\u202e", "\\u202e")[:50]


def run_of(plans):
    """Return what a run of plans amounts to, for the page."""
    from balancer.report.plan_page import Drawn

    rows = StepRows()
    for number, plan in enumerate(map(as_step_plan, plans)):
        rows.add(number, plan, rows.samples)
    drawn = Drawn(rows.table())
    for plan in map(as_step_plan, plans):
        drawn.add(plan)
    return rows.table(), drawn


def plans_of(names=("vision", "llm"), steps=3, ranks=8, samples=6, seed=0):
    """Plan a few steps whose phases have these names."""
    rng = np.random.default_rng(seed)
    topology = balancer.Topology.uniform(ranks, ranks // 4)
    phases = [balancer.Phase(name, f"c{i}") for i, name in enumerate(names)]
    plans = []
    for _ in range(steps):
        batch = {f"c{i}": rng.lognormal(4, 1.5, ranks * samples).astype(np.int64) for i in range(len(names))}
        plans.append(balancer.orchestrate(batch, phases, topology))
    return plans
