"""Loops of two lines that kernels share instead of NumPy's functions, each of which takes longer to compile."""

import numpy as np

from solvers._jit import helper


@helper
def copy(target, source):
    """``target[:len(source)] = source``; an assignment of slices compiles an error text, with its strings."""
    for i in range(len(source)):
        target[i] = source[i]


@helper
def copy_table(target, source):
    """``target[:len(source)] = source``, of two dimensions."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@helper
def draw(state, below):
    """Next of a sequence of pseudo-random integers from 0 to below - 1, the same on every machine."""
    # The generator of ANSI C's example `rand`. Its low bits have short periods, so they are dropped.
    state[0] = (state[0] * 1103515245 + 12345) & 0x7FFFFFFF
    return (state[0] >> 8) % below


@helper
def numbers(count):
    """The numbers from 0 to `count` - 1: int64[count]."""
    values = np.empty(count, dtype=np.int64)
    for i in range(count):
        values[i] = i
    return values


@helper
def first_at_most(values, low, most):
    """Where the first of descending `values` from `low` on that is at most `most` stands; their number if none is."""
    high = len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= most:
            high = middle
        else:
            low = middle + 1
    return low


@helper
def first_largest(values):
    """Where the largest of `values`, at least one, stands first."""
    best = 0
    for i in range(1, len(values)):
        if values[i] > values[best]:
            best = i
    return best


@helper
def first_smallest(values):
    """Where the smallest of `values`, at least one, stands first."""
    best = 0
    for i in range(1, len(values)):
        if values[i] < values[best]:
            best = i
    return best


@helper
def largest_of(values):
    """The largest of `values`, at least one."""
    best = values[0]
    for i in range(1, len(values)):
        best = max(best, values[i])
    return best


@helper
def stable_order(values):
    """``numpy.argsort(values, kind="stable")`` of int64 values, by merging from below. O(n log n)."""
    n = len(values)
    order, spare = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for i in range(n):
        order[i] = i
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            i, j = low, middle
            for k in range(low, high):
                # "<=" keeps equal values in their order.
                if j >= high or (i < middle and values[order[i]] <= values[order[j]]):
                    spare[k] = order[i]
                    i += 1
                else:
                    spare[k] = order[j]
                    j += 1
        order, spare = spare, order
        width *= 2
    return order


@helper
def resort(order, place, loads, g):
    """Move `g` to its place in the ascending order after its load has changed."""
    k, last = place[g], len(order) - 1
    while k < last and loads[order[k + 1]] < loads[g]:
        order[k] = order[k + 1]
        place[order[k]] = k
        k += 1
    while k > 0 and loads[order[k - 1]] > loads[g]:
        order[k] = order[k - 1]
        place[order[k]] = k
        k -= 1
    order[k] = g
    place[g] = k
