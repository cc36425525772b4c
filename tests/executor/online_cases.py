"""What ranks do in tests of corrected costs: a cluster that the cost given gets wrong, and trainers that say so."""

import warnings

import numpy as np

from balancer.cost import OnlineCost
from balancer.executor import Dispatcher, PrefetchDispatcher

STEPS = 30
TRUE = (1e-3, 1e-4, 4e-7)  # seconds: of the cluster
GIVEN = (1e-3, 1e-4, 4e-8)  # what quadratic work takes is ten times as much


def online(given=GIVEN):
    return OnlineCost(*given, window=6, forgetting=0.8)


def seconds_of(lengths, true=TRUE):
    lengths = lengths.astype(float)
    return true[0] + true[1] * lengths.sum() + true[2] * (lengths * lengths).sum()


def batches(rank, steps=STEPS):
    rng = np.random.default_rng(rank)
    return [(rng.exponential(800, 16) + 10).astype(np.int64) for _ in range(steps)]


def said(dispatcher):
    state = dispatcher.cost_correction
    return {name: (one.active, one.coefficients) for name, one in state.items()}


def follows(rank, arguments, overlap, tells):
    """Train; return of each step the digest, the largest time over the mean, and what is said of the correction."""
    dispatcher = Dispatcher(length="tokens", cost=online(), **arguments)
    found = []

    def train(step):
        plan = step.plan
        of_rank = [seconds_of(plan.lengths[plan.rank_of_sample == r]) for r in range(plan.num_ranks)]
        dispatcher.observe(of_rank[rank] if rank in tells else None)
        found.append((plan.digest(), max(of_rank) / np.mean(of_rank), said(dispatcher)))

    loader = [{"tokens": lengths.tolist()} for lengths in batches(rank)]
    if overlap is None:
        for batch in loader:
            train(dispatcher.dispatch(*handed_in(batch)))
    else:
        steps = PrefetchDispatcher(
            [handed_in(batch)[0] for batch in loader],
            dispatcher,
            columns=lambda batch: {"tokens": [int(name) for name in batch["id"]]},
            overlap=overlap,
            depth=2,
        )
        for _ in steps:
            train(dispatcher.current)
    return found


def handed_in(batch):
    """A field that says a sample's length, and the column of lengths."""
    return {"id": [str(length) for length in batch["tokens"]]}, {"tokens": batch["tokens"]}


def of_phases(rank):
    """Two phases in different units of what they are given as; one of them is measured by one rank alone."""
    costs = {"vision": online((0.0, 1e-4, 0.0)), "llm": online()}
    phases = {"vision": "patches", "llm": "tokens"}
    dispatcher = Dispatcher(phases=phases, cost=costs)
    for lengths in batches(rank):
        columns = {"patches": lengths // 2, "tokens": lengths}
        step = dispatcher.dispatch({"id": list(range(len(lengths)))}, columns)
        vision = 3 * 1e-4 * float(step.lengths("vision").sum()) if rank else None
        dispatcher.observe({"vision": vision, "llm": seconds_of(step.lengths("llm"))})
    return said(dispatcher), [str(phase.cost) for phase in dispatcher.setup.phases]


def given_up(rank):
    """The cluster is other than given at first, and then as given: what is warned of, by this rank."""
    dispatcher = Dispatcher(length="tokens", cost=OnlineCost(*TRUE, window=4, forgetting=0.5))
    active = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, lengths in enumerate(batches(rank, 40)):
            step = dispatcher.dispatch(*handed_in({"tokens": lengths.tolist()}))
            noise = np.random.default_rng([rank, number]).uniform(0.97, 1.03)
            dispatcher.observe(seconds_of(step.lengths()) * noise * (1.6 if number < 12 else 1.0))
            active.append(dispatcher.cost_correction["all"].active)
    return active, [str(each.message) for each in caught if each.category is RuntimeWarning]


def noise_alone(rank):
    dispatcher = Dispatcher(length="tokens", cost=OnlineCost(*TRUE, window=6))
    plans = []
    for number, lengths in enumerate(batches(rank)):
        step = dispatcher.dispatch(*handed_in({"tokens": lengths.tolist()}))
        plans.append(step.plan.digest())
        dispatcher.observe(seconds_of(step.lengths()) * np.random.default_rng([rank, number]).uniform(0.9, 1.1))
    return said(dispatcher), plans


def misused(rank):
    dispatcher = Dispatcher(length="tokens", cost=online())
    told = [error_of(made, 1.0) for made in (dispatcher, Dispatcher(length="tokens"))]
    dispatcher.dispatch(*handed_in({"tokens": [3, 5]}))
    return told + [error_of(dispatcher, seconds) for seconds in (0.0, float("nan"), {"llm": 1.0})]


def error_of(dispatcher, seconds):
    try:
        dispatcher.observe(seconds)
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return None
