"""The least largest send, by CP-SAT: the only rearrangement that reads a clock. NP-hard, so not always proven."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._cp_sat import load_cp_model, reported_bound, solver_until
from solvers.arguments import as_budget
from solvers.rearrangement._largest_send import NodeView, SwapSearch, node_view
from solvers.rearrangement._problem import ProvenBound, RearrangementProblem
from solvers.rearrangement.methods import search
from solvers.rearrangement.types import Objective, RearrangementResult
from solvers.rearrangement.volumes import Volumes

# Building the model in Python takes so long for each group and rank. A model that takes the budget is not built.
_SECONDS_PER_LITERAL = 1e-5
# Two seconds to build, by the same measure.
_MOST_LITERALS = 200_000
# CP-SAT refuses sums near the end of int64.
_MAX_TOTAL = 2**58
# Nodes solved one after the other: it ends long before, at the first that improves nothing, or by the clock.
_MOST_NODE_ROUNDS = 50


class _Search:
    """The best groups found so far and the best bound; every step may better either, none worsens one."""

    def __init__(
        self, problem: RearrangementProblem, best: NDArray[np.int32], bound: ProvenBound, seconds: float
    ) -> None:
        self.problem, self.best, self.bound = problem, best, bound
        self.value = problem.value_of(best)
        self.cp_model = load_cp_model("max")  # the first import takes a second or two, which no budget should pay for
        self.deadline = time.perf_counter() + seconds

    @property
    def done(self) -> bool:
        return self.value <= self.bound.value or time.perf_counter() >= self.deadline

    def offer(self, candidate: NDArray[np.int32]) -> bool:
        """Take `candidate` if it is better."""
        value = self.problem.value_of(candidate)
        if value >= self.value:
            return False
        self.best, self.value = candidate, value
        return True

    def prove(self, value: int) -> None:
        """Take a bound that CP-SAT proved, if it is better."""
        value = min(value, self.value)
        if value > self.bound.value:
            self.bound = ProvenBound(value, "cp_sat", self.bound.certificate)

    def run(self, model: Any, share: float) -> tuple[Any, int | None]:
        """Solve for a share of the time left; return the solver and its status, None if it has no solution."""
        now = time.perf_counter()
        solver = solver_until(self.cp_model, now + share * (self.deadline - now))
        status = solver.solve(model)
        return solver, (status if status in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE) else None)


def _node_model(state: _Search, view: NodeView, most: int | None) -> tuple[Any, list[Any], Any]:
    """Which groups the node takes, as many of each class as it has ranks; the largest send of its ranks is at most M.

    What the node's ranks send depends on its own groups alone, so the least M is a bound on the whole problem.
    """
    problem = state.problem
    model = state.cp_model.CpModel()
    taken = [model.new_bool_var("") for _ in view.groups]
    limit = int(view.totals.max()) if most is None else most
    largest = model.new_int_var(0, limit, "largest")
    for k, room in enumerate(view.rooms.tolist()):
        model.add(sum(x for x, kind in zip(taken, view.kinds.tolist(), strict=True) if kind == k) <= room)
    for j, total in enumerate(view.totals.tolist()):
        column = view.amounts[:, j].tolist()
        model.add(total - sum(v * x for v, x in zip(column, taken, strict=True) if v) <= largest)
    here = problem.node_of_rank[state.best[view.groups]] == problem.node_of_rank[view.ranks[0]]
    for x, now in zip(taken, here.tolist(), strict=True):
        model.add_hint(x, int(now))
    return model, taken, largest


def _mend_worst_node(state: _Search, swaps: SwapSearch) -> bool:
    """Find the best groups for the node whose rank sends most; fetch them at the least loss to others, then swap on."""
    problem = state.problem
    node = int(problem.node_of_rank[int(np.argmax(problem.sends(state.best)))])
    view = node_view(problem, swaps, node)
    if view is None:
        return False
    weight = int(problem.units.weights[0])
    model, _, largest = _node_model(state, view, None)
    model.minimize(largest)
    solver, status = state.run(model, 0.3)
    if status is None:
        return False
    state.prove(reported_bound(solver.best_objective_bound) * weight)
    least = int(solver.value(largest))
    if state.done or least * weight >= state.value:
        return False
    # So many suffice: of all groups with which the node sends no more, those that others miss least.
    model, taken, _ = _node_model(state, view, max(least, state.bound.value // weight))
    losses = _losses(problem, state.best, view)
    model.minimize(sum(loss * x for loss, x in zip(losses.tolist(), taken, strict=True) if loss))
    solver, status = state.run(model, 0.3)
    if status is None:
        return False
    wanted = np.array([bool(solver.boolean_value(x)) for x in taken])
    candidate = _fetch(problem, state.best, view, wanted, node)
    swaps.lower(candidate, state.bound.value, work_units(max(1e-3, (state.deadline - time.perf_counter()) / 4)))
    return state.offer(candidate)


def _losses(problem: RearrangementProblem, ranks: NDArray[np.int32], view: NodeView) -> NDArray[np.int64]:
    """What each group of the view keeps in the node where it is now; none for those that are in the view's node."""
    nodes = problem.node_of_rank
    offsets, sources, amounts = problem.entries
    losses = np.zeros(len(view.groups), dtype=np.int64)
    for i, g in enumerate(view.groups.tolist()):
        row = slice(int(offsets[g]), int(offsets[g + 1]))
        if nodes[ranks[g]] != nodes[view.ranks[0]]:
            losses[i] = amounts[row][nodes[sources[row]] == nodes[ranks[g]]].sum()
    return losses


def _fetch(
    problem: RearrangementProblem, ranks: NDArray[np.int32], view: NodeView, wanted: NDArray[np.bool_], node: int
) -> NDArray[np.int32]:
    """Bring the wanted groups into the node, each in exchange for an unwanted one of its class."""
    ranks = ranks.copy()
    nodes, places = problem.node_of_rank, problem.place_of_rank
    chosen = set(view.groups[wanted].tolist())
    group_of_rank = np.empty(len(ranks), dtype=np.int64)
    group_of_rank[ranks] = np.arange(len(ranks))
    leaving = [g for g in group_of_rank[view.inside].tolist() if g not in chosen]
    class_of = np.searchsorted(problem.class_places, places, side="right")
    for h in sorted(chosen):
        if nodes[ranks[h]] == node:
            continue
        g = next(g for g in leaving if class_of[ranks[g]] == class_of[ranks[h]])
        leaving.remove(g)
        ranks[g], ranks[h] = ranks[h], ranks[g]
    return ranks


def _whole_model(state: _Search) -> None:
    """Every group in every place of its class: the whole problem in one model, where it is small enough."""
    problem = state.problem
    num_classes = len(problem.class_places) - 1
    model = state.cp_model.CpModel()
    literal: dict[tuple[int, int], Any] = {}
    for k in range(num_classes):
        groups = problem.group_order[problem.class_groups[k] : problem.class_groups[k + 1]].tolist()
        places = range(int(problem.class_places[k]), int(problem.class_places[k + 1]))
        for g in groups:
            now = int(problem.place_of_rank[state.best[g]])
            for p in places:
                literal[g, p] = model.new_bool_var("")
                model.add_hint(literal[g, p], int(p == now))
            model.add_exactly_one(literal[g, p] for p in places)
        for p in places:
            model.add(sum(literal[g, p] for g in groups) == int(problem.starts[p + 1] - problem.starts[p]))
    largest = model.new_int_var(state.bound.value, state.value, "largest")
    for sent, kept in _send_terms(problem, literal):
        model.add(sent - sum(kept) <= largest)
    model.minimize(largest)
    solver, status = state.run(model, 0.95)
    if status is None:
        return
    place_of_group = np.empty(problem.num_ranks, dtype=np.int32)
    for (g, p), x in literal.items():
        if solver.boolean_value(x):
            place_of_group[g] = p
    state.offer(problem.settled(place_of_group[problem.group_order], 0))
    reported = reported_bound(solver.best_objective_bound)
    state.prove(state.value if status == state.cp_model.OPTIMAL else reported)


def _send_terms(problem: RearrangementProblem, literal: dict[tuple[int, int], Any]) -> list[tuple[int, list[Any]]]:
    """For each rank, what it would send if all left, and the terms of what it keeps."""
    offsets, ranks, amounts = problem.entries
    terms: list[tuple[int, list[Any]]] = [(0, []) for _ in range(problem.num_ranks)]
    weights = problem.units.weights.tolist()
    for g in range(problem.num_ranks):
        for e in range(int(offsets[g]), int(offsets[g + 1])):
            r, volume = int(ranks[e]), int(amounts[e])
            worth: dict[int, int] = {}
            for level, weight in enumerate(weights):
                u = int(problem.units.of_rank[level, r])
                for p in problem.units.places[problem.units.starts[u] : problem.units.starts[u + 1]].tolist():
                    if (g, p) in literal:
                        worth[p] = worth.get(p, 0) + weight * volume
            sent, kept = terms[r]
            kept.extend(w * literal[g, p] for p, w in worth.items())
            terms[r] = (sent + sum(weights) * volume, kept)
    return terms


def least_max(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    *,
    objective: Objective = "max",
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_budget: float = 0.01,
) -> RearrangementResult:
    """Minimise the largest weighted volume that any one rank sends (NP-hard), then, inside each node, what moves.

    Starts as :func:`auto` does. Then CP-SAT chooses the groups of the node whose rank sends most, which often proves
    that no bijection does better, or shows the way to one; where the whole problem is small, it is solved as one model.
    The budget is seconds by the clock: when they end, the best that was found is returned, with the best bound, so two
    runs may differ: rearrange on one rank and broadcast. With the objective ``"sum"``, the sum of what was found is
    reported and bounded.

    References
    ----------
    The objective is that of OrchMLLM's node-wise rearrangement (arXiv:2503.23830, 2025).

    Examples
    --------
    >>> least_max([[9, 8], [8, 0]], [0, 1], time_budget=5).max_rank_send
    8
    """
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    asked = RearrangementProblem.prepare(volumes, levels, objective, weights, class_of_group, class_of_rank)
    problem = asked if objective == "max" else asked.with_objective("max")
    found = search(problem, work_units(seconds / 4))
    # The default method gets a quarter of the time; CP-SAT begins from what it finds.
    best, bound = found.candidates[0], found.bound
    if problem.value_of(best) > bound.value and problem.volumes.total * int(problem.units.weights.sum()) < _MAX_TOTAL:
        state = _Search(problem, best, bound, 0.75 * seconds)  # the start was worth a quarter
        _search_on(state, seconds)
        best, bound = problem.resettled(state.best), state.bound
    candidates = [best, *found.candidates]
    if problem is asked:
        return asked.result(candidates, bound, "max", started, out_of_time=True)
    # The caller asked for the sum: its bound comes from the least sum.
    rows = asked.rows()
    price, _ = asked.transport(rows, asked.greedy(rows), work_units(seconds))
    return asked.result([best], asked.bound(rows, price), "max", started)


def _search_on(state: _Search, seconds: float) -> None:
    problem = state.problem
    if len(problem.units.weights) == 1:  # deeper down, what a node's ranks send does not depend on its own groups alone
        swaps = SwapSearch(problem)
        for _ in range(_MOST_NODE_ROUNDS):
            if state.done or not _mend_worst_node(state, swaps):
                break
    literals = sum(
        int(g) * int(p) for g, p in zip(np.diff(problem.class_groups), np.diff(problem.class_places), strict=True)
    )
    literals += len(problem.volumes.ranks)
    if not state.done and literals <= _MOST_LITERALS and literals * _SECONDS_PER_LITERAL < seconds / 2:
        _whole_model(state)
