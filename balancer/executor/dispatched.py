"""What dispatch returns: a rank's balanced mini-batch, the ways back, and the exchanges on to the next phase.

The *home* of a sample is the rank that drew it. A *phase* is a module of the model, and computes *items*: the samples
themselves, or the images, clips... inside them. Fields travel from home with the items of one phase (``ways.py``). What
an encoder then puts out goes on to the phase that takes it (``inputs.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.exchange import exchange
from balancer.executor.fields import Field, RaggedTensor, nothing, write
from balancer.executor.gathered import SINGLE_FIELD, Gathered, Message, put_together, read_fields
from balancer.executor.inputs import Agreed, PhaseInputs
from balancer.executor.layouts import Windows
from balancer.executor.ranks import Ranks, attempt, check_failed, summary
from balancer.executor.ways import Trip, Way, ways_from_home
from balancer.layouts.resharding import Shards
from balancer.layouts.step_plan import LaidOutStepPlan, shards_of
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.pieces import PiecesOnRank
from balancer.plan.shared_plan import SharedPlan
from balancer.plan.step_plan import StepPlan
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.ragged import Ragged, offsets_of
from solvers.arguments import as_index

__all__ = ["Dispatched", "Shared"]


class Shared(NamedTuple):
    """What all steps of a dispatcher have in common."""

    way_of_field: Mapping[str, str]  # which fields do not go to the last phase with their samples
    device: torch.device | None  # where fields are brought before the exchange
    groups: Mapping[range, Any]  # process groups of ranks that may share samples
    agreed: Agreed  # what activations are like


class Dispatched(Mapping[str, Any]):
    """A rank's share of one step after dispatch; a mapping of its fields, each in the form in which it came.

    The dispatcher makes it of a plan that all ranks hold, and making it moves the fields that the rank `held`, by the
    groups of `ranks`. Later exchanges go by those of `onward`.

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

    def __init__(
        self, plan: StepPlan, gathered: Gathered, held: Mapping[str, Field], shared: Shared, ranks: Ranks,
        onward: Ranks,
    ) -> None:  # fmt: skip
        began = time.perf_counter()
        self.step, self.rank, self.ranks, self._shared = plan, ranks.rank, ranks, shared
        on_cuda = any(kind.device == "cuda" for kind in gathered.kinds.values())
        # Decided from what all ranks said, as one without samples knows no device of its own.
        usual = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
        self._device = usual if shared.device is None else shared.device
        self._ways = ways_from_home(plan, self.rank)
        self._last = list(self._ways.values())[-1]  # of the samples to the last phase
        self._inputs: dict[str, PhaseInputs] = {}  # by phase that others feed, as far as they were asked for
        ways = {name: self._ways[shared.way_of_field.get(name, self._last.name)] for name in gathered.kinds}
        self._trips = {name: way.trip(name, gathered) for name, way in ways.items()}
        self._fields = self._moved(self._trips, held, forth=True)
        self.ranks, self.exchange_s = onward, time.perf_counter() - began

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
        return write(self._fields[field])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def slot_bounds(self, phase: str | None = None) -> NDArray[np.int64]:
        """Return where this rank's micro-batches of a phase begin and end among its items: int64[num_slots + 1]."""
        plan = self._plan_of(phase)
        slots = plan.slot_of_sample[self._way(phase).here]
        return np.searchsorted(slots, np.arange(plan.num_slots + 1))

    def lengths(self, phase: str | None = None) -> NDArray[np.int64]:
        """Return the lengths of this rank's items of a phase, by default the last, as the plan has them: int64[k].

        Where ranks share samples, of its shares, padding included.
        """
        return self._way(phase).sizes_here(self._plan_of(phase).lengths)

    def planned(self, phase: str) -> tuple[int, NDArray[np.int64]]:
        """Return this rank's number in a phase, with layouts that of its replica, and the lengths of its items."""
        rank = self.rank
        if isinstance(self.step, LaidOutStepPlan):
            rank = self.step.setup.mesh_of(phase).place_of(rank)[1]
        return rank, self.step[phase].lengths[self._way(phase).here]

    def _plan_of(self, phase: str | None) -> DispatchPlan:
        return self.step.last if phase is None else self.step[phase]

    def _way(self, phase: str | None) -> Way:
        if phase is None:
            return self._last
        if phase not in self._ways:
            raise KeyError(f"no phase {phase!r}; there are {', '.join(self._ways)}")
        return self._ways[phase]

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
        return self._shared.groups[mine[0]] if mine and len(mine[0]) > 1 else None

    def pieces(self, slot: int, phase: str | None = None) -> PiecesOnRank:
        """Return what this rank holds in a slot: parts of samples, in order, and where they begin in the slot.

        With layouts, ask :meth:`shards` for positions.
        """
        if isinstance(self.step, LaidOutStepPlan):
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
        return [field.flat for field in self._fields.values()]

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

            Where ranks share samples, there are two kinds of results. Entries as long as :meth:`lengths` are results of
            tokens: they come home put together, without padding. All others are results of samples: those of the first
            rank of each group come home, so reduce them over the group before.
        phase : str, optional
            The encoder whose items the entries are results of; they come home as a list by item.

        Returns
        -------
        The same form as was given, in the order in which the samples came.
        """
        trips, fields, way = self._trips, self._fields, self._way(phase)
        if results is not None:
            trips, fields = self._trips_of_results(results, way)
        home = {name: write(field) for name, field in self._moved(trips, fields, forth=False).items()}
        alone = set(home) == {SINGLE_FIELD} if results is None else not isinstance(results, Mapping)
        return home[SINGLE_FIELD] if alone else home

    def _trips_of_results(self, results: Any, way: Way) -> tuple[dict[str, Trip], dict[str, Field]]:
        """Tell all ranks what results are like, and find their way home."""
        held, failure = attempt(lambda: _read_results(results, len(way.here), self.ranks) if self.ranks.leads else {})
        kinds = {name: (field.kind, field.rows) for name, field in (held or {}).items()}
        message = Message(count=len(way.here), fields=kinds, error=None if failure is None else summary(failure))
        parts = [name for name, (_, rows) in kinds.items() if way.are_parts(rows)]
        said: list[tuple[Message, list[str]]] = self.ranks.say((message, parts))
        if failure is not None:
            raise failure
        check_failed("reading results", [each.error for each, _ in said])
        gathered, of_all = put_together([each for each, _ in said]), [names for each, names in said if each.count]
        return {
            name: way.trip_of_results(name, gathered, all(name in names for names in of_all)) for name in gathered.kinds
        }, held or {}

    def _moved(self, trips: Mapping[str, Trip], held: Mapping[str, Field], forth: bool) -> dict[str, Field]:
        """Bring fields from home or back, in one all-to-all."""
        if not trips:
            return {}
        moves, flats, windows = [], [], dict[str, Windows | None]()
        for name, trip in trips.items():
            kind = trip.before[0]
            known = name in held and held[name].kind.form
            flat = held[name].flat.to(self._device, non_blocking=True) if known else nothing(kind, self._device)
            # Of a tensor group's shard, which all of them are to have, each gets one window.
            windows[name] = None if trip.shards is None else Windows.of(trip.shards, trip.way.name, self.ranks)
            if not forth and (one := windows[name]) is not None:
                flat = one.mine(flat)
            moves.append(trip.move(forth))
            flats.append(flat)
        arrived = {}
        for (name, trip), flat in zip(trips.items(), exchange(self.ranks, flats, moves), strict=True):
            whole = one.gathered(flat) if forth and (one := windows[name]) is not None else flat
            kind, rows = trip.after if forth else trip.before
            arrived[name] = Field(kind, whole.cpu() if kind.device == "cpu" else whole, rows)
        return arrived

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
        # Every replica peer has activations of its own.
        ranks = self.ranks.without_replicas()
        return taken.brought(tensors, ranks, self._shared.agreed, self._device, differentiable)

    def _taken_by(self, phase: str) -> PhaseInputs:
        """Return what a phase takes, composed once."""
        *encoders, last = self.step.phases
        if phase != last or not encoders:
            which = f"encoders feed the last, {last!r}" if encoders else "there is no encoder"
            raise KeyError(f"phase {phase!r} is fed by none; {which}")
        if phase not in self._inputs:
            self._inputs[phase] = PhaseInputs.on(self.step, phase, self.ranks)
        return self._inputs[phase]


def _read_results(results: Any, num_samples: int, ranks: Ranks) -> dict[str, Field]:
    """Read what was computed of each of so many samples; ValueError if entries are not one a sample."""
    fields = read_fields(results, ranks.memory, "results")
    for name, field in fields.items():
        if len(field.rows) != num_samples or isinstance(field.rows, Ragged):
            what = f"result {name!r}" if name else "results"
            raise ValueError(f"{what} must have an entry for each of {num_samples} samples, got {len(field.rows)}")
    return fields
