"""Meshes: which GPU is which shard of which replica of a module."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.layouts.layout import ModuleLayout
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.topology import MAX_RANKS, Topology
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError
from solvers.types import Record


@dataclass(frozen=True, slots=True, eq=False)
class Mesh(Record):
    """The GPUs of a module's replicas.

    Attributes
    ----------
    layout : ModuleLayout
    gpus : int32[pp, dp, cp * sp, tp], read-only
        By pipeline device, replica, sequence shard (Ulysses shards inside context shards) and tensor shard.

    Examples
    --------
    >>> mesh = Mesh.of(ModuleLayout(tp=2, cp=2, dp=2))
    >>> mesh.gpus[0, 1].tolist()
    [[4, 5], [6, 7]]
    >>> mesh.topology(Topology.uniform(8, 4)).node_sizes
    (1, 1)
    """

    layout: ModuleLayout
    gpus: NDArray[np.int32]

    @classmethod
    def of(cls, layout: ModuleLayout, gpus: ArrayLike | None = None) -> Mesh:
        """Lay a module out on GPUs: without any given, as Megatron-LM does, the last axis innermost, from GPU 0 on.

        Raises
        ------
        TypeError, ValueError
            A layout that is none; GPUs of another shape than the layout's, negative, or there twice.
        """
        if not isinstance(layout, ModuleLayout):
            raise ArgumentTypeError("layout", "be a ModuleLayout", repr(layout))
        shape = (layout.pp, layout.dp, layout.sequence_shards, layout.tp)
        if gpus is None:
            if layout.num_gpus > MAX_RANKS:
                raise ArgumentError("layout", f"have <= {MAX_RANKS} GPUs", layout.num_gpus)
            return cls(layout, np.arange(layout.num_gpus, dtype=np.int32).reshape(shape))
        given = np.asarray(gpus)
        if given.shape != shape or not np.issubdtype(given.dtype, np.integer):
            raise ArgumentError(
                "gpus", f"hold integers of shape [pp, dp, cp * sp, tp] = {list(shape)}",
                f"{given.dtype} of shape {list(given.shape)}",
            )  # fmt: skip
        if given.min() < 0 or given.max() >= MAX_RANKS:
            raise ArgumentError("gpus", f"be within 0..{MAX_RANKS - 1}", f"{given.min()} to {given.max()}")
        found, counts = np.unique(given, return_counts=True)
        if counts.max() > 1:
            raise ArgumentError("gpus", "hold each GPU once", f"GPU {found[np.argmax(counts)]} {counts.max()} times")
        return cls(layout, given.astype(np.int32))

    def shares(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what each sequence shard holds of each sample, padding included: int64[n], in elements.

        Samples are padded as in sequence groups of one degree, each share also to a multiple of the tensor shards.
        """
        order, shards = "zigzag" if self.layout.cp > 1 else "contiguous", self.layout.sequence_shards
        cut = SequenceGroups((shards,), order=order, pad_to=self.layout.tp)
        return cut.padded(lengths, shards) // shards

    def replica_of_gpu(self, num_gpus: int) -> NDArray[np.int32]:
        """Return the replica that each GPU is of, -1 for those of none: int32[num_gpus].

        Raises
        ------
        ValueError
            If the mesh has GPUs beyond these.
        """
        self.check(num_gpus)
        replica = np.full(num_gpus, -1, dtype=np.int32)
        replica[self.gpus] = np.arange(self.layout.dp)[:, None, None]
        return replica

    def check(self, num_gpus: int) -> None:
        """Raise ValueError if the mesh has GPUs beyond these."""
        if self.gpus.max() >= num_gpus:
            raise UsageError(
                "a layout ({words}) needs GPU {last}, of {count} there are", "give it fewer shards or replicas",
                words=self.layout.in_words(), last=int(self.gpus.max()), count=num_gpus,
            )  # fmt: skip

    def topology(self, of_gpus: Topology) -> Topology:
        """Return nodes of replicas: a replica is in the node of the GPU by which its data come in.

        Replicas next to each other share a node where those GPUs do; one that fills nodes has one of its own.
        """
        self.check(of_gpus.num_ranks)
        # The first stage, first shards: the GPU that the loader feeds.
        node = of_gpus.node_of_rank[self.gpus[0, :, 0, 0]]
        return Topology([len(list(run)) for _, run in groupby(node.tolist())])

    def place_of(self, gpu: int) -> tuple[int, int, int, int]:
        """Return a GPU's pipeline device, replica, sequence shard and tensor shard; ValueError if it has none."""
        found = np.argwhere(self.gpus == gpu)
        if not len(found):
            raise ArgumentError("rank", f"be a GPU of the layout ({self.layout.in_words()})", gpu)
        device, replica, shard, tensor = found[0].tolist()
        return device, replica, shard, tensor
