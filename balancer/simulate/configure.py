"""Which layout a cluster is to have: all that there are, most of them excluded by proof, the rest scheduled."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from balancer.cost import Module
from balancer.cost.throughput import Throughput
from balancer.io.logs import LengthLog
from balancer.layouts.layout import LAYOUT_MODES, StepLayout, check_place_of
from balancer.problem.phases import Phase
from balancer.simulate.cluster import Cluster
from balancer.simulate.given import Given, given_of
from balancer.simulate.layout_bounds import LayoutCase, QuickBound, room_of
from balancer.simulate.layout_memory import memory_of_devices
from balancer.simulate.layout_price import Priced, price
from balancer.simulate.layouts import Stub, numbers_of_slots, stubs_of
from solvers.arguments import as_budget, unknown
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, UsageError

REASONS = ("memory", "bound", "close", "scheduled", "partly", "left")
"""Why a layout is not the winner: it does not fit; a bound proves that it is slower, or that it is no more than 3 %
faster; it was scheduled, so that tables may show it; so it was, but the budget ended before numbers of micro-batches
with which it may be more than 3 % faster; or it ended before any."""

# A layout that is no more than 3 % faster, by its bound, comes after all that may be faster by more.
_CLOSE = 0.03
# Seconds of a schedule's search, for each step: enough to tell layouts apart. The winner gets ten times as much.
_EACH_S = 0.02
LAST_S = 0.2
"""Seconds of work in the search for the winner, for each step."""
# By so much longer a layout is taken to be with every further number of micro-batches, so that many have a turn.
_AGAIN = 0.01
# Samples of a mean micro-batch, from which on DFLOP's formula, of means, says something.
_FORMULA_SAMPLES = 4
# Layouts of each mode that are scheduled before all others: bounds exclude most others by what these take.
_FIRST = 2


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
        The winner's, of which :func:`balancer.simulate.layout_price.timeline` makes a picture.
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
    """Layouts in the order of their quick bounds; most are never looked at closer."""

    def __init__(self, given: Given, stubs: Sequence[Stub], budget: float, tick: Callable[[int], None]) -> None:
        quick = QuickBound(given)
        self.given, self.left_s, self.tick = given, budget, tick
        self.stubs = sorted(((quick.of(stub), i) for i, stub in enumerate(stubs)), key=lambda pair: pair)
        self.stub_of = stubs
        self.cases: dict[int, list[LayoutCase]] = {}
        self.priced: dict[LayoutCase, Priced | None] = {}
        self.best_s = inf

    def run(self) -> None:
        """Schedule the most promising of each mode; then all that no bound excludes, as far as the budget goes."""
        for mode in dict.fromkeys(stub.mode for stub in self.stub_of):
            self._begin(pair for pair in self.stubs if self.stub_of[pair[1]].mode == mode)
        alive: dict[LayoutCase, float] = {}
        for bound, i in self.stubs:
            cases = sorted(self.cases_of(i) if bound < self.best_s else (), key=lambda case: case.estimate_s)
            alive |= {case: (1 + _AGAIN * k) * case.estimate_s for k, case in enumerate(cases)}
        for close in (_CLOSE, 0.0):  # first what may be much faster
            for case in sorted(alive, key=lambda case: alive[case]):
                if case not in self.priced and case.bound_s < self.best_s / (1 + close):
                    self.schedule(case)

    def cases_of(self, i: int) -> list[LayoutCase]:
        """Return the numbers of micro-batches with which a layout fits, none if it does not."""
        if i not in self.cases:
            layout, room = self.stub_of[i].layout(self.given), room_of(self.given)
            memory = memory_of_devices(layout, self.given.models, self.given.frozen)
            numbers = numbers_of_slots(self.given, layout) if (memory.states < room).all() else []
            cases = [LayoutCase.of(self.given, layout, k, memory) for k in numbers]
            self.cases[i] = [case for case in cases if case.least_bytes <= room]
        return self.cases[i]

    def schedule(self, case: LayoutCase) -> Priced | None:
        """Schedule it if the budget allows."""
        if case in self.priced:
            return self.priced[case]
        self.left_s -= _cost_s(case, _EACH_S)
        # One is always scheduled, whatever the budget: there has to be an answer.
        if self.left_s < 0 and self.best_s < inf:
            return None
        found = self.priced[case] = price(case, _EACH_S)
        self.tick(1)
        if found is not None:
            self.best_s = min(self.best_s, found.seconds)
        return found

    def formula_pick(self) -> tuple[LayoutCase, float] | None:
        """Return what DFLOP's formula chooses among encoders as stages, and what it says.

        It sees mean micro-batches alone, and so would have one sample in each: fewer than some are a last resort.
        """
        best: tuple[LayoutCase, float] | None = None
        for least in (_FORMULA_SAMPLES, 0):
            for bound, i in self.stubs if best is None else ():
                if self.stub_of[i].mode == "stages" and (best is None or bound < best[1]):
                    for case in self.cases_of(i):
                        if case.samples >= least and (best is None or case.formula_s < best[1]):
                            best = case, case.formula_s
        return best

    def reasons(self) -> dict[str, dict[str, int]]:
        """Count layouts by mode and reason."""
        counts: dict[str, Counter[str]] = {}
        for bound, i in self.stubs:
            counts.setdefault(self.stub_of[i].mode, Counter())[self._reason(bound, i)] += 1
        return {mode: {reason: count[reason] for reason in REASONS} for mode, count in counts.items()}

    def _reason(self, bound: float, i: int) -> str:
        if i not in self.cases and bound >= self.best_s:
            return "bound"
        cases = self.cases_of(i)
        if not cases:
            return "memory"
        if all(case in self.priced for case in cases):
            return "scheduled" if any(self.priced[case] for case in cases) else "memory"
        least = min(case.bound_s for case in cases if case not in self.priced)
        shown, far = any(self.priced.get(case) for case in cases), least < self.best_s / (1 + _CLOSE)
        if shown:
            return "partly" if far else "scheduled"
        if least >= self.best_s:
            return "bound"
        return "left" if far else "close"

    def lower_bound_s(self) -> float:
        """Return what no layout takes less than: of those that were scheduled, their own bound."""
        least = self.best_s
        for bound, i in self.stubs:
            if bound < least:
                for case in self.cases_of(i):
                    found = self.priced.get(case)
                    least = min(least, case.bound_s if found is None else found.lower_bound_s)
        return least

    def result(self) -> Configuration:
        """Return what was found, the winner scheduled with more time."""
        pick = self.formula_pick()
        formula = None if pick is None else price(pick[0], _EACH_S, limited=False)
        found = {case: each for case, each in self.priced.items() if each is not None}
        if not found:
            raise InfeasibleError(
                f"none of {len(self.stubs)} layouts with {{num_gpus}} = {self.given.num_gpus} fits the memory",
                InfeasibilityCertificate("memory", [], [], len(self.stubs), 0), "give more {gpus}, or larger ones",
            )  # fmt: skip
        first = min(found, key=lambda case: found[case].seconds)
        found[first] = self.priced[first] = longer = _longer(first, found[first]) or found[first]
        self.best_s = longer.seconds
        table: list[Priced] = []
        best: dict[str, Priced] = {}
        for each in sorted(found.values(), key=lambda each: (each.seconds, each.bytes)):
            best.setdefault(each.layout.mode, each)
            # The table has what is fastest, and what is slower but holds less than all before.
            if not table or each.bytes < table[-1].bytes:
                table.append(each)
        return Configuration(
            table[0], tuple(table), best, self.reasons(), self.lower_bound_s(), formula, pick[1] if pick else 0.0, first
        )

    def _begin(self, numbers: Iterable[tuple[float, int]]) -> None:
        """Schedule those whose estimates are best; none further on has a better one."""
        fitting: list[LayoutCase] = []
        least = inf
        for bound, i in numbers:
            # Quick bounds ascend, and no estimate is below its bound.
            if len(fitting) >= _FIRST and bound >= least:
                break
            fitting += self.cases_of(i)
            least = min(least, *(case.estimate_s for case in self.cases_of(i)), inf)
        for case in sorted(fitting, key=lambda each: each.estimate_s)[:_FIRST]:
            self.schedule(case)


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


_LIST_S = 6e-6  # about, that list schedules take of each op, and of a replica as much as a hundred do


def _cost_s(case: LayoutCase, seconds: float) -> float:
    """About how many seconds a schedule takes: its search, its linear program, its samples."""
    cells, samples = case.num_slots * case.layout.num_stages, [step.num_samples for step in case.given.steps]
    lists = 0.0
    if case.layout.mode == "multiplexed" and case.apart:  # of every replica, some, whatever the budget
        lists = _LIST_S * case.layout.llm.dp * (100 + 2 * cells)
    return sum(seconds + lists + (2e-5 + 2 * (lists > 0) * _LIST_S) * count + 5e-4 * cells for count in samples)


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
    time_budget: float = 5.0,
    tick: Callable[[int], None] = lambda _: None,
) -> Configuration:
    """Choose how GPUs are split for the modules of a step, by exact schedules of a log's samples, and proofs.

    Parameters
    ----------
    log : str, path or LengthLog
        A path, or what ``balancer.io.logs.open_log`` returns.
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
    time_budget : float
        Seconds' worth of schedules, counted and not timed. Layouts that it does not reach are counted.
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
    search = _Search(given, list(stubs_of(given, modes)), as_budget(time_budget), tick)
    try:
        search.run()
    # What was found until then is the answer.
    except KeyboardInterrupt:
        if search.best_s == inf:
            raise
    return search.result()
