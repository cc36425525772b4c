"""Which layout a cluster is to have: of all that there are, those of the best estimates are scheduled.

A bound of a layout needs no schedule, and an estimate is that bound with what schedules add to it as a rule. So bounds
say of most layouts that they are slower, and of the winner how far it may be from the best.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from balancer.cost import Module
from balancer.cost.throughput import Throughput
from balancer.io.log import LengthLog
from balancer.layout_choice.bounds import LayoutCase, QuickBound, room_of
from balancer.layout_choice.candidates import Stub, numbers_of_slots, stubs_of
from balancer.layout_choice.given import Given, given_of
from balancer.layout_choice.memory import memory_of_devices
from balancer.layout_choice.price import Priced, price
from balancer.layouts.layout import LAYOUT_MODES, StepLayout, check_place_of
from balancer.problem.phases import Phase
from balancer.simulate.cluster import Cluster
from solvers.arguments import as_count, unknown
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, UsageError

REASONS = ("memory", "bound", "estimate", "scheduled")
"""Why a layout is not the winner: it does not fit; a bound proves that it is slower; by its estimate it is slower than
those of its mode that were scheduled; it was scheduled, so that tables may show it."""

# Seconds of work in the search for each schedule, for each step: enough to tell layouts apart.
_EACH_S = 0.02
LAST_S = 0.2
"""The same in the search for the fastest layouts."""
# Samples of a mean micro-batch, from which on DFLOP's formula, of means, says something.
_FORMULA_SAMPLES = 4
# Of each mode so many layouts are scheduled even if a bound says that they are slower. Of all that were scheduled so
# many are with all numbers of micro-batches, and so many longer.
_SHOWN, _ALL_NUMBERS, _LONGER = 2, 2, 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """What was found.

    Attributes
    ----------
    winner : Priced
        The fastest.
    table : tuple of Priced
        Of all that were scheduled those that none is both faster and smaller than, the fastest first.
    best : dict of str to Priced
        The fastest of each mode.
    counts : dict of str to dict of str to int
        By mode, how many layouts there are for each of :data:`REASONS`.
    lower_bound_s : float
        No layout of those enumerated takes less.
    formula : Priced or None
        The layout that DFLOP's formula chooses among encoders as stages, scheduled, whether it then fits or not.
    formula_s : float
        What the formula says that it takes.
    case : LayoutCase
        The winner's, of which :func:`balancer.layout_choice.price.timeline` makes a picture.
    """

    winner: Priced
    table: tuple[Priced, ...]
    best: dict[str, Priced]
    counts: dict[str, dict[str, int]]
    lower_bound_s: float
    formula: Priced | None
    formula_s: float
    case: LayoutCase

    def to_json(self) -> dict[str, Any]:
        """Return all of it by name."""
        return {
            "winner": self.winner.to_json(),
            "table": [each.to_json() for each in self.table],
            "best": {mode: each.to_json() for mode, each in self.best.items()},
            "counts": self.counts,
            "lower_bound_s": self.lower_bound_s,
            "formula": None if self.formula is None else {"says_s": self.formula_s, **self.formula.to_json()},
        }


class _Search:
    """Layouts in the order of their quick bounds, of which a few of each mode are scheduled."""

    def __init__(self, given: Given, stubs: Sequence[Stub], most: int, tick: Callable[[int], None]) -> None:
        quick = QuickBound(given)
        self.given, self.stubs, self.most, self.tick = given, stubs, most, tick
        self.order = sorted((quick.of(stub), i) for i, stub in enumerate(stubs))
        self.cases: dict[int, list[LayoutCase]] = {}
        self.priced: dict[LayoutCase, Priced | None] = {}

    def run(self) -> None:
        """Schedule the layouts of the best estimates; the best of these with all micro-batch numbers, and longer."""
        chosen, shown = sorted(self.best_estimates(), key=lambda cases: cases[0].estimate_s), Counter[str]()
        best_s = inf
        for cases in chosen:
            mode = cases[0].layout.mode
            # Of every mode there is something to show; of the rest no schedule is needed where a bound says enough.
            if shown[mode] < _SHOWN or min(case.bound_s for case in cases) < best_s:
                found = self._first_that_fits(cases)
                shown[mode] += found is not None
                best_s = best_s if found is None else min(best_s, found.seconds)
        for _, i in () if self.found else self.order:  # there has to be an answer, if one fits
            if self._first_that_fits(self.cases_of(i)):
                break
        for cases in sorted(chosen, key=self._seconds)[:_ALL_NUMBERS]:
            for case in cases:
                self.schedule(case)
        fitting = self.found
        for case in sorted(fitting, key=lambda case: fitting[case].seconds)[:_LONGER]:
            self.priced[case] = _longer(case, fitting[case])

    def best_estimates(self) -> list[list[LayoutCase]]:
        """Return of each mode the layouts of the best estimates: the cases of each, the best one first."""
        kept: dict[str, list[list[LayoutCase]]] = {}
        for bound, i in self.order:
            held = kept.setdefault(self.stubs[i].mode, [])
            # Quick bounds ascend, and no estimate is below its layout's.
            if len(held) == self.most and bound >= held[-1][0].estimate_s:
                continue
            if cases := self.cases_of(i):
                held.append(cases)
                held.sort(key=lambda each: each[0].estimate_s)
                del held[self.most :]
        return [cases for held in kept.values() for cases in held]

    def cases_of(self, i: int) -> list[LayoutCase]:
        """Return a layout with the numbers of micro-batches with which it fits, the best estimate first."""
        if i not in self.cases:
            layout, room = self.stubs[i].layout(self.given), room_of(self.given)
            memory = memory_of_devices(layout, self.given.models, self.given.frozen)
            numbers = numbers_of_slots(self.given, layout) if (memory.states < room).all() else []
            cases = [LayoutCase.of(self.given, layout, k, memory) for k in numbers]
            fitting = [case for case in cases if case.least_bytes <= room]
            self.cases[i] = sorted(fitting, key=lambda case: case.estimate_s)
        return self.cases[i]

    def schedule(self, case: LayoutCase) -> Priced | None:
        """Schedule a layout once."""
        if case not in self.priced:
            self.priced[case] = price(case, _EACH_S)
            self.tick(1)
        return self.priced[case]

    @property
    def found(self) -> dict[LayoutCase, Priced]:
        """All that were scheduled and fit."""
        return {case: each for case, each in self.priced.items() if each is not None}

    def _first_that_fits(self, cases: Iterable[LayoutCase]) -> Priced | None:
        return next((each for case in cases if (each := self.schedule(case)) is not None), None)

    def _seconds(self, cases: Iterable[LayoutCase]) -> float:
        return min((each.seconds for case in cases if (each := self.priced.get(case)) is not None), default=inf)

    def formula_pick(self) -> tuple[LayoutCase, float] | None:
        """Return what DFLOP's formula chooses among encoders as stages, and what it says.

        It sees mean micro-batches alone, and so would have one sample in each: fewer than some are a last resort.
        """
        best: tuple[LayoutCase, float] | None = None
        for least in (_FORMULA_SAMPLES, 0):
            for bound, i in self.order if best is None else ():
                if self.stubs[i].mode == "stages" and (best is None or bound < best[1]):
                    for case in self.cases_of(i):
                        if case.samples >= least and (best is None or case.formula_s < best[1]):
                            best = case, case.formula_s
        return best

    def reasons(self, best_s: float) -> dict[str, dict[str, int]]:
        """Count layouts by mode and reason, given the seconds of the winner."""
        counts: dict[str, Counter[str]] = {}
        for bound, i in self.order:
            counts.setdefault(self.stubs[i].mode, Counter())[self._reason(bound, i, best_s)] += 1
        return {mode: {reason: count[reason] for reason in REASONS} for mode, count in counts.items()}

    def _reason(self, bound: float, i: int, best_s: float) -> str:
        if i not in self.cases and bound >= best_s:
            return "bound"
        cases = self.cases_of(i)
        if self._seconds(cases) < inf:
            return "scheduled"
        if all(case in self.priced for case in cases):
            return "memory"
        return "bound" if min(case.bound_s for case in cases) >= best_s else "estimate"

    def lower_bound_s(self, best_s: float) -> float:
        """Return what no layout takes less than: of those that were scheduled, their own bound."""
        least = best_s
        for bound, i in self.order:
            if bound < least:
                for case in self.cases_of(i):
                    found = self.priced.get(case)
                    least = min(least, case.bound_s if found is None else found.lower_bound_s)
        return least

    def result(self) -> Configuration:
        """Return what was found."""
        pick, found = self.formula_pick(), self.found
        if not found:
            raise InfeasibleError(
                f"none of {len(self.stubs)} layouts with {{num_gpus}} = {self.given.num_gpus} fits the memory",
                InfeasibilityCertificate("memory", [], [], len(self.stubs), 0), "give more {gpus}, or larger ones",
            )  # fmt: skip
        first = min(found, key=lambda case: found[case].seconds)
        formula = None if pick is None else price(pick[0], _EACH_S, limited=False)
        table: list[Priced] = []
        best: dict[str, Priced] = {}
        for each in sorted(found.values(), key=lambda each: (each.seconds, each.bytes)):
            best.setdefault(each.layout.mode, each)
            # The table has what is fastest, and what is slower but holds less than all before.
            if not table or each.bytes < table[-1].bytes:
                table.append(each)
        best_s = table[0].seconds
        return Configuration(
            table[0], tuple(table), best, self.reasons(best_s), self.lower_bound_s(best_s), formula,
            pick[1] if pick else 0.0, first,
        )  # fmt: skip


def _longer(case: LayoutCase, found: Priced | None) -> Priced | None:
    """Return what a longer search finds, or what there is if that is no faster."""
    better = price(case, LAST_S)
    return found if better is None or (found is not None and found.seconds <= better.seconds) else better


def price_layouts(given: Given, layouts: Sequence[StepLayout]) -> list[Priced | None]:
    """Schedule layouts for the same steps, each with its number of micro-batches, or the best of some.

    None for those that do not fit the memory. Searches are as long as :func:`configure` gives its winner, so that both
    say the same of it.
    """
    found: list[Priced | None] = []
    for layout in layouts:
        layout.check_phases(list(given.models))
        layout.check_models(given.models, given.cluster.gpus_per_node)
        if layout.num_gpus > given.num_gpus:
            raise ArgumentError("layouts", f"be of at most {given.num_gpus} GPUs", layout.num_gpus)
        samples = min(step.num_samples for step in given.steps)
        if layout.micro_batches is not None and layout.micro_batches > samples:
            rule = f"have at most {samples} micro-batches, the samples of a step: more would be empty"
            raise ArgumentError("layouts", rule, layout.micro_batches)
        numbers = [layout.micro_batches] if layout.micro_batches else numbers_of_slots(given, layout)
        cases = [LayoutCase.of(given, layout, k) for k in numbers]
        priced = {case: price(case, _EACH_S) for case in cases}
        first = min(cases, key=lambda case: each.seconds if (each := priced[case]) else inf, default=None)
        found.append(None if first is None else _longer(first, priced[first]))
    return found


def modes_of(text: str, generators: Collection[str] = ()) -> tuple[str, ...]:
    """Read ``any``, which are all modes, with generators ``stages`` alone; or modes with ``+`` between them."""
    if text == "any":
        return ("stages",) if generators else LAYOUT_MODES
    chosen = tuple(dict.fromkeys(text.split("+"))) if isinstance(text, str) else (text,)
    if "any" in chosen:
        raise UsageError("{mode} 'any' is all modes already: it stands alone, got {given!r}", given=text)
    for mode in chosen:
        if mode not in LAYOUT_MODES:
            raise unknown("mode", mode, ("any", *LAYOUT_MODES))
        check_place_of(generators, mode)
    return chosen


def configure(
    log: str | os.PathLike[str] | LengthLog,
    num_gpus: int,
    phases: Sequence[Phase] | Mapping[str, str],
    models: Mapping[str, str | Module],
    batch: int,
    *,
    cluster: str | Cluster = "h100",
    mode: str = "any",
    num_steps: int = 1,
    pieces: Mapping[str, int] | None = None,
    frozen: Iterable[str] = (),
    efficiency: float = 0.5,
    throughput: Mapping[str, Throughput | Mapping[int, Throughput]] | None = None,
    overlap: float = 0.0,
    generators: Iterable[str] = (),
    layouts: int = 16,
    tick: Callable[[int], None] = lambda _: None,
) -> Configuration:
    """Choose how GPUs are split for the modules of a step, by exact schedules of a log's samples, and proofs.

    Parameters
    ----------
    log : str, path or LengthLog
        A path, or what ``balancer.io.log.open_log`` returns.
    num_gpus : int
    phases : sequence of Phase, or mapping of str to str
        In the order in which they compute: encoders, then the language model, then generators, if there are some.
    models : mapping of str to str or Module
        For each phase: a name or ``config.json`` as for :func:`balancer.cost.module`, or a shape.
    batch : int
        Samples of a global batch.
    cluster : str or Cluster
    mode : str
        ``"stages"``, ``"before"`` or ``"multiplexed"``, several with ``+`` between them, or ``"any"``.
    num_steps : int
        Number of global batches of the log, evenly spread, that every layout is judged by.
    pieces : mapping of str to int, optional
        Length of the pieces, such as tiles, of phases whose items are cut into pieces.
    frozen : iterable of str
        Phases that are not trained.
    efficiency : float
        Fraction of a GPU's peak that computing reaches.
    throughput : mapping of str to Throughput, optional
        Measured FLOP/s of one GPU, by phase, instead of that; or several, by tensor shards, including their exchange.
    overlap : float
        Fraction of every exchange that computing hides.
    generators : iterable of str
        The phases after the language model, which take its outputs, such as decoders of audio or images. They are last
        stages, where the backward of a micro-batch begins. So other modes have none.
    layouts : int
        How many of each mode are scheduled at most: those of the best estimates, unless a bound excludes them.
    tick : callable
        Called for every schedule that is made.

    Returns
    -------
    Configuration

    Raises
    ------
    InputError, TypeError, ValueError
        A log, a model, a cluster or an argument that cannot be used.
    InfeasibleError
        If no layout fits the memory.

    Notes
    -----
    Deterministic. Once a layout is scheduled, an interrupt (Ctrl-C) ends the search, not the call.
    """
    given = given_of(
        log, num_gpus, phases, models, batch, cluster=cluster, num_steps=num_steps, pieces=pieces, frozen=frozen,
        efficiency=efficiency, throughput=throughput, overlap=overlap, generators=generators,
    )  # fmt: skip
    modes = modes_of(mode, given.generators)
    search = _Search(given, list(stubs_of(given, modes)), as_count("layouts", layouts), tick)
    try:
        search.run()
    # What was found until then is the answer.
    except KeyboardInterrupt:
        if not search.found:
            raise
    return search.result()
