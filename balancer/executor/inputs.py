"""What a phase that others feed takes: their outputs and the samples' own pieces, in one exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.differentiable import move_activations
from balancer.executor.features import Features
from balancer.executor.peers import Peers
from balancer.executor.ragged_tensor import RaggedTensor
from balancer.executor.route import Route, grouped_sums
from balancer.executor.shared_streams import placed
from balancer.plan.step_plan import StepPlan, own_name
from balancer.plan.stream import fused, stacked
from balancer.problem.ragged import offsets_of

__all__ = ["PhaseInputs"]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseInputs:
    """All that a fed phase takes, as one rank sends and receives it; own pieces are with their samples already."""

    phase: str
    route: Route  # of the rank's outputs, stream after stream, then of its own pieces; to its samples, part by part
    lengths: NDArray[np.int64]  # elements of each of the rank's samples, or of its share of it, padding included
    sizes: dict[str, int]  # how many elements of each stream the rank puts in
    places: NDArray[np.int64] | None = None  # where what arrives lies among those elements; None: as it comes

    @classmethod
    def of(cls, plan: StepPlan, phase: str, rank: int) -> "PhaseInputs":
        """Return what a phase takes."""
        if plan[phase].cut.shares:
            return cls._shared(plan, phase, rank)
        parts, target = plan.parts[phase], plan[phase].target
        streams = {name: plan.streams[name] for name in parts.streams}
        own = streams[own_name(phase)]
        streams[own_name(phase)] = replace(own, source=own.target)
        first = offsets_of([len(stream.lengths) for stream in streams.values()])
        order = first[parts.stream_of_part] + parts.item_of_part
        whole = fused(f"{phase}:inputs", list(streams.values()), order, target.lifted(parts.sample_of_part))
        sizes = {name: int(one.lengths[one.source.samples_on_rank(rank)].sum()) for name, one in streams.items()}
        counts = np.bincount(parts.sample_of_part, minlength=plan.num_samples)
        lengths = grouped_sums(whole.lengths, counts)[target.samples_on_rank(rank)]
        return cls(phase, Route.of(whole.source, whole.target, whole.lengths, rank), lengths, sizes)

    @classmethod
    def _shared(cls, plan: StepPlan, phase: str, rank: int) -> "PhaseInputs":
        """Return what a phase takes whose ranks share samples: segments of each stream, one stream after the other."""
        pieces, shares = plan[phase].pieces, plan[phase].shares
        cuts = {name: plan.cut(name, phase) for name in plan.parts[phase].streams}
        streams = {name: cut.stream for name, cut in cuts.items()}
        own = streams[own_name(phase)]
        streams[own_name(phase)] = replace(own, source=own.target)
        lengths = np.concatenate([stream.lengths for stream in streams.values()])
        order = np.arange(len(lengths))
        source = stacked([stream.source for stream in streams.values()], order)
        target = stacked([stream.target for stream in streams.values()], order)
        sizes = {name: int(one.lengths[one.source.samples_on_rank(rank)].sum()) for name, one in streams.items()}
        places = np.concatenate([cut.places_on_rank(pieces, rank) for cut in cuts.values()])
        of_share = shares.lengths[shares.place.samples_on_rank(rank)]
        return cls(phase, Route.of(source, target, lengths, rank), of_share, sizes, places)

    def in_order(self, outputs: Mapping[str, Tensor], own: Tensor | None) -> list[Tensor | None]:
        """Return the tensors stream after stream; KeyError or ValueError names one that is missing or does not fit."""
        given: dict[str, Tensor | None] = {f"{name}:out": tensor for name, tensor in outputs.items()}
        if strange := sorted(set(given) - set(self.sizes)):
            raise KeyError(f"{strange[0].removesuffix(':out')!r} does not feed phase {self.phase!r}")
        given[own_name(self.phase)] = own
        for stream, size in self.sizes.items():
            name, tensor = stream.removesuffix(":out"), given.get(stream)
            if stream not in given:
                raise KeyError(f"outputs must have what {name!r} puts out; of no rows if it has no item")
            if (0 if tensor is None else len(tensor)) != size:
                what = "own" if stream == own_name(self.phase) else f"outputs[{name!r}]"
                rows = "is missing" if tensor is None else f"has {len(tensor)} rows"
                if isinstance(tensor, list):
                    rows = f"is a list of {len(tensor)}: torch.cat makes one tensor of it"
                raise ValueError(f"{what} must have {size} rows on this rank, one for each element, but {rows}")
        return [given[stream] for stream in self.sizes]

    def brought(
        self, tensors: Sequence[Tensor | None], peers: Peers, features: Features, device: torch.device,
        differentiable: bool,
    ) -> RaggedTensor:  # fmt: skip
        """Bring the tensors, stream after stream, where the phase takes them."""
        values = features.alike(self.phase, tensors, list(self.sizes.values()), device)
        moved = move_activations(values, self.route, peers, differentiable)
        return RaggedTensor(placed(moved, self.places, int(self.lengths.sum())), self.lengths)
