"""The loops of the simpler methods: longest first to the emptiest slot, and finished slots put in order."""

import numpy as np

from solvers._jit import kernel
from solvers._loops import draw, first_largest
from solvers.pipeline._kernels import all_ends

__all__ = ["deal", "reorder"]


@kernel
def deal(order, items, sizes, caps, cell_of_item, cells):
    """Put items, in an order, where the largest component then is smallest; return how many have a place.

    ``items``, float64[M, n], are work as parts of a mean slot's. An empty cell is as good as any other that is as low.
    """
    modules = items.shape[0]
    loads, held = np.zeros((cells, modules)), np.zeros((cells, sizes.shape[0]), np.int64)
    counts, empty = np.zeros(cells, np.int64), cells
    for at in range(len(order)):
        item = order[at]
        forced = caps[len(caps) - 1] == 0 and len(order) - at <= empty
        best, least, sum_of_best = -1, np.inf, np.inf
        for cell in range(cells):
            fits = not (forced and counts[cell] > 0)
            for c in range(sizes.shape[0]):
                fits &= held[cell, c] + sizes[c, item] <= caps[c]
            if not fits:
                continue
            largest, total = 0.0, 0.0
            for m in range(modules):
                largest = max(largest, loads[cell, m] + items[m, item])
                total += loads[cell, m]
            if largest < least or (largest == least and total < sum_of_best):
                best, least, sum_of_best = cell, largest, total
        if best < 0:
            return at
        empty -= counts[best] == 0
        counts[best] += 1
        cell_of_item[item] = best
        for m in range(modules):
            loads[best, m] += items[m, item]
        for c in range(sizes.shape[0]):
            held[best, c] += sizes[c, item]
    return len(order)


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
