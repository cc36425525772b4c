"""The time of one step from its plan: compute, waiting, exchange; and what it holds in memory.

``step = compute + waiting + exposed exchange``: compute is the mean over ranks, waiting what the slowest rank adds to
it, and an exchange takes as long as its slowest rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.pipelines.plan import PipelinePlan
from balancer.layouts.mesh import Mesh
from balancer.layouts.step_plan import LaidOutStepPlan
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan, as_step_plan
from balancer.plan.stream import Stream
from balancer.problem.cuts import WHOLE_SHARES, Cut
from balancer.problem.topology import Topology
from balancer.simulate.cluster import Cluster
from balancer.simulate.compute import Computed, compute_phase, on_gpus, span
from balancer.simulate.phase_model import PhaseModel
from balancer.simulate.pipeline import Pipelined, run_pipelines
from solvers.errors import ArgumentError, UsageError

WAITS = ("phase", "step")
"""When ranks wait for each other: after every phase, or once per step (as if phases exchanged nothing)."""

# Beyond it sums and products of seconds leave the range of numbers.
_LONGEST_S = 1e30
# Raw inputs, which have no gradients.
_ONE_WAY = (":in", ":own")


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
        Elements on the rank that holds most at a time, padding included: in a micro-batch, where there are some.
    rank_seconds : float64[num_ranks]
        What each rank computes.
    """

    compute_s: float
    waiting_s: float
    slowest_rank: int
    useful_flops: float
    executed_flops: float
    peak_tokens: int
    rank_seconds: NDArray[np.float64] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """What a stream takes, there and, with gradients, back.

    Attributes
    ----------
    seconds : float
        Of the slowest rank.
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
        Time that ranks wait for each other, on average; a pipeline's bubble too.
    exchange_s : float
        Exposed exchange: the part that computing does not hide.
    samples : int
    peak_flops : float
        Of all GPUs together.
    activation_bytes : float
        Estimate for a GPU of the rank that holds most: the activations of all phases, of the micro-batches that are
        under way at a time.
    num_slots : int
        Micro-batches of every rank; 1 without them.
    pipeline : Pipelined or None
        With pipeline stages, the slowest replica's run. What is waited for in it is told of the last phase.
    """

    phases: Mapping[str, PhaseTime]
    exchanges: Mapping[str, ExchangeTime]
    compute_s: float
    waiting_s: float
    exchange_s: float
    samples: int
    peak_flops: float
    activation_bytes: float
    num_slots: int = 1
    pipeline: Pipelined | None = field(default=None, repr=False, compare=False)

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
        Of several phases, or of one; with or without micro-batches.
    models : mapping of str to PhaseModel, or PhaseModel
        Of every phase.
    cluster : Cluster
        Which ranks share a node is taken from the plan's topology.
    overlap : float
        Fraction, 0 to 1, of every exchange that computing hides. An assumption: 0 hides nothing.
    waits : str
        ``"phase"``: ranks wait for each other after every phase. ``"step"``: only once all phases are computed.
    bytes_per_element : int
        Bytes of each element of a dispatch plan; step plans have their own.

    Returns
    -------
    StepTime
        O(items log items).

    Raises
    ------
    ValueError
        A phase without a model, a convolution's cost for a model that has none, or an argument out of range.

    Notes
    -----
    Ranks wait for each other as the cut's ``sync`` says. The encoders' ranks wait in every micro-batch,
    or with ``encoders="step"`` once, before the first. With ``waits="step"`` all phases of a micro-batch count
    together, but not a pipeline with encoders before it. With pipeline stages every replica's run is exact, and its
    phases wait for each other only in it. Exchanges count once a step, as if all micro-batches had one exchange.

    With layouts the plan's ranks are GPUs, and the ranks of a phase are its replicas. A replica's GPUs share its work
    evenly. Their exchange inside layers takes no time (:func:`balancer.configure` counts it). An exchange includes the
    gathering of windows in tensor groups. Pipelines of layouts are not simulated.

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
        raise ArgumentError("overlap", "be a fraction from 0 to 1", repr(overlap))
    if waits not in WAITS:
        raise ValueError(f"unknown waits {waits!r}; known are {', '.join(WAITS)}")
    plan = as_step_plan(plan, bytes_per_element)
    _check_layout(plan, cluster)
    plans, streams = {name: phase.plan for name, phase in plan.phases.items()}, plan.streams
    if isinstance(models, PhaseModel):
        models = dict.fromkeys(plans, models)
    missing = [name for name in plans if name not in models]
    if missing:
        raise ValueError(f"phase {missing[0]!r} has no model; there are models for {', '.join(models) or 'none'}")
    with np.errstate(over="ignore", invalid="ignore"):  # told of below
        slots = plan.num_slots
        found = {
            name: compute_phase(name, part, models[name], _gpus_of(plan, name, cluster)).in_slots(slots)
            for name, part in plans.items()
        }
        # Of the last phase, and of the encoders that are stages of it
        pipeline = run_pipelines(plan.last, found, models, cluster) if isinstance(plan.last, PipelinePlan) else None
        found |= {} if pipeline is None else pipeline.found
        phases = {name: _phase_time(part, plans[name].cut, pipeline, name) for name, part in found.items()}
        exchanges = {name: _exchange_time(plan, stream, cluster) for name, stream in streams.items()}
    if isinstance(plan, LaidOutStepPlan):
        found = {name: on_gpus(part, plan.setup.mesh_of(name), plan.num_ranks) for name, part in found.items()}
    compute = float(np.sum([part.seconds for part in found.values()], axis=0).sum(axis=1).mean())
    last = plan.last.cut
    waiting = sum(phase.waiting_s for phase in phases.values())
    step = StepTime(
        phases=phases,
        exchanges=exchanges,
        compute_s=compute,
        waiting_s=waiting if waits == "phase" or pipeline is not None else _span_of_all(found, last) - compute,
        exchange_s=(1 - overlap) * sum(exchange.seconds for exchange in exchanges.values()),
        samples=plan.num_samples,
        peak_flops=plan.num_ranks * cluster.rank_flops,
        activation_bytes=_activation_bytes(found, models, last, pipeline) / cluster.gpus_per_rank,
        num_slots=plan.num_slots,
        pipeline=pipeline,
    )
    # So written, as NaN is not less either.
    if not step.seconds <= _LONGEST_S:
        raise ValueError(
            f"a step would take {step.seconds:g} s; are peak FLOP/s, efficiency and bandwidths what they should be?"
        )
    return step


def _phase_time(found: Computed, cut: Cut, pipeline: Pipelined | None, name: str) -> PhaseTime:
    """Return what a phase takes, from what every micro-batch does; the last of a pipeline has all that it waits."""
    ranks = found.seconds.sum(axis=1)
    mean = float(ranks.mean())
    ended = span(found.seconds, cut) if pipeline is None or name not in pipeline.found else mean
    if pipeline is not None and cut.num_stages:
        ended = (
            mean + pipeline.seconds - sum(float(each.seconds.sum(axis=1).mean()) for each in pipeline.found.values())
        )
    return PhaseTime(
        compute_s=mean,
        waiting_s=max(0.0, ended - mean),
        slowest_rank=int(np.argmax(ranks)),
        useful_flops=found.useful_flops,
        executed_flops=found.executed_flops,
        peak_tokens=int(found.tokens.max()),
        rank_seconds=ranks,
    )


def _span_of_all(found: Mapping[str, Computed], cut: Cut) -> float:
    """Seconds until all ranks are done with all phases, where they do not wait after each."""
    seconds = [part.seconds for part in found.values()]
    if cut.sync == "pipeline" and cut.encoders == "step" and len(seconds) > 1:  # which are no stage of it
        return span(np.sum(seconds[:-1], axis=0), WHOLE_SHARES) + span(seconds[-1], cut)
    return span(np.sum(seconds, axis=0), cut)


def _activation_bytes(
    found: Mapping[str, Computed], models: Mapping[str, PhaseModel], cut: Cut, pipeline: Pipelined | None
) -> float:
    """Return the most that a rank holds at a time; with pipeline stages, as if each device held as much as the fullest.

    A pipeline's first stage has as many micro-batches under way as there are stages (one forward, one backward;
    Narayanan et al. 2021), if there are so many. What encoders keep that compute before the first micro-batch is there
    through all of them.
    """
    kept = {name: models[name].kept_bytes * part.tokens for name, part in found.items()}
    working = np.maximum.reduce([models[name].working_bytes * part.tokens for name, part in found.items()])
    stages = min(cut.pipeline_stages, working.shape[1])
    through = np.zeros((len(working), 1))
    if cut.encoders == "step":
        through = through + sum(kept.pop(name).sum(axis=1, keepdims=True) for name in list(kept)[:-1])
    if pipeline is not None:
        return pipeline.device_bytes + float(np.max(through))
    return float((through + stages * sum(kept.values()) + working).max())


def _check_layout(plan: StepPlan, cluster: Cluster) -> None:
    """Refuse plans with layouts whose ranks are no GPUs of the cluster, or that run in pipelines."""
    if not isinstance(plan, LaidOutStepPlan):
        return
    if cluster.gpus_per_rank > 1:
        raise ArgumentError("gpus_per_rank", "be 1 with {layouts}, whose ranks are GPUs", cluster.gpus_per_rank)
    for name, each in plan.setup.layout.modules.items():
        if each.pp > 1:
            raise UsageError(
                "a plan with {layouts} in pipelines is not simulated: phase {name!r} has {count} pipeline devices",
                "such layouts are priced without a plan, by balancer.configure or simulate --layout alone",
                name=name, count=each.pp,
            )  # fmt: skip


def _gpus_of(plan: StepPlan, phase: str, cluster: Cluster) -> int:
    """Return the GPUs of a phase's ranks."""
    if not isinstance(plan, LaidOutStepPlan):
        return cluster.gpus_per_rank
    return plan.setup.layout.modules[phase].device_gpus


def _exchange_time(plan: StepPlan, stream: Stream, cluster: Cluster) -> ExchangeTime:
    """Take outputs there and gradients back; raw inputs only there. With layouts, tensor groups gather windows.

    What is gathered on the way there is scattered and summed on the way back; then the source's tensor groups gather.
    """
    topology, ways = plan.topology, 1 if stream.name.endswith(_ONE_WAY) else 2
    there, traffic = exchange_seconds(stream, topology, cluster), stream.traffic(topology)
    inter, intra = ways * traffic.inter_node, ways * traffic.intra_node
    back = there
    if isinstance(plan, LaidOutStepPlan):
        phase, _, way = stream.name.rpartition(":")
        to = list(plan.phases)[-1] if way == "out" else phase
        gathered = gathering(stream, plan.setup.mesh_of(to), topology, cluster)
        there = back = there + gathered.seconds
        inter, intra = inter + ways * gathered.inter_node, intra + ways * gathered.intra_node
        if ways > 1:
            before = gathering(stream.inverse(), plan.setup.mesh_of(phase), topology, cluster)
            back = back + before.seconds
            inter, intra = inter + before.inter_node, intra + before.intra_node
    return ExchangeTime(float(there.max()) + (ways - 1) * float(back.max()), inter, intra)


class Gathering(NamedTuple):
    """What tensor groups take to gather windows: seconds of each GPU, float64[num_ranks], and bytes of all."""

    seconds: NDArray[np.float64]
    inter_node: int
    intra_node: int


def gathering(stream: Stream, mesh: Mesh, topology: Topology, cluster: Cluster) -> Gathering:
    """Let every tensor group of a module's GPUs gather what a stream brings to each of its windows.

    Each sends its own to all others, by the links of its node, or, where a group spans nodes, between them.
    """
    node, num_ranks, tp = topology.node_of_rank, topology.num_ranks, mesh.layout.tp
    seconds = np.zeros(num_ranks)
    if tp == 1:
        return Gathering(seconds, 0, 0)
    brought = np.bincount(stream.target.rank_of_sample, weights=stream.bytes_of_item, minlength=num_ranks)
    groups = mesh.gpus.reshape(-1, tp)
    mine, inside = brought[groups], (node[groups] == node[groups[:, :1]]).all(axis=1)
    total = mine.sum(axis=1, keepdims=True)
    latency = np.where(inside, cluster.intra_node_latency_s, cluster.inter_node_latency_s)[:, None]
    rate = np.where(inside, cluster.intra_node_bytes_per_s, cluster.inter_node_bytes_per_s)[:, None]
    # A GPU sends its part to all others of its group, and gets theirs; links carry both ways at once.
    moved = np.maximum((tp - 1) * mine, total - mine)
    seconds[groups] = np.where(total > 0, (tp - 1) * latency + moved / rate, 0.0)
    volume = (tp - 1) * total[:, 0]
    return Gathering(seconds, int(volume[~inside].sum()), int(volume[inside].sum()))


def exchange_seconds(stream: Stream, topology: Topology, cluster: Cluster) -> NDArray[np.float64]:
    """Seconds that each rank is at an exchange, one way, by the alpha-beta model (Hockney 1994).

    A rank's time within its node, and across nodes, is ``messages * latency + bytes / bandwidth``, of what it sends or
    of what it receives, whichever takes longer; the two add up, as if one followed the other. A message is all that
    one rank has for another. The way back takes as long. O(k log k) for k items that move.
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
        # Links inside nodes and between them are counted one after the other, as if a rank used one kind at a time.
        seconds += np.maximum(sends, receives)
    return seconds
