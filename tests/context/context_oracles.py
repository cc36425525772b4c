"""All layouts of tiny packs, one position after another, and what must travel, key by key; nothing of the solvers."""

from itertools import product

import numpy as np


def seen(kind, size, length, i):
    """Keys that query i sees."""
    if kind == "full":
        return range(i + 1)
    if kind == "window":
        return range(max(0, i - size + 1), i + 1)
    return range(i // size * size, i + 1)


def measured(lengths, kind, size, owner, ranks):
    """Work of each rank, and keys that each needs and others have, of positions one document after another."""
    work, needed, at = [0] * ranks, [set() for _ in range(ranks)], 0
    for length in lengths:
        for i in range(length):
            keys = seen(kind, size, length, i)
            work[owner[at + i]] += len(keys)
            needed[owner[at + i]] |= {at + key for key in keys}
        at += length
    return work, [len({key for key in needed[r] if owner[key] != r}) for r in range(ranks)]


def least_received(lengths, masks, ranks, within, caps):
    """Least weighted rows received of all layouts that keep tokens and caps; None if there is none."""
    best = None
    for owner in product(range(ranks), repeat=sum(lengths)):
        if owner[0] or not all(within[0] <= owner.count(r) <= within[1] for r in range(ranks)):
            continue
        total = 0
        for (kind, size, weight), cap in zip(masks, caps, strict=True):
            work, received = measured(lengths, kind, size, owner, ranks)
            if max(work) > cap:
                break
            total += weight * sum(received)
        else:
            best = total if best is None else min(best, total)
    return best


def must_travel(lengths, masks, ranks, within, caps):
    """Weighted rows that all ranks receive at least, key by key.

    A key that j ranks cannot serve travels to j others at least. They cannot if its queries are more tokens, or more
    work under some mask, than j ranks may hold, with the lightest other positions that fill them up.
    """
    fewest, most = within
    work = [
        [np.array([len(seen(kind, size, length, i)) for i in range(length)]) for length in lengths]
        for kind, size, _ in masks
    ]
    tokens = sum(lengths)

    def serve(of, d, first, end, j):
        if end - first > j * most:
            return False
        asked = max(0, max(j * fewest, tokens - (ranks - j) * most) - (end - first))
        for (kind, size, _), works, cap in zip(masks, work, caps, strict=True):
            if kind == "chunk" and (first // size != (end - 1) // size or masks[of][0] == "window"):
                continue
            others = [np.delete(each, range(first, end)) if k == d else each for k, each in enumerate(works)]
            if works[d][first:end].sum() + np.sort(np.concatenate(others))[:asked].sum() > j * cap:
                return False
        return True

    total = 0
    for of, (kind, size, weight) in enumerate(masks):
        for d, length in enumerate(lengths):
            keys = 0
            for key in range(length):
                queries = [i for i in range(length) if key in seen(kind, size, length, i)]
                keys += sum(not serve(of, d, queries[0], queries[-1] + 1, j) for j in range(1, ranks))
            cuts = 0
            if kind == "window":  # a document longer than a rank's tokens is cut somewhere, which costs a window
                stretch = most + size - 1
                cuts = length // stretch * (size - 1) + max(0, length % stretch - most)
            total += weight * max(keys, cuts)
    return total
