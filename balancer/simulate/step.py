"""The time of one step from its plan: compute, waiting, exchange; and what it holds in memory.

``step = compute + waiting + exposed exchange``: compute is the mean over ranks, waiting what the slowest rank adds to
it, and an exchange takes as long as the rank that is longest at it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan import SINGLE_PHASE, DispatchPlan
from balancer.simulate.cluster import Cluster
from balancer.simulate.phase_model import PhaseModel
from balancer.step_plan import StepPlan
from balancer.stream import Stream
from balancer.topology import Topology

__all__ = ["WAITS", "ExchangeTime", "PhaseTime", "StepTime", "exchange_seconds", "step_time"]

WAITS = ("phase", "step")
"""Where ranks wait for each other: after every phase, or once a step, which no exchange between phases allows for."""

_ONE_WAY = (":in", ":own")  # raw inputs, which have no gradients


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """What a phase takes, forward and backward.

    Attributes
    ----------
    compute_s, waiting_s : float
        Mean over ranks, and how much longer the slowest takes.
    slowest_rank : int
    useful_flops, executed_flops : float
        Of all ranks; executed with padding and recomputation.
    peak_tokens : int
        Elements on the rank that holds most, padding included.
    """

    compute_s: float
    waiting_s: float
    slowest_rank: int
    useful_flops: float
    executed_flops: float
    peak_tokens: int


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """What a stream takes, there and, with gradients, back.

    Attributes
    ----------
    seconds : float
        Of the rank that is longest at it.
    inter_node_bytes, intra_node_bytes : int
        That all ranks send, both ways together.
    """

    seconds: float
    inter_node_bytes: int
    intra_node_bytes: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step takes.

    Attributes
    ----------
    phases : dict of str to PhaseTime
    exchanges : dict of str to ExchangeTime
        By stream.
    compute_s : float
        Mean over ranks of all phases' computing.
    waiting_s : float
        What ranks wait for each other, on average.
    exchange_s : float
        What of all exchanges is not hidden.
    samples : int
    peak_flops : float
        Of all GPUs together.
    activation_bytes : float
        Estimate for a GPU of the rank that holds most: the activations of all phases.
    """

    phases: Mapping[str, PhaseTime]
    exchanges: Mapping[str, ExchangeTime]
    compute_s: float
    waiting_s: float
    exchange_s: float
    samples: int
    peak_flops: float
    activation_bytes: float

    @property
    def seconds(self) -> float:
        """The step: compute, waiting, and exchange that is not hidden."""
        return self.compute_s + self.waiting_s + self.exchange_s

    @property
    def useful_flops(self) -> float:
        """Of all phases and ranks, without padding and recomputation."""
        return sum(phase.useful_flops for phase in self.phases.values())

    @property
    def mfu(self) -> float:
        """Useful FLOPs over what all GPUs could do in that time; 0 for a step without work."""
        return self.useful_flops / (self.peak_flops * self.seconds) if self.seconds else 0.0


def step_time(
    plan: StepPlan | DispatchPlan,
    models: Mapping[str, PhaseModel] | PhaseModel,
    cluster: Cluster,
    *,
    overlap: float = 0.0,
    waits: str = "phase",
    bytes_per_element: int = 4,
) -> StepTime:
    """Predict the time of a step.

    Parameters
    ----------
    plan : StepPlan or DispatchPlan
        Of several phases, or of one; without micro-batches.
    models : mapping of str to PhaseModel, or PhaseModel
        Of every phase.
    cluster : Cluster
        Its ``gpus_per_rank`` are a rank's; which ranks share a node, the plan's topology says.
    overlap : float
        Fraction, 0 to 1, of every exchange that computing hides. An assumption: 0 hides nothing.
    waits : str
        ``"phase"``: ranks wait for each other after every phase. ``"step"``: only once all phases are computed.
    bytes_per_element : int
        What a dispatch plan moves of each element; step plans know.

    Returns
    -------
    StepTime
        O(items log items).

    Raises
    ------
    ValueError
        A phase without a model, a plan with micro-batches or a convolution's cost, or an argument out of range.

    Examples
    --------
    >>> import balancer
    >>> from balancer.simulate import CLUSTERS, PhaseModel
    >>> h100 = CLUSTERS["h100"]
    >>> plan = balancer.balance([3000, 1000, 2000, 2000], num_ranks=2, home_rank=[0, 0, 1, 1])
    >>> step = step_time(plan, PhaseModel.on("qwen2-7b", h100.peak_flops, efficiency=0.5), h100)
    >>> round(step.seconds, 3), round(step.waiting_s, 5), round(step.mfu, 3)
    (0.355, 0.00122, 0.498)
    """
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap must be a fraction from 0 to 1, got {overlap!r}")
    if waits not in WAITS:
        raise ValueError(f"unknown waits {waits!r}; known are {', '.join(WAITS)}")
    plans, streams = _parts(plan, bytes_per_element)
    if isinstance(models, PhaseModel):
        models = dict.fromkeys(plans, models)
    missing = [name for name in plans if name not in models]
    if missing:
        raise ValueError(f"phase {missing[0]!r} has no model; there are models for {', '.join(models) or 'none'}")
    num_ranks = plan.topology.num_ranks
    phases: dict[str, PhaseTime] = {}
    busy, kept, working = np.zeros((3, num_ranks))
    for name, part in plans.items():
        seconds, tokens, phases[name] = _phase_time(name, part, models[name], cluster)
        busy += seconds
        kept += models[name].kept_bytes * tokens
        working = np.maximum(working, models[name].working_bytes * tokens)
    exchanges = {name: _exchange_time(stream, plan.topology, cluster) for name, stream in streams.items()}
    waiting = sum(phase.waiting_s for phase in phases.values())
    compute = float(busy.mean())
    return StepTime(
        phases=phases,
        exchanges=exchanges,
        compute_s=compute,
        waiting_s=waiting if waits == "phase" else float(busy.max()) - compute,
        exchange_s=(1 - overlap) * sum(exchange.seconds for exchange in exchanges.values()),
        samples=plan.num_samples,
        peak_flops=num_ranks * cluster.rank_flops,
        activation_bytes=float((kept + working).max()) / cluster.gpus_per_rank,
    )


def _parts(plan: StepPlan | DispatchPlan, bytes_per_element: int) -> tuple[dict[str, DispatchPlan], dict[str, Stream]]:
    """Return the dispatch plan of every phase, and what travels."""
    if plan.num_slots > 1:
        raise ValueError(f"plans with micro-batches cannot be simulated, got one with {plan.num_slots}")
    if isinstance(plan, StepPlan):
        return {name: phase.plan for name, phase in plan.phases.items()}, dict(plan.streams)
    name = f"{SINGLE_PHASE}:in"
    stream = Stream(name, plan.home, plan.target, plan.lengths, plan.lengths * bytes_per_element)
    return {SINGLE_PHASE: plan}, {name: stream}


def _phase_time(
    name: str, plan: DispatchPlan, model: PhaseModel, cluster: Cluster
) -> tuple[NDArray[np.float64], NDArray[np.int64], PhaseTime]:
    """Seconds and elements of each rank, and what they amount to."""
    if plan.cost.c:
        raise ValueError(f"phase {name!r}: cost '{plan.cost}' cannot be simulated; use an additive or a padded one")
    num_ranks, ranks, lengths = plan.topology.num_ranks, plan.target.rank_of_sample, plan.lengths
    tokens = plan.cost.tokens(lengths, ranks, num_ranks)
    if plan.cost.padded:
        rows = np.bincount(ranks, minlength=num_ranks)
        executed = rows * model.executed_flops(tokens // np.maximum(rows, 1))  # every row as long as the longest
    else:
        executed = np.bincount(ranks, weights=model.executed_flops(lengths), minlength=num_ranks).astype(np.float64)
    seconds = model.throughput.seconds(executed / cluster.gpus_per_rank, tokens)
    slowest = int(np.argmax(seconds))
    mean = float(seconds.mean())
    useful = float(model.useful_flops(lengths).sum())
    # Rounding must not let the slowest rank be faster than the mean.
    waiting = max(0.0, float(seconds[slowest]) - mean)
    return seconds, tokens, PhaseTime(mean, waiting, slowest, useful, float(executed.sum()), int(tokens.max()))


def _exchange_time(stream: Stream, topology: Topology, cluster: Cluster) -> ExchangeTime:
    """Take outputs there and gradients back; raw inputs only there."""
    ways = 1 if stream.name.endswith(_ONE_WAY) else 2
    seconds = exchange_seconds(stream, topology, cluster)
    traffic = stream.traffic(topology)
    return ExchangeTime(ways * float(seconds.max()), ways * traffic.inter_node, ways * traffic.intra_node)


def exchange_seconds(stream: Stream, topology: Topology, cluster: Cluster) -> NDArray[np.float64]:
    """Seconds that each rank is at an exchange, one way, by the alpha-beta model (Hockney 1994).

    A rank's time within its node, and across nodes, is ``messages * latency + bytes / bandwidth``, of what it sends or
    of what it receives, whichever takes longer; the two add up, as if one followed the other. A message is all that
    one rank has for another. The way back takes as long.

    Returns
    -------
    float64[num_ranks]
        O(k log k) for k items that move.
    """
    source, target = stream.source.rank_of_sample, stream.target.rank_of_sample
    moves = (source != target) & (stream.bytes_of_item > 0)
    num_ranks, node = topology.num_ranks, topology.node_of_rank
    pairs, pair_of_item = np.unique(source[moves] * np.int64(num_ranks) + target[moves], return_inverse=True)
    volumes = np.bincount(pair_of_item, weights=stream.bytes_of_item[moves], minlength=len(pairs))
    sender, receiver = pairs // num_ranks, pairs % num_ranks
    crosses = node[sender] != node[receiver]
    seconds = np.zeros(num_ranks)
    levels = (
        (~crosses, cluster.intra_node_latency_s, cluster.intra_node_bytes_per_s),
        (crosses, cluster.inter_node_latency_s, cluster.inter_node_bytes_per_s),
    )
    for among, latency, bandwidth in levels:
        each = latency + volumes[among] / (bandwidth * cluster.gpus_per_rank)
        sends = np.bincount(sender[among], weights=each, minlength=num_ranks)
        receives = np.bincount(receiver[among], weights=each, minlength=num_ranks)
        seconds += np.maximum(sends, receives)
    return seconds
