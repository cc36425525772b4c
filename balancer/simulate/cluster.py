"""Clusters: what a step runs on. Common nodes by name, each with the source of its numbers."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

from balancer.cost.integer import IntegerCost
from balancer.cost.model import CostModel
from balancer.cost.sequence_parallel import Sharing, check_heads, exchange_bytes
from balancer.cost.shapes import Module
from balancer.described import Count, Kind, described, key, read, settle
from balancer.errors import InputError
from balancer.problem.topology import Topology
from solvers.arguments import as_count
from solvers.errors import ArgumentError


def _latency(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ValueError
    return value


def _rate(value: Any) -> float:
    if not _latency(value):
        raise ValueError
    return float(value)


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


Rate = Annotated[float, Kind("a finite number > 0", {"type": "number", "exclusiveMinimum": 0}, _rate)]
Latency = Annotated[float, Kind("a finite number >= 0", {"type": "number", "minimum": 0}, _latency)]
Words = Annotated[str, Kind("text", {"type": "string"}, _words)]


@described
class Cluster:
    """Equal nodes of equal GPUs, and how many GPUs one data-parallel rank has: the keys of a cluster's file.

    Attributes
    ----------
    gpus_per_node : int
    peak_flops : float
        Of one GPU, FLOP/s, dense, in the precision of training.
    memory_bytes : float
        Of one GPU.
    intra_node_bytes_per_s, inter_node_bytes_per_s : float
        Of one GPU, in one direction: half of what data sheets call bidirectional.
    intra_node_latency_s, inter_node_latency_s : float
        Of one message; >= 0.
    gpus_per_rank : int
        They share a rank's work and its traffic evenly. Divides `gpus_per_node`, or is a multiple of it.
    source : str
        Where the numbers come from.

    Examples
    --------
    >>> cluster = CLUSTERS["h100"].with_ranks_of(4)
    >>> cluster.ranks_per_node, cluster.rank_flops / 1e12
    (2, 3957.6)
    """

    gpus_per_node: Count = key("GPUs of a node.")
    peak_flops: Rate = key("Of one GPU, FLOP/s, dense, in the precision of training.")
    memory_bytes: Rate = key("Of one GPU.")
    intra_node_bytes_per_s: Rate = key("Of one GPU within its node, in one direction: half of what data sheets call "
                                       "bidirectional.")  # fmt: skip
    inter_node_bytes_per_s: Rate = key("The same between nodes.")
    intra_node_latency_s: Latency = key("Of one message within a node.")
    inter_node_latency_s: Latency = key("Of one message between nodes.")
    gpus_per_rank: Count = key("They share a rank's work and traffic evenly; divides `gpus_per_node`, or is a multiple "
                               "of it.", default=1)  # fmt: skip
    source: Words = key("Where the numbers come from.", default="")

    def __post_init__(self) -> None:
        settle(self)
        if self.gpus_per_node % self.gpus_per_rank and self.gpus_per_rank % self.gpus_per_node:
            rule = f"divide the {self.gpus_per_node} GPUs of a node, or be a multiple of them"
            raise ArgumentError("gpus_per_rank", rule, self.gpus_per_rank)

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node; 1 where a rank has a node or several for itself."""
        return max(1, self.gpus_per_node // self.gpus_per_rank)

    @property
    def rank_flops(self) -> float:
        """Peak FLOP/s of a rank."""
        return self.gpus_per_rank * self.peak_flops

    def with_ranks_of(self, gpus_per_rank: int) -> "Cluster":
        """Return the same cluster with this number of GPUs per rank."""
        return replace(self, gpus_per_rank=gpus_per_rank)

    def topology(self, num_ranks: int) -> Topology:
        """Return `num_ranks` ranks on whole nodes, or, if fewer than a node holds, on a part of one."""
        return Topology.uniform(num_ranks, min(self.ranks_per_node, as_count("num_ranks", num_ranks)))

    def shared_cost(
        self, cost: IntegerCost, module: Module, degrees: Iterable[int], *, exchange: str = "ulysses",
        efficiency: float = 0.5, checkpointing: bool = False, slot_s: float = 0.0,
    ) -> CostModel:  # fmt: skip
        """Return a cost that knows what sequence-parallel groups exchange on this cluster.

        All to all, each rank sends its part to every other, within the node and across; round a ring, what passes by
        is as slow as the slowest link, and runs beside attention. Latencies are left out.

        Parameters
        ----------
        cost : IntegerCost
            Of the module on one rank, in FLOPs (``balancer.cost.flops(NAME).integer_cost()``) or in time.
        module : Module
            Its shape, ``balancer.cost.module(NAME)``; all layers attend to all tokens.
        degrees : iterable of int
            Those that groups may have.
        exchange : {"ulysses", "ring"}
        efficiency : float
            Share of the peak that computing reaches; of no meaning where `cost` is in time.
        checkpointing : bool
            Whether the forward pass, and what it exchanges, is repeated.
        slot_s : float
            Seconds that every slot takes besides.

        Raises
        ------
        ValueError
            A degree that the module's heads do not allow (``ulysses``), or an argument out of range.

        Examples
        --------
        >>> from balancer.cost import flops, module
        >>> cost = flops("qwen2-7b").integer_cost()
        >>> str(CLUSTERS["h100"].shared_cost(cost, module("qwen2-7b"), [1, 2, 4]))
        'quadratic:a=493184,b=7,d2=5863,d4=8795'
        """
        if not 0 < efficiency <= 1:
            raise ArgumentError("efficiency", "be > 0 and <= 1, a share of the peak", efficiency)
        if not 0 <= slot_s <= sys.float_info.max:
            raise ArgumentError("slot_s", "be finite and >= 0", slot_s)
        listed = sorted(set(degrees))
        attention, node = module.attention, self.ranks_per_node
        if exchange == "ulysses":
            check_heads(listed, attention)
        elif sized := [name for name, _ in cost.model.areas if name != "full"]:
            raise ArgumentError(
                "exchange",
                f"be 'ulysses' for a model with {sized[0]}: round a ring a mask passes on what it keeps alone, "
                "which is not in proportion to the length", repr(exchange),
            )  # fmt: skip
        per_second = cost.per_second(efficiency * self.rank_flops)
        inside, across = (
            self.gpus_per_rank * each for each in (self.intra_node_bytes_per_s, self.inter_node_bytes_per_s)
        )
        works = []
        for degree in listed:
            volume = exchange_bytes(attention, module.layers, degree, exchange, checkpointing=checkpointing)
            # All to all, each rank sends a part to every other one: some inside its node, the others across.
            within = min(degree, node)
            seconds = volume / degree * ((within - 1) / inside + (degree - within) / across)
            if exchange == "ring":
                seconds = volume / (inside if degree <= node else across)
            works.append((degree, round(seconds * per_second)))
        shared = tuple((degree, work) for degree, work in works if degree > 1)
        sharing = Sharing(0, shared, exchange == "ring", round(slot_s * per_second))
        return replace(cost.model, sharing=sharing)


def _node(peak: float, memory: float, nvlink: float, network: float, source: str) -> Cluster:
    """Eight GPUs; latencies are no vendor's figures but an assumption, of the order that small messages take."""
    return Cluster(8, peak, memory, nvlink, network, intra_node_latency_s=5e-6, inter_node_latency_s=10e-6,
                   source=source)  # fmt: skip


CLUSTERS: dict[str, Cluster] = {
    "a100": _node(
        312e12, 80e9, 300e9, 25e9,
        "NVIDIA A100 80GB SXM data sheet (2021): BF16 dense; NVLink 600 GB/s both ways. DGX A100: eight 200 Gb/s ports",
    ),
    "h100": _node(
        989.4e12, 80e9, 450e9, 50e9,
        "NVIDIA H100 SXM5 architecture white paper (2022): BF16 dense; NVLink 900 GB/s both ways. DGX H100: eight "
        "400 Gb/s ports",
    ),
    "h200": _node(
        989.4e12, 141e9, 450e9, 50e9,
        "NVIDIA H200 SXM data sheet (2023): as the H100 but for its memory. DGX H200: eight 400 Gb/s ports",
    ),
    "b200": _node(
        2250e12, 180e9, 900e9, 50e9,
        "NVIDIA HGX B200 (2024): BF16 dense at 1,000 W; NVLink 1.8 TB/s both ways. DGX B200 user guide: 1,440 GB in "
        "eight GPUs, eight 400 Gb/s ports",
    ),
}  # fmt: skip
"""Nodes by name: peaks from data sheets, which no program reaches; one network port per GPU."""


def read_cluster(name: str) -> Cluster:
    """Find a cluster: one of :data:`CLUSTERS`, or the path of a JSON file with the fields of :class:`Cluster`.

    Raises
    ------
    InputError
        An unknown name (the known ones are listed), a file that cannot be read, a field that is missing, unknown or
        out of range; it names the file and the field.
    """
    known = CLUSTERS.get(name.lower())
    if known is not None:
        return known
    # Only by its end is a path told from a name that is misspelt.
    if not name.endswith(".json"):
        raise InputError(f"unknown cluster {name!r}; known are {', '.join(CLUSTERS)}, and paths that end in .json")
    try:
        with open(os.path.expanduser(name), encoding="utf-8") as handle:
            values = json.load(handle)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{name}: must hold an object with the fields of a cluster")
    found: Cluster = read(Cluster, values, f"{name}: ")
    return found
