"""Heaps of group loads, shared by the kernels that always give the next item to the least loaded group.

Two representations with one behaviour. *Packed* keys hold load and group in one int64, ``load << bits | group``, so
that one comparison orders by load and breaks ties to the lowest group; four children a vertex keep the tree shallow
and the children in one cache line. Where load and group together would not fit 63 bits, *wide* heaps hold them in two
arrays.
"""

import numpy as np

from solvers._jit import helper


def group_bits(num_groups: int) -> int:
    """Bits that a group index takes in a packed key."""
    return max(1, (num_groups - 1).bit_length())


@helper
def sift_down_packed(keys, size, key):
    """Replace the root of the heap ``keys[:size]`` by `key` and restore the heap order. O(log size)."""
    vertex = 0
    child = 1
    while child + 3 < size:  # arithmetic on comparisons instead of branches: nothing to mispredict but the end
        a, b, c, d = keys[child], keys[child + 1], keys[child + 2], keys[child + 3]
        left, right = np.int64(b < a), np.int64(d < c)
        best_left, best_right = min(a, b), min(c, d)
        go_right = np.int64(best_right < best_left)
        best = min(best_left, best_right)
        # The key has found its place: nothing below is smaller.
        if best >= key:
            keys[vertex] = key
            return
        keys[vertex] = best
        vertex = child + left + go_right * (2 + right - left)
        child = 4 * vertex + 1
    if child < size:  # the last vertex may have one to three children
        smallest = child
        for other in range(child + 1, size):
            if keys[other] < keys[smallest]:
                smallest = other
        if keys[smallest] < key:
            keys[vertex] = keys[smallest]
            vertex = smallest
    keys[vertex] = key


@helper
def sift_down_wide(loads, groups, size, load, group):
    """As :func:`sift_down_packed` for the heap of pairs ``(loads[i], groups[i])``, i < size."""
    vertex = 0
    # Pairs in two arrays take branches: this is for loads that do not fit a word with their group.
    while True:
        smallest, smallest_load, smallest_group = -1, load, group
        for child in range(4 * vertex + 1, min(4 * vertex + 5, size)):
            if loads[child] < smallest_load or (loads[child] == smallest_load and groups[child] < smallest_group):
                smallest, smallest_load, smallest_group = child, loads[child], groups[child]
        if smallest < 0:
            break
        loads[vertex] = smallest_load
        groups[vertex] = smallest_group
        vertex = smallest
    loads[vertex] = load
    groups[vertex] = group
