"""What dispatch returns: a rank's balanced mini-batch, the ways back, and the exchanges on to the next phase.

The *home* of a sample is the rank that drew it. A *phase* is a module of the model, and computes *items*: the samples
themselves, or the images, clips... inside them. The items of a phase travel from home in the phase's *stream*
(``streams.py``), and each field of the mini-batch travels in one stream: the *route* of the field says which elements
go to which rank. What an encoder then puts out goes on to the phase that takes it (``inputs.py``).

Ranks that hold the same share, such as tensor shards, are *replica peers*. One of them, the leader, sends and gets;
the others get what it gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.features import Features
from balancer.executor.fields import Field, read_field, write_field
from balancer.executor.gathering import Gathered, gather, read_if_leader
from balancer.executor.inputs import PhaseInputs
from balancer.executor.message import MiniBatch, Status
from balancer.executor.payload import Values
from balancer.executor.peers import Peers
from balancer.executor.ragged_tensor import RaggedTensor
from balancer.executor.streams import FieldRoute, HomeStream, streams_from_home
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.pieces import PiecesOnRank
from balancer.plan.resharding import Shards
from balancer.plan.shared_plan import SharedPlan
from balancer.plan.step_plan import StepPlan, shards_of
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.ragged import Ragged, offsets_of
from solvers.arguments import as_index

__all__ = ["SINGLE_FIELD", "Dispatched"]

SINGLE_FIELD = ""
"""What the one field is called of a mini-batch that came without names."""


class Dispatched(Mapping[str, Any]):
    """A rank's share of one step after dispatch; a mapping of its fields, each in the form in which it came.

    The dispatcher makes it of a plan that all ranks hold, and making it moves the fields of `batch`, the mini-batch of
    this rank. `batch` is None on a replica peer that does not lead. `gathered` says what the fields of all ranks are
    like, and `stream_of_field` which of them do not go to the last phase with their samples. `groups` are the process
    groups of ranks that may share samples.

    Attributes
    ----------
    step : StepPlan
        The same on all ranks.
    rank : int
    data : dict or the one field
        The balanced mini-batch, as it was handed in.
    exchange_s : float
        Seconds of this rank's host in the exchange.
    """

    exchange_s: float = 0.0

    def __init__(
        self, plan: StepPlan, peers: Peers, gathered: Gathered, stream_of_field: Mapping[str, str],
        batch: MiniBatch | None, features: Features, device: torch.device, groups: Mapping[range, Any],
    ) -> None:  # fmt: skip
        self.step, self.rank = plan, peers.rank
        self.peers, self._features, self._device, self._groups = peers, features, device, groups
        self._streams = streams_from_home(plan, peers)
        self._last = list(self._streams.values())[-1]  # of the samples to the last phase
        self._inputs: dict[str, PhaseInputs] = {}  # by phase that others feed, as far as they were asked for
        streams = {name: self._streams[stream_of_field.get(name, self._last.name)] for name in gathered.specs}
        self._routes = {name: stream.field_route(name, gathered) for name, stream in streams.items()}
        # The buffer that rows arrived in, and lie in: restore sends it back as it is.
        self._memory, self._fields = self._moved(self._routes, {} if batch is None else batch.fields, forth=True)

    @property
    def plan(self) -> DispatchPlan | StepPlan:
        """The plan, the same on all ranks: that of the step, or, where nobody named phases, that of its only one."""
        return self.step[SINGLE_PHASE] if self.step.is_single else self.step

    # The mini-batch.

    @property
    def samples(self) -> NDArray[np.int64]:
        """The samples that this rank has in the last phase, in order; numbered rank after rank, as they came."""
        return self._last.here

    @property
    def data(self) -> Any:
        """The balanced mini-batch, as it was handed in: by name, or the one field."""
        return self[SINGLE_FIELD] if set(self._fields) == {SINGLE_FIELD} else dict(self)

    def __getitem__(self, field: str) -> Any:
        if field not in self._fields:
            raise KeyError(f"no field {field!r}; fields are {', '.join(self._fields)}")
        return write_field(self._fields[field])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def slot_bounds(self, phase: str | None = None) -> NDArray[np.int64]:
        """Return where this rank's micro-batches of a phase begin and end among its items: int64[num_slots + 1]."""
        plan = self._plan_of(phase)
        slots = plan.slot_of_sample[self._stream(phase).here]
        return np.searchsorted(slots, np.arange(plan.num_slots + 1))

    def lengths(self, phase: str | None = None) -> NDArray[np.int64]:
        """Return the lengths of this rank's items of a phase, by default the last, as the plan has them: int64[k].

        Where ranks share samples, of its shares, padding included.
        """
        return self._stream(phase).sizes_here(self._plan_of(phase).lengths)

    def planned(self, phase: str) -> tuple[int, NDArray[np.int64]]:
        """Return this rank's number in a phase, with layouts that of its replica, and the lengths of its items."""
        laid_out = self.step.setup.layout is not None
        rank = self.step.setup.mesh_of(phase).place_of(self.rank)[1] if laid_out else self.rank
        return rank, self.step[phase].lengths[self._stream(phase).here]

    def _plan_of(self, phase: str | None) -> DispatchPlan:
        return self.step.last if phase is None else self.step[phase]

    # Where ranks share samples.

    def process_group(self, slot: int, phase: str | None = None) -> Any:
        """Return the torch process group of the ranks that share samples with this one in a slot.

        It is made with the dispatcher. None where the rank computes alone, or has nothing in the slot: collectives of
        other groups do not need it. `phase` is an encoder whose items ranks share; by default the last phase, as below.
        """
        plan = self._plan_of(phase)
        if not isinstance(plan, SharedPlan):
            return None
        mine = [group.ranks for group in plan.groups(slot) if self.rank in group.ranks]
        return self._groups[mine[0]] if mine and len(mine[0]) > 1 else None

    def pieces(self, slot: int, phase: str | None = None) -> PiecesOnRank:
        """Return what this rank holds in a slot: parts of samples, in order, and where they begin in the slot.

        With layouts, ask :meth:`shards` for positions.
        """
        if self.step.setup.layout is not None:
            raise ValueError("with layouts, a GPU holds shards: see shards(phase).positions(rank, slot)")
        return self._plan_of(phase).pieces_on_rank(self.rank, slot)

    def shards(self, phase: str | None = None) -> Shards:
        """Return what each GPU has of a phase's items; its positions are of a GPU's packed slot. With layouts."""
        return shards_of(self.step, phase or list(self.step.phases)[-1])

    def cu_seqlens(self, slot: int, phase: str | None = None) -> NDArray[np.int32]:
        """Return where this rank's rows of a slot begin and end, packed, padding included: int32[k + 1]."""
        bounds = self.slot_bounds(phase)
        slot = as_index("slot", slot, len(bounds) - 1)
        return offsets_of(self.lengths(phase)[bounds[slot] : bounds[slot + 1]]).astype(np.int32)

    def tensors(self) -> list[Tensor]:
        """Return the memory that the fields lie in."""
        whole = [field.values for field in self._fields.values() if isinstance(field.values, Tensor)]
        return whole if self._memory is None else [self._memory, *whole]

    # Moving.

    def restore(self, results: Any = None, phase: str | None = None) -> Any:
        """Bring samples home, or results of them.

        Parameters
        ----------
        results : optional
            An entry for each of this rank's samples, in their order, in any form that dispatch takes; or a mapping of
            names to such. By default the mini-batch itself: then restore is the inverse of dispatch, and takes one
            all-to-all. Results take one small collective more, as their lengths are not known. What replica peers hand
            in is not looked at: they get what their leader gets.

            Where ranks share samples, there are two kinds of results. Entries as long as :meth:`lengths`, or as those
            without padding, are results of tokens: they come home put together, without padding. All others are
            results of samples: those of the first rank of each group come home, so reduce them over the group before.
        phase : str, optional
            The encoder whose items the entries are results of; they come home as a list by item.

        Returns
        -------
        The same form as was given, in the order in which the samples came.
        """
        if results is None:
            # Rows lie packed in the memory in which they arrived, in the order in which they are sent back.
            packed = self._memory if all(route.is_mirrored for route in self._routes.values()) else None
            fields = self._moved(self._routes, self._fields, forth=False, packed=packed)[1]
        else:
            named = dict(results) if isinstance(results, Mapping) else {SINGLE_FIELD: results}
            fields = self._results_home(named, self._stream(phase))
        written = {name: write_field(field) for name, field in fields.items()}
        alone = set(written) == {SINGLE_FIELD} if results is None else not isinstance(results, Mapping)
        return written[SINGLE_FIELD] if alone else written

    def _stream(self, phase: str | None) -> HomeStream:
        if phase is None:
            return self._last
        if phase not in self._streams:
            raise KeyError(f"no phase {phase!r}; there are {', '.join(self._streams)}")
        return self._streams[phase]

    def _results_home(self, results: Mapping[str, Any], stream: HomeStream) -> dict[str, Field]:
        batch, failure = read_if_leader(self.peers, lambda: _read_results(results, len(stream.here)))
        gathered = gather(self.peers, batch, Status.READY, failure)
        routes = {name: stream.result_route(spec, gathered.rows[name]) for name, spec in gathered.specs.items()}
        return self._moved(routes, {} if batch is None else batch.fields, forth=False)[1]

    def _moved(
        self, routes: Mapping[str, FieldRoute], fields: Mapping[str, Field], forth: bool, packed: Tensor | None = None
    ) -> tuple[Tensor | None, dict[str, Field]]:
        """Bring fields from home or back in one all-to-all; return the memory in which they arrived, and them."""
        payloads = []
        for name, route in routes.items():
            values: Values | None = None
            if self.peers.leads:
                known = name in fields and fields[name].spec.form
                values = fields[name].on(self._device) if known else route.home.nothing(self._device)
            payloads.append(route.payload(values, forth, self._device))
        if not payloads:
            return None, {}
        memory, moved = self.peers.move(payloads, self._device, packed)
        arrived = {
            name: route.arrived(values, forth, self._device)
            for (name, route), values in zip(routes.items(), moved, strict=True)
        }
        return memory if any(payload.by_row for payload in payloads) else None, arrived

    # On to the next phase.

    def inputs(
        self, phase: str, outputs: Mapping[str, Tensor], own: Tensor | None = None, differentiable: bool = True
    ) -> RaggedTensor:
        """Bring what encoders put out to the phase that takes it, in one all-to-all; gradients take the way back.

        Parameters
        ----------
        phase : str
            The last phase, which takes it.
        outputs : mapping of str to Tensor[elements, ...]
            By encoder, the outputs of this rank's items, one after the other in their order; without rows
            where the rank has no item.
        own : Tensor[elements, ...], optional
            What the samples bring from home, such as embedded text: the pieces of this rank's samples one after the
            other, in the order of the field that was dispatched for ``"llm:own"``. Left out if there is none.
        differentiable : bool
            False for encoders that are frozen; the same on all ranks.

        Returns
        -------
        RaggedTensor
            A row for each of this rank's samples, or for its share of the sample, its parts in the order in which the
            phase reads them. Padding is zeros.

        Notes
        -----
        All ranks call it, those without a sample too, and all of them must run its backward: a rank without a sample of
        the phase adds :func:`balancer.executor.anchored` to its loss. The dtype is the widest of all ranks'; it and the
        shape are agreed in a small collective at the first call. ``torch.compile`` breaks the graph here, as split
        sizes change every step.
        """
        # Not a decorator: that would load the compiler, which takes seconds, for those who do not compile.
        bring = torch.compiler.disable(self._bring) if torch.compiler.is_compiling() else self._bring
        return bring(phase, outputs, own, differentiable)

    def _bring(
        self, phase: str, outputs: Mapping[str, Tensor], own: Tensor | None, differentiable: bool
    ) -> RaggedTensor:
        taken = self._taken_by(phase)
        tensors = taken.in_order(outputs, own)
        return taken.brought(tensors, self.peers, self._features, self._device, differentiable)

    def _taken_by(self, phase: str) -> PhaseInputs:
        """Return what a phase takes, composed once."""
        *encoders, last = self.step.phases
        if phase != last or not encoders:
            which = f"encoders feed the last, {last!r}" if encoders else "there is no encoder"
            raise KeyError(f"phase {phase!r} is fed by none; {which}")
        if phase not in self._inputs:
            self._inputs[phase] = PhaseInputs.on(self.step, phase, self.peers)
        return self._inputs[phase]


def _read_results(results: Mapping[str, Any], num_samples: int) -> MiniBatch:
    """Read what was computed of each of so many samples; ValueError if entries are not one a sample."""
    fields = {name: read_field(name or "results", data) for name, data in results.items()}
    for name, field in fields.items():
        if len(field.rows) != num_samples or isinstance(field.rows, Ragged):
            what = f"result {name!r}" if name else "results"
            raise ValueError(f"{what} must have an entry for each of {num_samples} samples, got {len(field.rows)}")
    return MiniBatch(num_samples, fields, {})
