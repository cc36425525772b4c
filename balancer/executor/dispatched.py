"""What dispatch returns: a rank's balanced mini-batch, the ways back, and the exchanges on to the next phase."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.differentiable import move_activations
from balancer.executor.features import Features
from balancer.executor.fields import Field, Outline, Spec, read_field, write_field
from balancer.executor.gathering import Gathered, MiniBatch, Status, gather
from balancer.executor.peers import Peers
from balancer.executor.ragged_tensor import RaggedTensor
from balancer.executor.route import Route
from balancer.executor.ways import Leg, Way, check_ways, inputs_route, ways_of
from balancer.executor.wire import Cargo, Values
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan, own_name
from balancer.problem.phases import SINGLE_PHASE

__all__ = ["SINGLE_FIELD", "Dispatched"]

SINGLE_FIELD = ""
"""What the one field is called of a mini-batch that came without names."""


class Dispatched(Mapping[str, Any]):
    """A rank's share of one step after dispatch; a mapping of its fields, each in the form in which it came.

    Attributes
    ----------
    step : StepPlan
        The same on all ranks.
    rank : int
    data : dict or the one field
        The balanced mini-batch, as it was handed in.
    """

    def __init__(
        self,
        plan: StepPlan,
        peers: Peers,
        gathered: Gathered,
        way_of_field: Mapping[str, str],
        home: Mapping[str, Field],
        features: Features,
        device: torch.device,
    ) -> None:
        self.step, self.rank = plan, peers.rank
        self._peers, self._gathered, self._home, self._features, self._device = peers, gathered, home, features, device
        self._ways = ways_of(plan)
        self._routes = {name: way.route(self.rank, peers.replica is not None) for name, way in self._ways.items()}
        self._inputs: dict[str, tuple[Route, NDArray[np.int64], dict[str, int]]] = {}
        self._legs: dict[str, Leg] = {}
        check_ways(way_of_field, self._ways)
        for name in gathered.specs:
            way = self._ways[way_of_field[name]] if name in way_of_field else self._last
            self._legs[name] = way.leg(name, gathered, self.rank, self._routes[way.name])
        self._memory, self._fields = self._brought()

    @property
    def plan(self) -> DispatchPlan | StepPlan:
        """The plan, the same on all ranks: that of the step, or, where nobody named phases, that of its only one."""
        return self.step[SINGLE_PHASE] if self.step.is_single else self.step

    # The mini-batch.

    @property
    def samples(self) -> NDArray[np.int64]:
        """The samples that this rank runs in the last phase, in order; numbered rank after rank, as they came."""
        return self._last.target.samples_on_rank(self.rank)

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
        plan = self.step[phase or list(self.step.phases)[-1]]
        slots = plan.slot_of_sample[plan.samples_on_rank(self.rank)]
        return np.searchsorted(slots, np.arange(plan.num_slots + 1))

    @property
    def _last(self) -> Way:
        return list(self._ways.values())[-1]

    # Moving.

    def _brought(self) -> tuple[Tensor | None, dict[str, Field]]:
        """Bring all fields from home, in one all-to-all; return them, and the memory in which they arrived."""
        outlines = {name: leg.here for name, leg in self._legs.items()}
        if not self._peers.leads:
            return self._moved({}, outlines, forth=True)
        leaving = {name: leg.leaving(self._home[name].values) for name, leg in self._legs.items()}
        return self._moved(leaving, outlines, forth=True)

    def restore(self, results: Any = None, phase: str | None = None) -> Any:
        """Bring samples, or what was computed of them, home.

        Parameters
        ----------
        results : optional
            In any form that dispatch takes, with an entry for each of this rank's samples, in their order; or a mapping
            of names to such. By default the mini-batch itself, so that restore is the inverse of dispatch: that takes
            one all-to-all. Results take one small collective more, as their lengths are not known. Those of replica
            peers are not looked at: they get what their leader does.
        phase : str, optional
            An encoder, if the entries are of its items; they come home as a list by item.

        Returns
        -------
        As it was given, in the order in which the samples came.
        """
        if results is None:
            held = {name: field.on(self._device) for name, field in self._fields.items() if self._peers.leads}
            outlines = {name: field.outline for name, field in self._home.items()}
            fields = self._moved(held, outlines, forth=False)[1]
            written = {name: write_field(field) for name, field in fields.items()}
            return written[SINGLE_FIELD] if set(written) == {SINGLE_FIELD} else written
        named = dict(results) if isinstance(results, Mapping) else {SINGLE_FIELD: results}
        found = self._restored(named, self._way(phase))
        return found if isinstance(results, Mapping) else found[SINGLE_FIELD]

    def _way(self, phase: str | None) -> Way:
        if phase is None:
            return self._last
        if phase not in self._ways:
            raise KeyError(f"no phase {phase!r}; there are {', '.join(self._ways)}")
        return self._ways[phase]

    def _moved(
        self, values: Mapping[str, Values], outlines: Mapping[str, Outline], forth: bool
    ) -> tuple[Tensor | None, dict[str, Field]]:
        cargoes = []
        for name, leg in self._legs.items():
            spec, route = self._gathered.specs[name], leg.route if forth else leg.route.back()
            cargoes.append(self._cargo(spec, route, values.get(name)))
        if not cargoes:
            return None, {}
        memory, moved = self._peers.move(cargoes, self._device, None if forth else self._memory)
        fields = {}
        for (name, leg), rows in zip(self._legs.items(), moved, strict=True):
            outline = outlines[name]
            put = rows if forth else leg.come_home(rows, outline, self._device)
            fields[name] = Field(outline, _where_it_was(outline.spec, put))
        return memory if any(cargo.by_row for cargo in cargoes) else None, fields

    def _cargo(self, spec: Spec, route: Route, values: Values | None) -> Cargo:
        by_row = spec.by_row and spec.device == self._device.type  # else it moves to another device, in one piece
        return Cargo(route, spec.torch_dtype, spec.trailing, by_row, values)

    def _restored(self, results: Mapping[str, Any], way: Way) -> dict[str, Any]:
        read: MiniBatch | Exception = MiniBatch(0, {}, {})
        if self._peers.leads:
            read = _read_results(results, len(way.target.samples_on_rank(self.rank)))
        if isinstance(read, Exception):
            gather(self._peers, None, Status.FAILED)
            raise read
        return self._sent_home(read, gather(self._peers, read, Status.READY), way)

    def _sent_home(self, batch: MiniBatch, told: Gathered, way: Way) -> dict[str, Any]:
        home = way.source.samples_on_rank(self.rank)
        here = way.target.samples_on_rank(self.rank)
        outlines, cargoes = {}, []
        for name, spec in told.specs.items():
            rows = np.empty(len(way.target.samples), dtype=np.int64)
            rows[way.target.samples] = told.lengths[name]
            outlines[name] = Outline(spec, rows[home])
            given = batch.fields.get(name)
            known = given is not None and given.spec.form != ""
            values = given.on(self._device) if given is not None and known else outlines[name].nothing(self._device)
            route = self._routes[way.name].with_lengths(rows[home], rows[here]).back()
            cargoes.append(self._cargo(spec, route, values if self._peers.leads else None))
        moved = self._peers.move(cargoes, self._device)[1] if cargoes else []
        return {
            name: write_field(Field(outline, _where_it_was(outline.spec, values)))
            for (name, outline), values in zip(outlines.items(), moved, strict=True)
        }

    # On to the next phase.

    @torch.compiler.disable
    def inputs(
        self, phase: str, outputs: Mapping[str, Tensor], own: Tensor | None = None, differentiable: bool = True
    ) -> RaggedTensor:
        """Bring what encoders put out to the phase that takes it, in one all-to-all; gradients take the way back.

        Parameters
        ----------
        phase : str
            The phase that takes it.
        outputs : mapping of str to Tensor[elements, ...]
            Of every phase that feeds it, the outputs of this rank's items, one after the other in their order; of no
            rows where the rank has no item.
        own : Tensor[elements, ...], optional
            What the samples have besides, such as embedded text: the pieces of this rank's samples one after the other,
            in the order of the field that was dispatched for ``"llm:own"``. May be left out if there is none.
        differentiable : bool
            False for encoders that are frozen; the same on all ranks.

        Returns
        -------
        RaggedTensor
            A row for each of this rank's samples, its parts in the order in which the phase reads them.

        Notes
        -----
        All ranks call it, those without a sample too, and all of them must reach its backward: a rank without a sample
        of the phase adds :func:`balancer.executor.anchored` to its loss. Dtypes are brought to the widest of all ranks;
        that, and the shape, is agreed in a small collective at the first call. ``torch.compile`` breaks the graph here,
        as split sizes change every step.
        """
        if phase not in self._inputs:
            self._inputs[phase] = inputs_route(self.step, phase, self.rank)
        route, lengths, held = self._inputs[phase]
        tensors = _in_order(phase, outputs, own, held)
        values = self._features.alike(phase, tensors, list(held.values()), self._device)
        return RaggedTensor(move_activations(values, route, self._peers, differentiable), lengths)

    def lengths(self, phase: str | None = None) -> NDArray[np.int64]:
        """Return the lengths of this rank's items of a phase, by default the last, as the plan has them: int64[k]."""
        plan = self.step[phase or list(self.step.phases)[-1]]
        return plan.lengths[plan.samples_on_rank(self.rank)]

    def tensors(self) -> list[Tensor]:
        """Return the memory that the fields lie in."""
        whole = [field.values for field in self._fields.values() if isinstance(field.values, Tensor)]
        return whole if self._memory is None else [self._memory, *whole]


def _where_it_was(spec: Spec, values: Values) -> Values:
    """Return what travelled on a device on the host, if it came from there."""
    return values.cpu() if isinstance(values, Tensor) and spec.device == "cpu" else values


def _read_results(results: Mapping[str, Any], num_samples: int) -> MiniBatch | Exception:
    """Read what was computed of each of so many samples, or say why it cannot be used."""
    try:
        fields = {name: read_field(name or "results", data) for name, data in results.items()}
        for name, field in fields.items():
            outline = field.outline
            if outline.num_samples != num_samples or outline.counts is not None:
                what = f"result {name!r}" if name else "results"
                raise ValueError(
                    f"{what} must have an entry for each of {num_samples} samples, got {outline.num_samples}"
                )
    except (TypeError, ValueError) as error:
        return error
    return MiniBatch(num_samples, fields, {})


def _in_order(
    phase: str, outputs: Mapping[str, Tensor], own: Tensor | None, held: Mapping[str, int]
) -> list[Tensor | None]:
    """Return the tensors stream after stream; KeyError or ValueError names one that is missing or has other rows."""
    given: dict[str, Tensor | None] = {f"{name}:out": tensor for name, tensor in outputs.items()}
    if strange := sorted(set(given) - set(held)):
        raise KeyError(f"{strange[0].removesuffix(':out')!r} does not feed phase {phase!r}")
    given[own_name(phase)] = own
    for name, elements in held.items():
        tensor = given.get(name)
        if name not in given:
            raise KeyError(
                f"outputs must have what {name.removesuffix(':out')!r} puts out; of no rows if it has no item"
            )
        if (0 if tensor is None else len(tensor)) != elements:
            what = "own" if name == own_name(phase) else f"outputs[{name.removesuffix(':out')!r}]"
            rows = "is missing" if tensor is None else f"has {len(tensor)} rows"
            raise ValueError(f"{what} must have {elements} rows on this rank, one for each element, but {rows}")
    return [given[name] for name in held]
