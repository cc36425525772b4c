"""Longest first to the emptiest slot."""

import numpy as np

from solvers._jit import kernel


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
