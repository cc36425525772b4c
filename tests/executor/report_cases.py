"""What ranks do in tests of the dispatcher's report: steps of lengths that all know, and their plans as they came."""

import numpy as np
import torch

from balancer import Phase
from balancer.executor import Dispatcher, PrefetchDispatcher


def lengths_of(step, rank):
    return np.random.default_rng([7, step, rank]).lognormal(4, 1, 5).astype(int) + 1


def batch_of(step, rank):
    return {"ids": [torch.arange(n) for n in lengths_of(step, rank)]}


def numbers_of(report):
    return {name: getattr(report, name) for name in (
        "steps", "imbalance_before", "imbalance", "gain", "moved_share", "crossing_share", "worst_step",
        "worst_imbalance", "plan_s", "exchange_s")}  # fmt: skip


def dispatches(rank, steps, options):
    """Return what is reported, and of each step the rank that each sample came to, as it was found by its fields."""
    dispatcher = Dispatcher(length="ids", ranks_per_node=2, **options)
    assert dispatcher.report().steps == 0
    held = []
    for step in range(steps):
        out = dispatcher.dispatch(batch_of(step, rank))
        held.append(out.samples.tolist())
    return numbers_of(dispatcher.report()), held


def takes_some(rank, steps, taken):
    """Make steps ahead, of which not all are taken."""
    dispatcher = Dispatcher(length="ids", ranks_per_node=2)
    loop = iter(PrefetchDispatcher([batch_of(step, rank) for step in range(steps)], dispatcher))
    held = []
    for _ in range(taken):
        next(loop)
        held.append(dispatcher.current.samples.tolist())
    loop.close()
    return numbers_of(dispatcher.report()), held


def of_phases(rank):
    """Report of each of two phases, and the plan of the only step."""
    phases = [Phase("vision", "patches", outputs="images"), Phase("llm", "tokens", own="text")]
    dispatcher = Dispatcher(phases=phases)
    patches, text = 10 * lengths_of(1, rank), lengths_of(2, rank)
    lengths = {"patches": patches, "images": patches // 10, "text": text, "tokens": text + patches // 10}
    step = dispatcher.dispatch({"id": torch.arange(5)}, lengths).step
    found = {name: numbers_of(dispatcher.report(name)) for name in ("vision", "llm")}
    assert numbers_of(dispatcher.report()) == found["llm"]
    try:
        dispatcher.report("audio")
    except KeyError as error:
        found["error"] = str(error)
    ratios = {name: (step[name].home_imbalance_ratio, step[name].imbalance_ratio) for name in ("vision", "llm")}
    return found, ratios
