"""Pipeline stages: how the modules of a model are cut into stages, and what each takes of a sample's work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import reduce
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel, Decoder, LengthPolynomial, Module, module, parse_cost
from balancer.cost.integer import at_least_one
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.step_times import PER_SECOND, GapTasks, StepTimes, TimedStep
from solvers.arguments import as_count, as_flag, as_integer
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError
from solvers.pipeline import (
    MultiplexResult,
    OpOrder,
    PipelineRequest,
    PipelineRun,
    TaskRequest,
    gpipe,
    interleaved,
    one_f_one_b,
    run,
    run_turns,
)
from solvers.pipeline.parts import held_by_replica
from solvers.pipeline.solver import PipelineProblem

Ints = NDArray[np.int64]
Times = tuple[int, ...]
Names = tuple[str, ...]
_ROOM = 2**58  # what all ops of a step together take is below it
_TOTAL_LENGTH, _LONGEST = 2**24, 2**17  # of a step: up to these, FLOPs of all stages fit
_USUAL_LENGTH = 4096  # at which the head of a language model is so many layers as it is taken for
_OF_OPS: dict[str, Any] = {"op_order": "1f1b", "frozen": (), "recompute": ()}
"""Fields that plan files hold only where they are not these."""
_PARTS = 16  # of a layer: what a vocabulary head takes is rounded to them


@dataclass(frozen=True, slots=True)
class PipelineStages:
    """The pipeline of one replica: S stages, on S devices or fewer, that run 1F1B or GPipe.

    With it a data-parallel rank is a *replica*: all the processes that hold one copy of the model. Encoders are first
    stages: they compute an item on the replica of its sample, in its slot. :meth:`of` makes it from a layout.

    Attributes
    ----------
    forward : mapping of str to tuple of int
        For each phase (``"all"``, if phases have no names), the time of one unit of its work in the forward of every
        stage; 0 if it has no part in a stage. Fractions, as :class:`fractions.Fraction` or text, are made whole: all
        times, overheads and hops are multiplied by one number.
    backward : mapping of str to tuple of int
        The same for the backward; by default twice the forward. First stages whose backwards take nothing run none.
    costs : mapping of str to str or CostModel
        An item's work in a phase, if it differs from the phase's cost.
    chunks : int
        Stages of each device; over 1 the order is interleaved 1F1B.
    hop : int
        The time until the next stage has the data sent to it, if it is on another device.
    overhead : int
        A fixed time of each op, in every slot.
    in_flight_tokens : int or None
        The most that a device may hold between forwards and backwards, in lengths of the last phase.
    tied : bool
        Whether an op waits for the same op in all replicas, as with shared parameters or experts (FSDP): it takes as
        long as the slowest, and all replicas end together.
    gaps : StepTimes or None
        Encoders run in the gaps of the pipeline. These are their times and those of stages: :meth:`of_times` makes it.
    op_order : str
        ``"1f1b"``, which with `chunks` over 1 is interleaved, or ``"gpipe"``: all forwards, then all backwards.
    frozen, recompute : tuple of str
        Phases that are not trained, and phases whose backwards run the forward again. They do not change times, only
        which ops run (:meth:`~balancer.cuts.pipelines.plan.PipelinePlan.device_ops`).

    Examples
    --------
    >>> PipelineStages({"vision": (2, 0, 0), "llm": (0, "1/2", "1/2")}).forward
    {'llm': (0, 1, 1), 'vision': (4, 0, 0)}
    """

    forward: Mapping[str, Times] = field(hash=False)
    backward: Mapping[str, Times] | None = field(default=None, hash=False)
    costs: Mapping[str, str | CostModel] = field(default_factory=dict, hash=False)
    chunks: int = 1
    hop: int = 0
    overhead: int = 0
    in_flight_tokens: int | None = None
    tied: bool = False
    gaps: StepTimes | None = None
    op_order: str = "1f1b"
    frozen: Names = ()
    recompute: Names = ()

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        rows_of = sorted(_as_mapping("forward", self.forward).items())  # in one order, however they come from a file
        ahead = {name: _as_times("forward", name, row) for name, row in rows_of}
        if not ahead:
            raise ArgumentError("forward", "have an entry for each module", "none")
        back = {name: tuple(2 * t for t in row) for name, row in ahead.items()}
        if self.backward is not None:
            given = _as_mapping("backward", self.backward)
            if set(given) != set(ahead):
                raise ArgumentError("backward", f"be of the modules of {{forward}}: {', '.join(ahead)}", list(given))
            back = {name: _as_times("backward", name, given[name]) for name in ahead}
        besides = [_as_time(name, getattr(self, name)) for name in ("hop", "overhead")]
        rows = [*ahead.values(), *back.values()]
        for name, row in (*ahead.items(), *back.items()):
            if len(row) != len(rows[0]) or not row:
                raise ArgumentError(
                    f"forward[{name!r}]", f"have a time for each of {len(rows[0]) or 1} stages", len(row)
                )
        scale = lcm(*(t.denominator for row in (*rows, besides) for t in row))
        set_(self, "forward", {name: tuple(int(t * scale) for t in row) for name, row in ahead.items()})
        set_(self, "backward", {name: tuple(int(t * scale) for t in row) for name, row in back.items()})
        for name, value in zip(("hop", "overhead"), besides, strict=True):
            set_(self, name, int(value * scale))
        set_(self, "chunks", as_count("chunks", self.chunks))
        set_(self, "tied", as_flag("tied", self.tied))
        if self.num_stages % self.chunks:
            raise ArgumentError("chunks", f"divide the {self.num_stages} stages", self.chunks)
        if self.op_order not in ("1f1b", "gpipe"):
            raise ArgumentError("op_order", "be '1f1b' or 'gpipe'", repr(self.op_order))
        if self.op_order == "gpipe" and self.chunks > 1:
            raise UsageError("{chunks} > 1 are interleaved, which is an {op_order} of '1f1b'")
        for name in ("frozen", "recompute"):
            set_(self, name, _as_names(name, getattr(self, name), ahead))
        if self.in_flight_tokens is not None:
            set_(self, "in_flight_tokens", as_integer("in_flight_tokens", self.in_flight_tokens, 1))
        set_(
            self,
            "costs",
            {name: str(parse_cost(cost)) for name, cost in sorted(_as_mapping("costs", self.costs).items())},
        )
        for name, cost in self.costs.items():
            if name not in ahead:
                raise ArgumentError("costs", f"be of the modules of {{forward}}: {', '.join(ahead)}", repr(name))
            if not parse_cost(cost).additive:
                raise ArgumentError(f"costs[{name!r}]", "be a cost that adds up over samples", cost)

    @classmethod
    def of(
        cls,
        layout: Mapping[str, int] | int,
        models: Mapping[str, str | Module] | None = None,
        *,
        pieces: Mapping[str, int | None] | None = None,
        chunks: int = 1,
        recompute: bool | Iterable[str] = False,
        frozen: Iterable[str] = (),
        hop: int = 0,
        overhead: int = 0,
        in_flight_tokens: int | None = None,
        tied: bool = False,
        op_order: str = "1f1b",
    ) -> PipelineStages:
        """Cut modules into stages, as evenly as their layers allow.

        Parameters
        ----------
        layout : mapping of str to int, or int
            Phases and how many stages they are cut into, in order: ``{"vision+audio": 1, "llm": 3}``, where both
            encoders are in the first of four stages. A number: of the only phase.
        models : mapping of str to str or Module, optional
            Of each phase, its model, as :func:`balancer.cost.module` takes it: work is then FLOPs, whole layers are in
            a stage, and a language model's last stage has its vocabulary head besides. Without, work is what the
            phases' costs say, which need one unit, and each stage of a phase takes the same. (The head is taken for as
            many layers as at 4,096 tokens, and so are layers that are unlike, as where some have windows, so that a
            phase's work is one number: bounds are better and plans too.)
        pieces : mapping of str to int, optional
            Of a phase whose items are cut into pieces, such as tiles, their length: attention stays within one.
        chunks : int
            Stages of each device.
        recompute : bool or iterable of str
            Whether backwards run the forward again, and so take three times as long as it, not twice: of all phases, or
            of these.
        frozen : iterable of str
            Phases that are not trained. An encoder's backward then takes nothing; that of the last phase, if an encoder
            before it is trained, as long as its forward (gradients of inputs alone).
        hop, overhead, in_flight_tokens, tied, op_order
            As the fields are, in the unit of the times: one FLOP or one unit of cost, over so many as
            :attr:`forward` counts.

        Examples
        --------
        >>> stages = PipelineStages.of({"vision": 1, "llm": 2})
        >>> stages.forward, stages.backward["llm"]
        ({'llm': (0, 1, 1), 'vision': (2, 0, 0)}, (0, 2, 2))
        >>> stages = PipelineStages.of({"vision": 1, "llm": 3}, {"vision": "internvit-6b", "llm": "qwen2-7b"})
        >>> stages.forward
        {'llm': (0, 160, 144, 179), 'vision': (1, 0, 0, 0)}
        """
        spans = _spans({SINGLE_PHASE: layout} if isinstance(layout, int) else layout)
        names, count = list(spans), max(last for _, last in spans.values())
        still = {frozen} if isinstance(frozen, str) else set(frozen)
        again = (set(names) if recompute else set()) if isinstance(recompute, bool) else set(recompute)
        if models is not None and set(models) != set(names):
            raise ArgumentError("models", f"be of the phases of {{layout}}: {', '.join(names)}", list(models))
        for argument, given in (("frozen", still), ("recompute", again)):
            if odd := sorted(given - set(names)):
                raise ArgumentError(argument, f"be phases of {{layout}}: {', '.join(names)}", repr(odd[0]))
        parts = _even_parts(spans, count) if models is None else _parts_of_models(spans, count, models, pieces or {})
        trained = [name for name in names[:-1] if name not in still]
        backward: dict[str, Times] = {}
        for name, row in parts.forward.items():
            times = 2
            if name in still:
                times = int(name == names[-1] and bool(trained))
            times += name in again and times > 0
            backward[name] = tuple(times * t for t in row)
        return cls(
            parts.forward, backward, parts.costs, chunks, hop, overhead, in_flight_tokens, tied,
            op_order=op_order, frozen=tuple(still), recompute=tuple(again),
        )  # fmt: skip

    @classmethod
    def of_times(cls, times: StepTimes) -> PipelineStages:
        """Return the pipeline of a layout whose encoders run in its gaps; units are tenths of nanoseconds."""
        if len(times.piped) != 1:  # of several, work and times would have to be in one order
            raise UsageError(
                "with encoders in its gaps a pipeline is of one module, and these {times} have {what}",
                what=", ".join(times.piped) or "none",
            )
        ops = times.of_ops()
        ahead, back = (dict(zip(times.piped, ops[way].tolist(), strict=True)) for way in ("forward", "backward"))
        return cls(ahead, back, chunks=times.chunks, hop=round(times.hop * PER_SECOND), gaps=times,
                   frozen=tuple(name for name in ahead if times.rates[name].backward == 1),
                   recompute=tuple(name for name in ahead if times.rates[name].backward > 2))  # fmt: skip

    @property
    def num_stages(self) -> int:
        """S."""
        return len(next(iter(self.forward.values())))

    @property
    def num_devices(self) -> int:
        """Devices that work at the same time; stage s is on device ``s % num_devices``."""
        return self.num_stages // self.chunks

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that run in the pipeline, or in its gaps."""
        return (*self.forward, *(() if self.gaps is None else self.gaps.encoders))

    def check_phases(self, names: Sequence[str]) -> None:
        """Raise ValueError unless the stages are those of exactly these phases."""
        if set(names) != set(self.phases):
            raise UsageError(
                "{stages} must be of the phases {named}, got {given}", named=", ".join(names),
                given=", ".join(self.phases),
            )  # fmt: skip

    def check_replicas(self, num_ranks: int) -> None:
        """Raise ValueError unless there are as many ranks as times in gaps are of, if they are of some."""
        if self.gaps is not None and self.gaps.replicas != num_ranks:
            raise ArgumentError(
                "num_ranks",
                f"be {self.gaps.replicas}, the replicas of the layout whose gaps encoders run in",
                num_ranks,
            )

    @property
    def both_ways(self) -> Ints:
        """Time of one unit of each module's work in the forward of each stage, then in the backward: int64[M, 2 S]."""
        return np.hstack([np.array(list(rows.values()), dtype=np.int64) for rows in (self.forward, self._backward)])

    @property
    def _backward(self) -> Mapping[str, Times]:
        return self.backward or {}

    def work_and_tasks(
        self, items: Mapping[str, tuple[CostModel, Ints, Ints]], num_samples: int
    ) -> Ints | TimedStep:  # fmt: skip
        """Return :meth:`work`, or with encoders in gaps all that there is to do."""
        if self.gaps is None:
            return self.work(items, num_samples)
        return self.gaps.timed({name: (lengths, sample) for name, (_, lengths, sample) in items.items()}, num_samples)

    def work(self, of_phase: Mapping[str, tuple[CostModel, Ints, Ints]], num_samples: int) -> Ints:
        """Return each sample's work in each module, int64[n, M], from cost, lengths and samples of phases' items."""
        table = np.zeros((num_samples, len(self.forward)), dtype=np.int64)
        for m, name in enumerate(self.forward):
            cost, lengths, sample = of_phase[name]
            cost = parse_cost(self.costs[name]) if name in self.costs else cost
            np.add.at(table[:, m], sample, cost.sample_costs(lengths))
        return table

    def least_work(
        self, of_phase: Mapping[str, tuple[CostModel, Ints, Ints]], num_samples: int
    ) -> tuple[Ints, Ints]:  # fmt: skip
        """Return of each sample the time on the busiest device, and the way there and back: int64[n].

        No replica ends before that device has done all of its samples, nor before any sample has been through it.
        """
        work = self.work(of_phase, num_samples)
        of_stages = self.both_ways.reshape(-1, 2, self.num_stages).sum(axis=1)  # [M, S]
        of_devices = of_stages.reshape(len(of_stages), self.chunks, -1).sum(axis=1)
        busiest = int((work.sum(axis=0) @ of_devices).argmax()) if num_samples else 0
        return work @ of_devices[:, busiest], work @ of_stages.sum(axis=1)

    def order(self, num_slots: int) -> OpOrder:
        """Return what the devices run in turn."""
        lead = self.forward_only
        if self.chunks > 1:
            return interleaved(num_slots, self.num_devices, self.chunks, lead)
        if self.op_order == "gpipe":
            return gpipe(num_slots, self.num_stages, lead)
        return one_f_one_b(num_slots, self.num_stages, lead)

    @property
    def forward_only(self) -> int:
        """So many first stages run no backward."""
        back = self.both_ways[:, self.num_stages :].max(axis=0) + self._fixed["backward_overhead"]
        return int(np.argmax(back > 0)) if (back > 0).any() else self.num_stages

    def kind_of_backward(self, stage: int) -> str:
        """Return what the backward of a stage makes: ``"none"``, the ``"input"``'s gradient alone, or ``"full"``."""
        if stage < self.forward_only:
            return "none"
        return "input" if all(name in self.frozen for name in self.phases_of(stage)) else "full"

    def recomputes(self, stage: int) -> bool:
        """Return whether the backward of a stage runs the forward again."""
        return stage >= self.forward_only and any(name in self.recompute for name in self.phases_of(stage))

    def phases_of(self, stage: int) -> Names:
        """The phases that have a part in a stage."""
        return tuple(name for name, row in self.forward.items() if row[stage])

    def run(self, slots: Ints, sizes: Ints | None = None) -> PipelineRun:
        """Run one replica exactly.

        Parameters
        ----------
        slots : int64[K, M]
            Work of each slot in each module.
        sizes : int64[K], optional
            What each slot holds in every stage.
        """
        return run(slots, order=self.order(len(slots)), sizes=sizes, **self._ops)

    def run_tasks(
        self, slots: Ints, slot_of_task: Ints, tasks: GapTasks, turns: tuple[Ints, Ints, Ints]
    ) -> MultiplexResult:
        """Run one replica with tasks in its gaps exactly.

        `slots`, int64[K, M], has the work of each slot in each module; `turns` the device of each task, and the places
        of its forward and backward among all that the device runs.
        """
        asked = PipelineRequest(slots, order=self.order(len(slots)), **self._ops)
        beside = TaskRequest(slot_of_task, tasks.forward, tasks.backward, self.num_devices, tasks.size)
        return run_turns(asked, beside, *turns)

    @property
    def _fixed(self) -> dict[str, Ints]:
        """What every op of a stage takes besides."""
        if self.gaps is not None:
            return {name: each for name, each in self.gaps.of_ops().items() if name.endswith("overhead")}
        return dict.fromkeys(("forward_overhead", "backward_overhead"), np.full(self.num_stages, self.overhead))

    @property
    def _ops(self) -> dict[str, Any]:
        """What ops take, as solvers have it."""
        rows = self.both_ways
        return {
            "forward": rows[:, : self.num_stages],
            "backward": rows[:, self.num_stages :],
            "hop": self.hop,
        } | self._fixed

    def run_seconds(self, seconds: NDArray[np.float64], hop: float, sizes: Ints | None = None) -> PipelineRun:
        """Run one replica of which it is known how long each op takes; the run is in nanoseconds.

        `seconds`, float64[K, 2 S], are of each slot's forward in each stage, then of the backwards; `sizes`, int64[K,
        S], what each slot holds in each stage.
        """
        return self._run_ops(np.rint(seconds * 1e9).astype(np.int64), round(hop * 1e9), sizes)

    def _run_ops(self, durations: Ints, hop: int, sizes: Ints | None = None) -> PipelineRun:
        """Run one replica from how long each op takes, int64[K, 2 S]."""
        s, each = self.num_stages, np.eye(2 * self.num_stages, dtype=np.int64)
        each[:, s : s + self.forward_only] = 0
        return run(durations, each[:, :s], each[:, s:], self.order(len(durations)), hop=hop, sizes=sizes)

    def run_of(self, slots: Ints, rank: int, sizes: Ints | None = None) -> PipelineRun:
        """Run one of all replicas exactly, from the work of each slot in each module, int64[R, K, M].

        Where they are tied, what a device waits for its likes within an op counts as busy.
        """
        return self._run_tied(slots, sizes) if self.tied else self.run(slots[rank], sizes)

    def _run_tied(self, slots: Ints, sizes: Ints | None = None) -> PipelineRun:
        return self._run_ops((slots @ self.both_ways).max(axis=0) + self.overhead, self.hop, sizes)

    def makespans(self, slots: Ints) -> Ints:
        """Return when each replica ends, int64[R], from the work of each slot in each module, int64[R, K, M]."""
        if self.tied:
            return np.full(len(slots), self._run_tied(slots).makespan, dtype=np.int64)
        return np.array([self.run(replica).makespan for replica in slots], dtype=np.int64)

    def perfect(self, totals: Ints, num_replicas: int, num_slots: int) -> tuple[int, int]:
        """Return the makespan without any bubble, as a fraction, from the work in each module, int64[M]."""
        busy = sum(int(t) * sum(row) for t, row in zip(totals, self.both_ways.tolist(), strict=True))
        ahead, back = self._fixed.values()
        fixed = int(ahead.sum() + back[self.forward_only :].sum())
        return busy + num_replicas * num_slots * fixed, num_replicas * self.num_devices

    def held_by_a_rank(self, work: Ints, makespan: int, num_ranks: int, num_slots: int) -> tuple[Ints, int]:
        """Return a cost of samples, and how much of it a rank holds at most in a step of no more than `makespan`."""
        keywords = self.solver_keywords() | {"in_flight_cap": None, "allow_empty": True}
        asked = PipelineRequest(work, num_replicas=num_ranks, num_slots=num_slots, **keywords)
        return held_by_replica(PipelineProblem.from_request(asked), makespan)

    def solver_keywords(self) -> dict[str, Any]:
        """Return these as :func:`solvers.schedule_pipeline` takes them."""
        named = {"in_flight_cap": self.in_flight_tokens, "chunks": self.chunks, "tied": self.tied}
        return named | {"order": self.op_order, **self._ops}

    def to_json(self) -> dict[str, Any]:
        """Return the fields, or the times from which all of them are made; :meth:`from_json` reads them back."""
        if self.gaps is not None:
            return {"gaps": self.gaps.to_json()}
        found = {name: value for name, value in asdict(self).items() if name not in ("gaps", *_OF_OPS)}
        return found | self.of_ops

    @property
    def of_ops(self) -> dict[str, Any]:
        """The fields that older releases do not know, where they say anything."""
        if self.gaps is not None:  # whose times say all of it
            return {}
        return {name: value for name, unset in _OF_OPS.items() if (value := getattr(self, name)) != unset}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PipelineStages:
        """Read back what :meth:`to_json` wrote."""
        return cls(**found) if "gaps" not in found else cls.of_times(StepTimes.from_json(found["gaps"]))

    def in_words(self) -> str:
        """Say what they are, for a report."""
        plain = "GPipe" if self.op_order == "gpipe" else "1F1B"
        order = f"interleaved 1F1B of {self.chunks} chunks" if self.chunks > 1 else plain
        gaps = "" if self.gaps is None else f", {' and '.join(self.phases[1:])} in its gaps"
        return f"{self.num_stages} pipeline stages, {order}{gaps}" + (", replicas tied" if self.tied else "")


@dataclass(frozen=True, slots=True)
class _Parts:
    """Modules, the time of a unit of their work in every stage, and what that unit is."""

    forward: dict[str, Times]
    costs: dict[str, str | CostModel]


def _as_mapping(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) and key for key in given):
        raise ArgumentTypeError(name, "map modules, such as 'llm', to what each has", repr(given))
    return given


def _as_names(field_: str, given: Any, known: Mapping[str, Any]) -> Names:
    names = {given} if isinstance(given, str) else set(given)
    if odd := sorted(names - set(known)):
        raise ArgumentError(field_, f"be of the modules of {{forward}}: {', '.join(known)}", repr(odd[0]))
    return tuple(sorted(names))


def _as_times(field_: str, name: str, row: Any) -> tuple[Fraction, ...]:
    if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
        raise ArgumentTypeError(f"{field_}[{name!r}]", "be a time for each stage", repr(row))
    return tuple(_as_time(f"{field_}[{name!r}]", value, i) for i, value in enumerate(row))


def _as_time(name: str, value: Any, index: int | None = None) -> Fraction:
    try:
        time = Fraction(int(value) if isinstance(value, np.integer) else value)
    except (TypeError, ValueError, ZeroDivisionError):
        time = Fraction(-1)
    if isinstance(value, bool | float) or time < 0:
        raise ArgumentError(name, "be integers or fractions, such as '1/3', and >= 0", repr(value), index)
    return time


def _spans(layout: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the first stage of each phase, and the one behind its last."""
    spans: dict[str, tuple[int, int]] = {}
    first = 0
    for names, given in _as_mapping("layout", layout).items():
        count = as_count(f"layout[{names!r}]", given)
        for name in names.split("+"):
            if not name or name in spans:
                raise ArgumentError(
                    "layout", "name each phase once, those in the same stages with + between", repr(names)
                )
            spans[name] = first, first + count
        first += count
    if not spans:
        raise ArgumentError("layout", "have an entry for each phase", "none")
    return spans


def _in_stages(counts: Sequence[int], first: int, count: int) -> Times:
    """Return times of all stages, those of some consecutive ones given."""
    return (*[0] * first, *counts, *[0] * (count - first - len(counts)))


def _even_parts(spans: Mapping[str, tuple[int, int]], count: int) -> _Parts:
    unit = lcm(*(last - first for first, last in spans.values()))
    forward = {
        name: _in_stages([unit // (last - first)] * (last - first), first, count)
        for name, (first, last) in spans.items()
    }
    return _Parts(forward, {})


def _parts_of_models(
    spans: Mapping[str, tuple[int, int]], count: int, models: Mapping[str, str | Module],
    pieces: Mapping[str, int | None],
) -> _Parts:  # fmt: skip
    """Cut models into layers, with a language model's vocabulary head behind the last; work is in one unit of FLOPs."""
    forward: dict[str, Times] = {}
    flops: dict[str, LengthPolynomial] = {}
    for name, (first, last) in spans.items():
        given = models[name]
        found = module(given) if isinstance(given, str) else given
        stages = last - first
        if found.layers < stages:
            raise ArgumentError(f"layout[{name!r}]", f"be <= {found.layers}, the model's layers", stages)
        each = [_PARTS * (found.layers // stages + (i < found.layers % stages)) for i in range(stages)]
        whole = found.flops(backward=False)
        if isinstance(found, Decoder):
            head = 2 * found.hidden * found.vocabulary * _USUAL_LENGTH
            layer = Fraction(whole.exact(_USUAL_LENGTH) - head, found.layers)
            for i, of_stage in enumerate(found.in_stages(stages) if found.unlike else ()):
                each[i] = max(1, round(_PARTS * sum(one.flops(_USUAL_LENGTH) for one in of_stage) / layer))
            each[-1] += round(_PARTS * head / layer)
        if piece := pieces.get(name):
            whole = LengthPolynomial(0, whole.exact(piece) // piece, 0, whole.length_unit)
        common = gcd(*each)
        forward[name], flops[name] = _in_stages([time // common for time in each], first, count), whole
    return _Parts(forward, _costs_of_units(flops, {name: sum(times) for name, times in forward.items()}))


def _costs_of_units(flops: Mapping[str, LengthPolynomial], units: Mapping[str, int]) -> dict[str, str | CostModel]:
    """Return what one of each phase's units of time costs, in one unit in which the FLOPs of a large step fit."""
    each = {name: {term: Fraction(value, units[name]) for term, value in f.terms.items()} for name, f in flops.items()}
    all_terms = [x for terms in each.values() for x in terms.values()]
    unit = Fraction(reduce(gcd, (x.numerator for x in all_terms)), reduce(lcm, (x.denominator for x in all_terms)))
    most = 4 * sum(f.largest_rate(_LONGEST) for f in flops.values()) * _TOTAL_LENGTH  # backwards with recomputation too
    while most / unit >= _ROOM:
        unit *= 2
    return {
        name: at_least_one({term: round(value / unit) for term, value in terms.items()}) for name, terms in each.items()
    }
