"""What a phase that others feed takes: their outputs and the samples' own pieces, in one exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.exchange import activations
from balancer.executor.fields import RaggedTensor
from balancer.executor.layouts import Windows, inputs_in_windows, put_out_by
from balancer.executor.moves import Move, Segments, begins_of, sizes_of
from balancer.executor.ranks import ExecutorError, Ranks, check_alike, listed
from balancer.layouts.step_plan import LaidOutStepPlan, shards_of
from balancer.plan.step_plan import StepPlan, own_name

__all__ = ["Agreed", "PhaseInputs"]

Agreed: TypeAlias = dict[tuple[str, bool], tuple[torch.dtype, tuple[int, ...]]]
"""By phase, and whether under autocast: dtype and shape of an element, which all ranks agree on once."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128)


@dataclass(frozen=True, slots=True, eq=False)
class PhaseInputs:
    """All that the last phase takes, as one rank sends and gets it; own pieces are with their samples already."""

    phase: str
    sizes: dict[str, int]  # how many elements of each stream the rank puts in
    # From the rank's outputs, stream after stream, and its own pieces behind them, to its samples, part by part
    forth: Move
    back: Move
    lengths: NDArray[np.int64]  # elements of each of the rank's samples, or of its share of it, padding included
    # With layouts: by stream, the windows of outputs that all of a tensor group have, of which the rank sends its own
    cut: Mapping[str, Windows] = field(default_factory=dict)
    # With layouts: the windows of the buffer of all inputs, of which the rank gets its own
    whole: Windows | None = None

    @classmethod
    def on(cls, step: StepPlan, phase: str, ranks: Ranks) -> "PhaseInputs":
        """Return what a phase takes, as one rank sends and gets it."""
        if isinstance(step, LaidOutStepPlan):
            return cls._in_windows(step, phase, ranks)
        parts, plan, rank, own = step.parts[phase], step[phase], ranks.rank, own_name(phase)
        cuts = {name: step.cut(name) for name in parts.streams} if plan.cut.shares else {}
        streams = {name: cuts[name].stream if cuts else step.streams[name] for name in parts.streams}
        # Own pieces have come with the fields: their source is where they are now, and they stay.
        streams[own] = replace(streams[own], source=streams[own].target)
        sizes = {name: int(one.lengths[one.source.samples_on_rank(rank)].sum()) for name, one in streams.items()}
        if cuts:  # ranks share samples: segments travel, and lie among padding
            pieces, moved = plan.pieces, []
            begins, after = begins_of(pieces.place, pieces.lengths), sizes_of(pieces.place, pieces.lengths)
            for name, stream in streams.items():
                piece = cuts[name].target_piece
                at = begins[piece] + cuts[name].start - pieces.start[piece]
                moved.append(Segments.of_stream(stream)._replace(target_at=at, after=after))
            found = Segments.one_after_another(moved)
            lengths = plan.shares.lengths[plan.shares.place.samples_on_rank(rank)]
        else:
            whole = step.in_reading_order(phase, list(streams.values()))
            found = Segments.of_stream(whole)
            of_sample = np.bincount(parts.sample_of_part, whole.lengths, step.num_samples).astype(np.int64)
            lengths = of_sample[plan.target.samples_on_rank(rank)]
        return cls(phase, sizes, found.on(rank), found.home().on(rank), lengths)

    @classmethod
    def _in_windows(cls, step: StepPlan, phase: str, ranks: Ranks) -> "PhaseInputs":
        """Return what a phase with a layout takes: windows of outputs travel; its own pieces are in theirs already."""
        gpu, outs, own = ranks.rank, step.parts[phase].streams[:-1], own_name(phase)
        sizes, windows, held = dict[str, int](), dict[str, Windows](), 0
        for name in outs:
            encoder = name.removesuffix(":out")
            shards = put_out_by(step, encoder)
            sizes[name] = int(shards.slot_sizes[shards.mesh.place_of(gpu)[1]].sum())
            if (one := Windows.of(shards, encoder, ranks)) is not None:
                windows[name] = one
            held += sizes[name] if one is None else one.size
        found, target = inputs_in_windows(step, phase, gpu), shards_of(step, phase)
        sizes[own] = int(found.sending.before[gpu]) - held
        device, replica, _, _ = target.mesh.place_of(gpu)
        is_first = device == 0  # of its pipeline
        lengths = target.share[target.place.samples_on_rank(replica)[: None if is_first else 0]]
        whole = Windows.of(target, phase, ranks) if is_first else None
        return cls(phase, sizes, found.on(gpu), found.home().on(gpu), lengths, windows, whole)

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
        self, tensors: Sequence[Tensor | None], ranks: Ranks, agreed: Agreed, device: torch.device,
        differentiable: bool,
    ) -> RaggedTensor:  # fmt: skip
        """Bring the tensors, stream after stream, where the phase takes them."""
        # Tensor shards all have the outputs: each sends its window, so that every row is sent once.
        held = [
            tensor if tensor is None or name not in self.cut else self.cut[name].cut(tensor)
            for name, tensor in zip(self.sizes, tensors, strict=True)
        ]
        rows = self._joined([tensor for tensor in held if tensor is not None], ranks, agreed, device)
        if not (differentiable and torch.is_grad_enabled()):
            rows = rows.detach()
        elif not rows.requires_grad:
            # A rank without rows of its own takes part in the backward exchange too, or the others would wait for it.
            rows = rows.detach().requires_grad_()
        moved = activations(ranks, rows, self.forth, self.back)
        return RaggedTensor(moved if self.whole is None else self.whole.joined(moved), self.lengths)

    def _joined(self, tensors: Sequence[Tensor], ranks: Ranks, agreed: Agreed, device: torch.device) -> Tensor:
        """Return the tensors as one, in the dtype and shape that all ranks agree on at the first call.

        ExecutorError then, on all ranks, if shapes differ; ValueError later, on a rank whose rows are others.
        """
        filled = [tensor for tensor in tensors if len(tensor)]
        device = tensors[0].device if tensors else device
        key = self.phase, torch.is_autocast_enabled(device.type)
        dtype, trailing = agreed.get(key) or self._agree(filled or list(tensors[:1]), bool(filled), ranks, agreed, key)
        for tensor in filled:
            if tuple(tensor.shape[1:]) != trailing or torch.promote_types(tensor.dtype, dtype) != dtype:
                raise ValueError(
                    f"inputs of phase {self.phase!r} were agreed to be {dtype} of {list(trailing)} an element, got "
                    f"{tensor.dtype} of {list(tensor.shape[1:])}; a model that changes them needs a new Dispatcher"
                )
        # An empty tensor stays in, so that gradients reach the module that made it, on every rank alike.
        alike = [tensor.to(dtype) for tensor in tensors if tensor.shape[1:] == trailing]
        if not alike:
            return torch.empty((0, *trailing), dtype=dtype, device=device)
        return alike[0] if len(alike) == 1 else torch.cat(alike)

    def _agree(
        self, tensors: Sequence[Tensor], filled: bool, ranks: Ranks, agreed: Agreed, key: Any
    ) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return what the rows of all ranks are like; else, where no rank has one, what empty tensors are like."""
        said = ranks.say((filled, [(tensor.dtype, tuple(tensor.shape[1:])) for tensor in tensors]))
        if strange := [
            rank
            for rank, (_, kinds) in enumerate(said)
            if len({shape for _, shape in kinds}) > 1 or any(dtype not in DTYPES for dtype, _ in kinds)
        ]:
            rule = "must be of one trailing shape and a floating dtype"
            raise ExecutorError(f"inputs of phase {self.phase!r} on {listed(strange)} {rule}", strange)
        holders = {rank: kinds for rank, (has_rows, kinds) in enumerate(said) if has_rows}
        known = holders or {rank: kinds for rank, (_, kinds) in enumerate(said) if kinds}
        if not known:
            return torch.float32, ()
        shown = f"the shape of an element of the inputs of phase {self.phase!r}"
        check_alike({rank: {shown: list(kinds[0][1])} for rank, kinds in holders.items()})
        first = next(iter(known.values()))
        found = reduce(torch.promote_types, [dtype for kinds in known.values() for dtype, _ in kinds]), first[0][1]
        if holders:
            agreed[key] = found
        return found
