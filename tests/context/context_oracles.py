"""All layouts of tiny packs, one position after another; nothing of the solvers."""

from itertools import product


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
