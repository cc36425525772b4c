"""A log under several strategies on a cluster, step after step; only sums are kept, so memory does not grow."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from balancer.errors import InputError
from balancer.io.logs import LengthLog, choose_length, read_columns
from balancer.offline.settings import LogSettings
from balancer.offline.steps import compare_log
from balancer.plan.step_plan import StepPlan
from balancer.simulate.cluster import Cluster
from balancer.simulate.phase_model import PhaseModel
from balancer.simulate.step import StepTime, step_time
from balancer.strategies import strategies_for
from solvers.arguments import as_count


@dataclass(slots=True)
class PhaseTotals:
    """Sums over steps of one phase."""

    compute_s: float = 0.0
    waiting_s: float = 0.0
    useful_flops: float = 0.0
    executed_flops: float = 0.0
    peak_tokens: int = 0


@dataclass(slots=True)
class StrategyTotals:
    """Sums over the steps of one strategy, and how far steps are apart; constant memory."""

    steps: int = 0
    samples: int = 0
    # Of all steps; what computing, waiting and exchanges take adds up to `seconds`
    seconds: float = 0.0
    compute_s: float = 0.0
    waiting_s: float = 0.0
    exchange_s: float = 0.0
    fastest_s: float = math.inf
    slowest_s: float = 0.0
    useful_flops: float = 0.0
    peak_flops: float = 0.0  # of all GPUs together
    activation_bytes: float = 0.0  # the most of any GPU and step
    # Micro-batches of every rank, in the steps that have fewest and most; 1 without them
    fewest_slots: int = 0
    most_slots: int = 0
    phases: dict[str, PhaseTotals] = field(default_factory=dict)
    # [seconds, inter-node bytes, intra-node bytes]: nothing hidden
    streams: dict[str, list[float]] = field(default_factory=dict)
    _mean: float = 0.0
    _squares: float = 0.0  # sum of squared distances from the mean

    def add(self, step: StepTime) -> None:
        """Take in the next step."""
        seconds = step.seconds
        self.steps += 1
        self.samples += step.samples
        self.seconds += seconds
        self.compute_s += step.compute_s
        self.waiting_s += step.waiting_s
        self.exchange_s += step.exchange_s
        self.fastest_s, self.slowest_s = min(self.fastest_s, seconds), max(self.slowest_s, seconds)
        before = seconds - self._mean  # Welford (1962): no large sums are subtracted
        self._mean += before / self.steps
        self._squares += before * (seconds - self._mean)
        self.useful_flops += step.useful_flops
        self.peak_flops = step.peak_flops
        self.activation_bytes = max(self.activation_bytes, step.activation_bytes)
        self.fewest_slots = min(self.fewest_slots or step.num_slots, step.num_slots)
        self.most_slots = max(self.most_slots, step.num_slots)
        for name, phase in step.phases.items():
            totals = self.phases.setdefault(name, PhaseTotals())
            totals.compute_s += phase.compute_s
            totals.waiting_s += phase.waiting_s
            totals.useful_flops += phase.useful_flops
            totals.executed_flops += phase.executed_flops
            totals.peak_tokens = max(totals.peak_tokens, phase.peak_tokens)
        for name, exchange in step.exchanges.items():
            stream = self.streams.setdefault(name, [0.0, 0.0, 0.0])
            stream[0] += exchange.seconds
            stream[1] += exchange.inter_node_bytes
            stream[2] += exchange.intra_node_bytes

    @property
    def deviation_s(self) -> float:
        """Standard deviation of the step time over steps; 0 for one step."""
        return math.sqrt(self._squares / (self.steps - 1)) if self.steps > 1 else 0.0

    @property
    def mfu(self) -> float:
        """Useful FLOPs of all steps over what all GPUs could do in their time."""
        return self.useful_flops / (self.peak_flops * self.seconds) if self.seconds else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples a second, of all ranks together."""
        return self.samples / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return all numbers by name; seconds and bytes are a step's mean."""
        steps = max(1, self.steps)
        return {
            "step_s": {
                "mean": self.seconds / steps,
                "deviation": self.deviation_s,
                "fastest": self.fastest_s if self.steps else 0.0,
                "slowest": self.slowest_s,
            },
            "compute_s": self.compute_s / steps,
            "waiting_s": self.waiting_s / steps,
            "exchange_s": self.exchange_s / steps,
            "mfu": self.mfu,
            "samples_per_s": self.samples_per_s,
            "activation_bytes": self.activation_bytes,
            "micro_batches": {"fewest": self.fewest_slots, "most": self.most_slots},
            "phases": {
                name: {
                    "compute_s": phase.compute_s / steps,
                    "waiting_s": phase.waiting_s / steps,
                    "useful_flops": phase.useful_flops / steps,
                    "executed_flops": phase.executed_flops / steps,
                    "peak_tokens": phase.peak_tokens,
                }
                for name, phase in self.phases.items()
            },
            "streams": {
                name: {
                    "exchange_s": seconds / steps,
                    "inter_node_bytes": inter_node / steps,
                    "intra_node_bytes": intra_node / steps,
                }
                for name, (seconds, inter_node, intra_node) in self.streams.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation of a log found.

    Attributes
    ----------
    strategies : dict of str to StrategyTotals
    steps : int
        Simulated by each strategy.
    rows : int
        Of the log.
    passes : float
        How often the log was read: above 1 the same samples come again, in other batches unless the rows of the log are
        a multiple of a step's.
    """

    strategies: Mapping[str, StrategyTotals]
    steps: int
    rows: int
    passes: float


def simulate_log(
    log: LengthLog,
    settings: LogSettings,
    models: Mapping[str, PhaseModel],
    cluster: Cluster,
    *,
    strategies: Sequence[str] | None = None,
    num_steps: int | None = None,
    overlap: float = 0.0,
    waits: str = "phase",
    tick: Callable[[int], None] = lambda _: None,
    watch: Callable[[str, StepPlan, StepTime], None] | None = None,
) -> Simulation:
    """Simulate a log under several strategies; memory does not grow with the steps.

    Parameters
    ----------
    log : LengthLog
    settings : LogSettings
        How the log becomes global batches and how they are planned. All steps are full.
    models : mapping of str to PhaseModel
        Of every phase.
    cluster : Cluster
    strategies : sequence of str
        Names in :data:`balancer.strategies.STRATEGIES`; by default all that the settings allow.
    num_steps : int, optional
        If it exceeds the log, the log is read again from its start. By default all steps of the log, at least one.
    overlap, waits
        As :func:`balancer.simulate.step_time` takes them.
    tick : callable
        Called with the samples of every step that is done.
    watch : callable, optional
        Called for every step, with its strategy, its plan and its time.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError, ValueError
        A log, a row, a strategy or an argument that cannot be used.
    """
    missing = [phase.name for phase in settings.setup.phases if phase.name not in models]
    if missing:
        raise ValueError(f"phase {missing[0]!r} has no model; there are models for {', '.join(models) or 'none'}")
    rows = _count_rows(log, settings)
    endless, steps = True, None if num_steps is None else as_count("num_steps", num_steps)
    if settings.across is not None:  # as many steps as an epoch has
        endless, settings = steps is not None, replace(settings, drop_last=True)
    elif steps is None:
        steps = max(1, rows // settings.samples_per_step)
    strategies = strategies or strategies_for(settings.setup)
    totals = {strategy: StrategyTotals() for strategy in strategies}
    for strategy, plan in compare_log(log, settings, strategies, steps, endless=endless):
        step = step_time(plan, models, cluster, overlap=overlap, waits=waits)
        totals[strategy].add(step)
        if watch is not None:
            watch(strategy, plan, step)
        tick(plan.num_samples)
    first = totals[strategies[0]]
    if not first.steps:
        raise InputError(f"{log.path}: fills no step, and a short one is not simulated")
    return Simulation(totals, first.steps, rows, first.samples / rows)


def _count_rows(log: LengthLog, settings: LogSettings) -> int:
    """Read one column to its end; a damaged log is found out before the work."""
    phase = settings.setup.phases[-1]
    return sum(len(block) for block in read_columns(log, {"": choose_length(log, phase.length)}))
