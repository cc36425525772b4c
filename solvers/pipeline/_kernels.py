"""The loops behind pipelines: longest paths over ops in their order, a faster one for 1F1B, and one critical path.

Durations are int64[K, 2 S]: of each slot its forwards in stages 0 to S - 1, then its backwards. An order's graph is
int64[4, T], ops in an order in which each comes after what it waits for: its cell in the durations, the op before it on
its device, the op of the same slot that it follows (-1: none), and whether what that sends has to hop.

1F1B is a sequence of rounds 0 to K + S - 2. In round r every stage s runs the forward of slot r, then the backward of
slot r - (S - 1 - s), where there are such; all that later rounds need to know is when each stage ends.
"""

import numpy as np

from solvers._jit import helper, kernel


@kernel
def find_order(offsets, follows, place):
    """Put ops in an order in which each comes after what it waits for; ``place`` is -1 where there is none.

    ``offsets``, int64[D + 1], says which ops are a device's, one after another; ``follows`` is the op of the same slot
    that must come before, or -1. Returns how many could be placed, all unless the order deadlocks. O(T D).
    """
    for op in range(len(follows)):
        place[op] = -1
    at = offsets[:-1].copy()
    count = np.int64(0)
    moved = True
    while moved:
        moved = False
        for d in range(len(at)):
            while at[d] < offsets[d + 1] and (follows[at[d]] < 0 or place[follows[at[d]]] >= 0):
                place[at[d]] = count
                count += 1
                at[d] += 1
                moved = True
    return count


@helper
def durations_of(loads, unit, fixed, durations):
    """Set the duration of every op: ``fixed``, int64[2 S], and what the loads, int64[K, M], take by ``unit``."""
    for k in range(loads.shape[0]):
        for j in range(len(fixed)):
            durations[k, j] = fixed[j]
        for m in range(loads.shape[1]):
            load = loads[k, m]
            for j in range(len(fixed)):
                durations[k, j] += load * unit[m, j]


durations_of_kernel = kernel(durations_of)


@helper
def all_ends(graph, durations, hop, ends):
    """Set the end of every op; return the largest. O(T)."""
    cells, before, follows, hops = graph[0], graph[1], graph[2], graph[3]
    flat, makespan = durations.reshape(-1), np.int64(0)
    for op in range(len(ends)):
        start = np.int64(0)
        if before[op] >= 0:
            start = ends[before[op]]
        if follows[op] >= 0:
            start = max(start, ends[follows[op]] + hop * hops[op])
        ends[op] = start + flat[cells[op]]
        makespan = max(makespan, ends[op])
    return makespan


all_ends_kernel = kernel(all_ends)


@helper
def critical_path(graph, durations, ends, path):
    """Follow one longest path from its end, along the device where two are as long; 1 or 2 in ``path`` for every op.

    1: it comes from the op before it on its device, or is the first; 2: from the op of the same slot; 0: not on it.
    """
    cells, before, follows = graph[0], graph[1], graph[2]
    flat = durations.reshape(-1)
    op = 0
    for other in range(len(ends)):
        path[other] = 0
        if ends[other] > ends[op]:
            op = other
    while op >= 0:
        start = ends[op] - flat[cells[op]]
        if before[op] >= 0 and ends[before[op]] == start:
            path[op] = 1
            op = before[op]
        elif before[op] < 0 and start == 0:
            path[op] = 1
            op = -1
        else:
            path[op] = 2
            op = follows[op]


@helper
def run_round(r, durations, flat, lead, hop, end):
    """Run round r: ``end``, int64[S + 1], when each stage ends, is brought from before it to after it.

    ``flat`` is the same memory as ``durations``. An unsigned index spares the question whether it is negative.
    """
    num_slots, width = durations.shape[0], durations.shape[1]
    num_stages = width // 2
    both = max(lead, num_stages - 1 - r)
    stop = min(num_stages, num_slots + num_stages - 1 - r)
    back = np.uint64(max(0, (r - num_stages + 1 + both) * width + num_stages + both))
    if r < num_slots:
        row = durations[r]
        last = np.int64(-hop)
        for s in range(both):
            last = max(last + hop, end[s]) + row[s]
            end[s] = last
        here = end[both]
        for s in range(both, stop):
            above = end[s + 1]
            last = max(last + hop, here) + row[s]
            end[s] = max(last, above + hop) + flat[back]
            back += np.uint64(width + 1)
            here = above
    else:
        for s in range(both, stop):
            end[s] = max(end[s], end[s + 1] + hop) + flat[back]
            back += np.uint64(width + 1)


@helper
def one_f_one_b_makespan(durations, lead, hop, end):
    """Makespan of 1F1B where the first `lead` stages have no backward; ``end``, int64[S + 1], is room for work."""
    num_slots, num_stages = durations.shape[0], durations.shape[1] // 2
    flat = durations.reshape(-1)
    for s in range(num_stages):
        end[s] = 0
    end[num_stages] = -hop
    for r in range(num_slots + num_stages - 1):
        run_round(r, durations, flat, lead, hop, end)
    makespan = np.int64(0)
    for s in range(num_stages):
        makespan = max(makespan, end[s])
    return makespan
