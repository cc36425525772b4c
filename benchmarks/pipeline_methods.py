"""Ways to fill a pipeline's slots that pipeline.py compares the solver with."""

from typing import NamedTuple

import numpy as np

import solvers
from solvers._budget import work_units
from solvers._jit import kernel
from solvers._loops import draw, first_largest
from solvers.groups import read_only
from solvers.pipeline import PipelineRequest
from solvers.pipeline.ramp import Program
from solvers.pipeline.run import all_ends
from solvers.pipeline.solver import PipelineProblem, lanes_of, loads_of, makespans_of

SEED = 20_260_101


class Filled(NamedTuple):
    """What a result of the solver says, too."""

    replica_of_item: np.ndarray
    slot_of_item: np.ndarray
    makespans: np.ndarray
    num_replicas: int
    num_slots: int
    order: solvers.pipeline.OpOrder

    @property
    def makespan(self) -> int:
        return int(self.makespans.max())


def filled(method, work, forward, backward, replicas, slots, seconds=0.3) -> Filled:
    """Fill slots by the method of this name."""
    problem = PipelineProblem.from_request(PipelineRequest(work, forward, backward, replicas, slots))
    cells = METHODS[method](problem, seconds)
    return Filled(cells // slots, cells % slots, makespans_of(problem, cells), replicas, slots, problem.order)


def vector_lpt(problem, seconds: float) -> np.ndarray:
    """Even slots: longest first to where the largest component then is smallest, which is what DFLOP falls back to."""
    return dealt(problem, problem.num_cells)


def dealt(problem, count: int) -> np.ndarray:
    """Cell of every item by vector LPT, of so many; none stays empty."""
    stages = problem.merged
    half = stages.num_stages
    whole = problem.items * (stages.unit[:, :half] + stages.unit[:, half:]).max(axis=1)[:, None]
    spent = whole * (count / np.maximum(1, whole.sum(axis=1, keepdims=True)))
    found, loads, empty = np.empty(spent.shape[1], dtype=np.int64), np.zeros((count, len(spent))), np.ones(count, bool)
    for at, item in enumerate(np.argsort(-spent.max(axis=0, initial=0.0), kind="stable")):
        may = empty if spent.shape[1] - at <= empty.sum() else np.ones(count, bool)
        largest = np.where(may, (loads + spent[:, item]).max(axis=1), np.inf)
        best = np.argmin(np.where(largest == largest.min(), loads.sum(axis=1), np.inf))
        found[item], empty[best] = best, False
        loads[best] += spent[:, item]
    return found


@kernel
def reorder(state, most_work, goal, rows, place, replicas, tied, graph, hop):
    """Let finished slots change places as long as the longest pipeline gets shorter; return the work done.

    ``rows``, int64[cells, 2 S], are durations; ``place[cell]`` says which of the slots given is there now.
    """
    cells, width = rows.shape
    num_slots = cells // replicas
    lanes = 1 if tied else replicas
    durations, ends = np.empty((lanes, num_slots, width), np.int64), np.empty(graph.shape[1], np.int64)
    makespans = np.zeros(lanes, np.int64)
    work, tries = np.int64(0), 0
    a, b = np.int64(0), np.int64(0)
    first = True
    while work < most_work and tries < 64 * cells:
        if not first:
            worst = first_largest(makespans)
            if makespans[worst] <= goal:
                break
            a = draw(state, cells) if tied else worst * num_slots + draw(state, num_slots)
            b = draw(state, cells)
            place[a], place[b] = place[b], place[a]
        most, met = np.int64(0), makespans.copy()
        for lane in range(lanes):
            if not (first or tied or lane == a // num_slots or lane == b // num_slots):
                continue
            for k in range(num_slots):
                for j in range(width):
                    durations[lane, k, j] = rows[place[lane * num_slots + k], j]
                    for r in range(1, replicas if tied else 1):
                        durations[lane, k, j] = max(durations[lane, k, j], rows[place[r * num_slots + k], j])
            met[lane] = all_ends(graph, durations[lane], hop, ends)
            most = max(most, met[lane])
            work += 4 * graph.shape[1]
        tries += 1
        if first or most < makespans[first_largest(makespans)]:
            makespans, tries, first = met, 0, False
        else:
            place[a], place[b] = place[b], place[a]
    return work


def order_only(problem, seconds: float) -> np.ndarray:
    """Put the slots of `vector_lpt`, as they are, in a better order."""
    found, order = dealt(problem, problem.num_cells), problem.order
    rows, _ = lanes_of(problem, loads_of(problem, found))
    ramp = Program.of(problem).ramp()
    wanted = np.argsort(-np.tile(ramp.share.sum(axis=1), problem.num_replicas), kind="stable")
    place = np.empty(problem.num_cells, dtype=np.int64)
    place[wanted] = np.argsort(-rows.sum(axis=1), kind="stable")
    reorder(
        np.array([SEED], dtype=np.int64), work_units(seconds), 0, read_only(rows), place, problem.num_replicas,
        problem.tied, order.graph, problem.merged.hop,
    )  # fmt: skip
    cell_of_slot = np.empty(problem.num_cells, dtype=np.int64)
    cell_of_slot[place] = np.arange(problem.num_cells)
    return cell_of_slot[found]


def deferred(problem, seconds: float) -> np.ndarray:
    """Put off what a slot has over its share of any module's work to a later one; replicas as even as `vector_lpt`'s.

    Made from what is said of Entrain (arXiv:2605.27918): in the order given, a slot takes all items, those put off
    first, with which no module has more than its share of what is left; the last takes all.
    """
    slots, found = problem.num_slots, dealt(problem, problem.num_replicas) * problem.num_slots
    for replica in range(problem.num_replicas):
        waiting = np.flatnonzero(found == replica * slots)
        for slot in range(slots - 1):
            work = problem.items[:, waiting]
            share, load = work.sum(axis=1) / (slots - slot), np.zeros(len(work))
            taken: list[int] = []
            for at in range(len(waiting)):
                spare = len(waiting) - len(taken) > slots - slot - 1  # one at least for every slot that follows
                if spare and (not taken or bool((load + work[:, at] <= share).all())):
                    taken.append(at)
                    load = load + work[:, at]
            found[waiting[taken]] = replica * slots + slot
            waiting = np.delete(waiting, taken)
        found[waiting] = replica * slots + slots - 1
    return found


METHODS = {"vector_lpt": vector_lpt, "order_only": order_only, "deferred": deferred}
