"""What a phase that others feed takes: their outputs and the samples' own pieces, in one exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.features import Features
from balancer.executor.peers import Peers
from balancer.executor.ragged_tensor import RaggedTensor
from balancer.executor.windows import Windows
from balancer.plan.resharding import Shards
from balancer.plan.route import Route, arriving, grouped_sums, leaving, resharded
from balancer.plan.step_plan import StepPlan, own_name, reshard_on
from balancer.plan.stream import one_by_one
from balancer.problem.ragged import offsets_of

__all__ = ["PhaseInputs"]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseInputs:
    """All that the last phase takes, as one rank sends and gets it; own pieces are with their samples already."""

    phase: str
    sizes: dict[str, int]  # how many elements of each stream the rank puts in
    # From the rank's outputs, stream after stream, and its own pieces behind them, to its samples, part by part
    route: Route
    lengths: NDArray[np.int64]  # elements of each of the rank's samples, or of its share of it, padding included
    # With layouts: by stream, the windows of outputs that all of a tensor group have, of which the rank sends its own
    cut: Mapping[str, Windows] = field(default_factory=dict)
    # With layouts: the windows of the buffer of all inputs, of which the rank gets its own
    whole: Windows | None = None

    @classmethod
    def on(cls, step: StepPlan, phase: str, peers: Peers) -> "PhaseInputs":
        """Return what a phase takes, as one rank sends and gets it."""
        if step.setup.layout is not None:
            return cls._in_shards(step, phase, peers)
        parts, plan, rank = step.parts[phase], step[phase], peers.rank
        cuts = {name: step.cut(name) for name in parts.streams} if plan.cut.shares else {}
        streams = {name: cuts[name].stream if cuts else step.streams[name] for name in parts.streams}
        # Own pieces have come with the fields: their source is where they are now, and they stay.
        own = streams[own_name(phase)]
        streams[own_name(phase)] = replace(own, source=own.target)
        sizes = {name: int(one.lengths[one.source.samples_on_rank(rank)].sum()) for name, one in streams.items()}
        if cuts:  # ranks share samples: segments travel, one stream after the other, and lie among padding
            whole = one_by_one(phase, list(streams.values()))
            lengths = plan.shares.lengths[plan.shares.place.samples_on_rank(rank)]
            places = np.concatenate([cut.places_on_rank(plan.pieces, rank) for cut in cuts.values()])
            end = arriving(whole, rank).parts(places, int(lengths.sum()))
        else:
            whole = step.in_reading_order(phase, list(streams.values()))
            counts = np.bincount(parts.sample_of_part, minlength=step.num_samples)
            lengths = grouped_sums(whole.lengths, counts)[plan.target.samples_on_rank(rank)]
            end = arriving(whole, rank)
        return cls(phase, sizes, Route(leaving(whole, rank), end, rank), lengths)

    @classmethod
    def _in_shards(cls, step: StepPlan, phase: str, peers: Peers) -> "PhaseInputs":
        """Return what a phase with a layout takes: windows of outputs travel; its own pieces are in theirs already."""
        gpu, outs, own = peers.rank, step.parts[phase].streams[:-1], own_name(phase)
        part = reshard_on(step, gpu, f"{phase}:inputs", outs)
        target, sizes, windows, held = part[1].target, dict[str, int](), dict[str, Windows](), 0
        for name, source in zip(outs, part[0].sources, strict=True):
            if not isinstance(source.held, Shards):
                raise TypeError(f"{name!r} must come from shards")
            size = sizes[name] = int(source.held.slot_sizes[source.held.mesh.place_of(gpu)[1]].sum())
            if (one := Windows.of(source.held, name.removesuffix(":out"), peers)) is not None:
                windows[name] = one
            held += size if one is None else one.size
        device, replica, _, _ = target.mesh.place_of(gpu)
        is_first = device == 0
        window = int(target.windows[replica].sum()) if is_first else 0
        # What comes from encoders travels; own pieces came with the fields, and are only put among it: one route does
        # both, so that one backward brings all gradients.
        moved, kept = resharded(*part, gpu, held, window), reshard_on(step, gpu, own)[1]
        pieces = arriving(kept.stream, gpu)
        sizes[own] = pieces.total
        first = offsets_of(pieces.lengths)[:-1]
        route = Route(
            moved.sending.keeping(gpu, held + first, pieces.lengths, held + pieces.total),
            moved.receiving.keeping(gpu, kept.arriving(gpu)[first], pieces.lengths, window),
            gpu,
        )
        lengths = target.share[target.place.samples_on_rank(replica)[: None if is_first else 0]]
        return cls(phase, sizes, route, lengths, windows, Windows.of(target, phase, peers) if is_first else None)

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
        # Tensor shards all have the outputs: each sends its window, so that every row is sent once.
        held = [
            tensor if tensor is None or name not in self.cut else self.cut[name].cut(tensor)
            for name, tensor in zip(self.sizes, tensors, strict=True)
        ]
        counts = [0 if tensor is None else len(tensor) for tensor in held]
        values = features.alike(self.phase, held, counts, device)
        if not (differentiable and torch.is_grad_enabled()):
            values = values.detach()
        elif not values.requires_grad:
            # A rank without rows of its own takes part in the backward exchange too, or the others would wait for it.
            values = values.detach().requires_grad_()
        moved = _Move.apply(values, self.route, peers)
        return RaggedTensor(moved if self.whole is None else self.whole.joined(moved), self.lengths)


class _Move(torch.autograd.Function):
    """Rows moved along a route on which each element goes to one place, or none; backward, the route back.

    It is its own backward, so that derivatives of any order are exchanges.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, route: Route, peers: Peers) -> Tensor:
        ctx.route, ctx.peers = route, peers
        return peers.move_activations(route, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Move.apply(gradients[0], ctx.route.back, ctx.peers), None, None
